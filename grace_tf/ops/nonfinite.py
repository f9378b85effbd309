"""Lists of tensors made NaN, for steps in which something is not finite. Native only."""

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
    """xs where `finite`, a bool scalar, is true, else NaN throughout; in place where that can be.

    In a graph that is everywhere where nothing else holds an x; else an x is copied.
    """
    xs = arguments.float_list(xs, "xs")
    finite = arguments.tensor(finite, tf.bool, 0, "finite")
    return shaped_like(
        native._ops().grace_nan_unless_list(xs=xs, finite=finite), [x.shape for x in xs]
    )
