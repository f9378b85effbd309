"""Buckets of about equally many elements, and one mean for each, on whole lists of tensors.

A bucket holds elements of one sign, or zeros, for which denormals count. What is not finite counts
as the largest finite number of its sign. Elements of one sign whose magnitudes agree in their upper
16 bits, so to less than 1/128, make a bin, and a bin is never divided. With N negative and P
positive elements and q buckets, in q / span runs of `span`:

    q_N = span * floor((q / span) * N / (N + P) + 1/2), at least `span` where there are negative
          elements, and less as far as zeros and positive elements need one bucket each
    id  = floor(b * q_N / N) in a negative bin, b being how many negative elements lie in bins of
          less magnitude; q_N of zeros; q_N + z + floor(b * (q - q_N - z) / P) in a positive bin,
          where z is 1 if there are zeros, else 0

So the ids of each sign ascend with the magnitude, and no run holds elements of both.

The mean of a bucket is exact up to a truncation towards zero, whatever the order of the elements:
with E the largest biased exponent in it, its bins contribute floor(2^(7 + e - E) * s), s being the
sum of a bin's 24-bit significands and e its exponent; the sum of these integers, as a float64, is
divided by the number of elements and multiplied by 2^(E - 157), and rounded to float32. A bucket
without elements has the mean 0.

Ids are bit planes of ceil(log2 q) bits, as `ops.quantize` writes its codes. The encoder works on
acc_i = xs_i * multiplier + residuals_i, as in `selection`.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import ResidualsOut, Tensors, decoded, encoded, totals_of
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import quantiles as reference
from grace_tf.ops.reference.quantiles import id_bits


def id_words(n: int, buckets: int) -> int:
    """How many words n ids take."""
    return packed_words(n, id_bits(buckets))


def encode_list(
    xs: Tensors, residuals: Tensors | None, multiplier: float, buckets: int, span: int = 1
) -> tuple[tf.Tensor, tf.Tensor, ResidualsOut, tf.Tensor]:
    """The buckets of each acc: (words, means, residuals_out, finite).

    words is int32 [sum of `id_words`] and means float32 [N * buckets]; residuals_out is acc minus
    the means.
    """
    xs, residuals = arguments.encoder_lists(xs, residuals)
    _check_buckets(buckets, span)
    if not dispatch.runs_here(xs):
        return reference.encode_list(xs, residuals, multiplier, buckets, span)
    outputs = native._ops().grace_encode_quantiles_list(
        xs=xs, residuals=residuals, multiplier=multiplier, buckets=buckets, span=span
    )
    lengths = [_words([x.shape for x in xs], buckets), len(xs) * buckets]
    return encoded(outputs, lengths, residuals)


def decode_list(
    words: tf.Tensor, means: tf.Tensor, shapes: Sequence, factor: float, buckets: int
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sum over W workers of the means that their ids name, times factor: (totals, finite).

    words and means have a row for each worker. The sum runs from zero, in their order; a denormal
    mean or sum becomes 0. An id beyond the last bucket counts as the last.
    """
    _check_buckets(buckets, 1)
    shapes = arguments.shape_list(shapes)
    words, means = arguments.rows(
        words=(words, tf.int32, _words(shapes, buckets)),
        means=(means, tf.float32, len(shapes) * buckets),
    )
    if not dispatch.runs_here([words, means]):
        return reference.decode_list(words, means, shapes, factor, buckets)
    outputs = native._ops().grace_decode_quantiles_list(
        words=words, means=means, factor=factor, buckets=buckets, **totals_of(shapes)
    )
    return decoded(outputs, shapes)


def _check_buckets(buckets: int, span: int) -> None:
    least = 3 if span == 1 else 2 * span
    if span < 1 or not least <= buckets <= 256 or buckets % span:
        raise ValueError(
            f"There are from {least} to 256 buckets, whole runs of {span}, not {buckets}."
        )


def _words(shapes: Sequence[tf.TensorShape], buckets: int) -> int:
    return sum(id_words(shape.num_elements(), buckets) for shape in shapes)
