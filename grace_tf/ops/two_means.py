"""The elements that reach furthest to either side of zero, and one mean for each side; on lists.

Of P positive and N negative elements, a denormal counting as neither, k are sent, or all P + N if
they are fewer: floor(k P / (P + N) + 1/2) of the positive ones and the rest of the negative ones.
They are the largest of their side in magnitude, of equal ones those of lower index. The mean of a
side is the sum of what is sent of it, over the number of these: in float64, the k entries in order
of index, with 0 for those of the other side, filled up with zeros to a power of two and added over
adjacent pairs, then pairs of pairs; the quotient is rounded to float32. An empty side has mean 0.

The encoder works on acc_i = xs_i * multiplier + residuals_i, as in `selection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from grace_tf.ops import dispatch, index_sets
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import ResidualsOut, Tensors, decoded, encoded, totals_of
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import two_means as reference


class TwoMeans(NamedTuple):
    """What `two_means_list` gives."""

    means: tf.Tensor
    """float32 [2 N]: of each tensor the positive side's mean, then the negative side's."""
    signs: tf.Tensor
    """int32 [sum of packed_words(k, 1)]: bit j of a tensor is set where its entry j is positive."""
    indices: tf.Tensor
    """int32 [sum of ks]: a tensor's indices ascend; zeros follow after as many as its count."""
    counts: tf.Tensor
    """int32 [N], how many of the entries count."""
    residuals_out: ResidualsOut
    """acc minus what stands in its place, each of its tensor's shape; None without residuals."""
    finite: tf.Tensor
    """A bool scalar: whether every element of every acc is finite."""


def two_means_list(
    xs: Tensors, residuals: Tensors | None, multiplier: float, ks: Sequence[int]
) -> TwoMeans:
    """The two means of each acc, from at most its k elements."""
    xs, residuals = arguments.encoder_lists(xs, residuals)
    arguments.check_counts(ks, [x.shape for x in xs])
    if not dispatch.runs_here(xs):
        return TwoMeans(*reference.encode_list(xs, residuals, multiplier, ks))
    outputs = native._ops().grace_two_means_list(
        xs=xs, residuals=residuals, multiplier=multiplier, ks=list(ks)
    )
    lengths = [2 * len(ks), _sign_words(ks), sum(ks), len(ks)]
    return TwoMeans(*encoded(outputs, lengths, residuals))


def scatter_means_list(
    means: tf.Tensor,
    signs: tf.Tensor,
    words: tf.Tensor,
    counts: tf.Tensor,
    ks: Sequence[int],
    shapes: Sequence,
    factor: float | tf.Tensor,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sum of what W workers' two means stand for, times factor: (totals, finite).

    Every part has a row for each worker; words are the indices as `index_sets.pack_list` writes
    them. As in `index_sets.scatter_list`, indices that count must be inside and ascend.
    """
    factor = arguments.factor_of(factor)
    shapes = arguments.shape_list(shapes)
    arguments.check_counts(ks, shapes)
    lengths = [shape.num_elements() for shape in shapes]
    index_words = sum(index_sets.index_words(n, k) for n, k in zip(lengths, ks))
    parts = arguments.rows(
        means=(means, tf.float32, 2 * len(ks)),
        signs=(signs, tf.int32, _sign_words(ks)),
        words=(words, tf.int32, index_words),
        counts=(counts, tf.int32, len(ks)),
    )
    if not dispatch.runs_here(parts):
        return reference.scatter_list(*parts, ks, shapes, factor)
    means, signs, words, counts = parts
    outputs = native._ops().grace_scatter_means_list(
        means=means,
        signs=signs,
        words=words,
        counts=counts,
        factor=factor,
        ks=list(ks),
        **totals_of(shapes),
    )
    return decoded(outputs, shapes)


def _sign_words(ks: Sequence[int]) -> int:
    return sum(packed_words(k, 1) for k in ks)
