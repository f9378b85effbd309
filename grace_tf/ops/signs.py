"""Signs of whole lists of tensors, one bit an element, and the votes of workers.

The reference are `ops.pack_signs` and `ops.vote_signs`, tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import scalar, shaped_like, sizes_of, totals_of, vector
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import lists
from grace_tf.ops.reference.one_tensor import pack_signs, vote_signs


def sign_list(xs: Sequence[tf.Tensor], multiplier: float) -> tuple[tf.Tensor, tf.Tensor]:
    """The signs of x_i * multiplier for each x_i of a list, as `pack_signs` gives them.

    There is no product where the multiplier is 1.0. Returns int32 [the sum of packed_words(n_i, 1)]
    and a bool scalar: whether all products are finite.
    """
    xs = arguments.float_list(xs, "xs")
    if not dispatch.runs_here(xs):
        words, _, finite = lists.encode_each(
            xs, None, multiplier, lambda _, acc: (pack_signs(acc),), None
        )
        return words, finite
    finite, words = native._ops().grace_sign_list(xs=xs, multiplier=float(np.float32(multiplier)))
    size = sum(packed_words(n, 1) for n in sizes_of([x.shape for x in xs]))
    return vector(words, size), scalar(finite)


def vote_list(
    words: tf.Tensor, shapes: Sequence[Sequence[int]], factor: float | tf.Tensor
) -> list[tf.Tensor]:
    """The votes of the workers' signs, `vote_signs(words_i, n_i) * factor` for each i of a list.

    words is int32 [N, n], a row of `sign_list` per worker; factor is a float32 scalar, by which
    every element is multiplied, zeros too. The votes have the given shapes.
    """
    words = arguments.tensor(words, tf.int32, 2, "words")
    arguments.check_size(words, sum(packed_words(n, 1) for n in sizes_of(shapes)), "words")
    if not dispatch.runs_here([words]):
        sizes = sizes_of(shapes)
        parts = zip(tf.split(words, [packed_words(n, 1) for n in sizes], 1), sizes, shapes)
        return [tf.reshape(vote_signs(own, n) * factor, shape) for own, n, shape in parts]
    totals = native._ops().grace_vote_list(
        words=words,
        factor=arguments.factor_of(factor),
        **totals_of(shapes),
    )
    return shaped_like(totals, shapes)
