"""What a step gives and keeps where something is not finite, for lists of tensors. Native only."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import shaped_like, sizes_of
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.signs import vote_list


def nan_list(shapes: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """float32 tensors of these shapes, NaN throughout: any vote times NaN, in one node."""
    words = sum(packed_words(n, 1) for n in sizes_of(shapes))
    return vote_list(tf.zeros([1, words], tf.int32), shapes, tf.constant(float("nan")))


def nan_unless(xs: Sequence[tf.Tensor], finite: tf.Tensor) -> list[tf.Tensor]:
    """xs where `finite`, a bool scalar, is true, else NaN throughout.

    On a CPU a finite tensor is never copied. On a GPU it is copied only if something else holds
    its memory too.
    """
    xs = arguments.float_list(xs, "xs")
    finite = arguments.tensor(finite, tf.bool, 0, "finite")
    return shaped_like(
        native._ops().grace_nan_unless_list(xs=xs, finite=finite), [x.shape for x in xs]
    )


def next_or_last(
    nexts: Sequence[tf.Tensor], lasts: Sequence[tf.Tensor], finite: tf.Tensor
) -> list[tf.Tensor]:
    """nexts where `finite`, a bool scalar, is true, else lasts; without a copy, on CPUs only."""
    finite = arguments.tensor(finite, tf.bool, 0, "finite")
    kept = native._ops().grace_next_or_last_list(when=finite, next=list(nexts), last=list(lasts))
    return shaped_like(kept, [x.shape for x in lasts])
