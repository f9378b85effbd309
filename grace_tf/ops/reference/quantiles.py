"""What the operations of `grace_tf.ops.codes.quantiles` mean, in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference.arithmetic import INFINITY, MAGNITUDE, SMALLEST_NORMAL, bits_of, flush
from grace_tf.ops.reference.lists import encode_each, sum_each
from grace_tf.ops.reference.words import pack, unpack

_SIDE = 1 << 15  # the number of the first negative bin; 0 is that of zeros


def id_bits(buckets: int) -> int:
    """The bits of an id."""
    return (buckets - 1).bit_length()


def _spread(counts: tf.Tensor, first, size) -> tf.Tensor:
    """The bucket ids of the bins of one sign; bin i holds counts[i] elements."""
    before = tf.cumsum(counts, exclusive=True)
    return first + before * size // tf.maximum(tf.reduce_sum(counts), 1)


def _bin_ids(numbers: tf.Tensor, counts: tf.Tensor, buckets: int, span: int) -> tf.Tensor:
    """The ids of bins with ascending numbers; of one without elements it means nothing."""
    positive = tf.where((numbers > 0) & (numbers < _SIDE), counts, 0)
    negative = tf.where(numbers >= _SIDE, counts, 0)
    positives, negatives = tf.reduce_sum(positive), tf.reduce_sum(negative)
    zeros = tf.cast(tf.reduce_any((numbers == 0) & (counts > 0)), tf.int64)
    every, runs = tf.maximum(positives + negatives, 1), buckets // span
    others = (zeros + tf.minimum(positives, 1) + span - 1) // span
    share = (2 * runs * negatives + every) // (2 * every)
    size = span * tf.minimum(tf.maximum(share, tf.minimum(negatives, 1)), runs - others)
    above = _spread(positive, size + zeros, buckets - size - zeros)
    ids = tf.where(numbers > 0, above, size)
    ids = tf.where(numbers >= _SIDE, _spread(negative, 0, size), ids)
    return tf.minimum(ids, buckets - 1)


def _means(counts, sums, exponents, ids, buckets: int) -> tf.Tensor:
    """The mean of each bucket, of parts with these counts, signed sums of significands, and so on.

    All of them are int64, but the ids.
    """
    exponents = tf.where(counts > 0, exponents, 0)
    largest = tf.maximum(tf.math.unsorted_segment_max(exponents, ids, buckets), 0)
    beneath = tf.clip_by_value(tf.gather(largest, ids) - exponents, 0, 63)
    parts = tf.sign(sums) * tf.bitwise.right_shift(tf.abs(sums) * 128, beneath)
    total = tf.math.unsorted_segment_sum(parts, ids, buckets)
    count = tf.math.unsorted_segment_sum(counts, ids, buckets)
    mean = tf.cast(total, tf.float64) / tf.cast(tf.maximum(count, 1), tf.float64)
    # 2^(largest - 157)
    power = tf.bitcast(tf.bitwise.left_shift(largest + 866, tf.constant(52, tf.int64)), tf.float64)
    return 0.0 + tf.cast(mean * power, tf.float32)


def _numbers(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The bits of x as it counts, 0 for zeros, and its 24-bit significands with their signs."""
    bits = bits_of(x)
    magnitudes = tf.minimum(bits & MAGNITUDE, INFINITY - 1)
    magnitudes = tf.where(magnitudes >= SMALLEST_NORMAL, magnitudes, 0)
    significands = tf.where(magnitudes > 0, magnitudes & 0x7FFFFF | 0x800000, 0)
    return magnitudes, tf.cast(tf.where(bits < 0, -significands, significands), tf.int64)


def means_of(x: tf.Tensor, ids: tf.Tensor, buckets: int) -> tf.Tensor:
    """The means float32 [buckets] of x [n] with these ids; each element is truncated by itself."""
    magnitudes, significands = _numbers(x)
    exponents = tf.cast(tf.bitwise.right_shift(magnitudes, 23), tf.int64)
    return _means(tf.ones_like(exponents), significands, exponents, ids, buckets)


def encode(x: tf.Tensor, buckets: int, span: int) -> tuple[tf.Tensor, tf.Tensor]:
    """(ids int32 [n], means float32 [buckets]) of float32 x [n]."""
    magnitudes, significands = _numbers(x)
    side = tf.where(significands < 0, _SIDE, 0)
    numbers = tf.bitwise.right_shift(magnitudes, 16) + side
    order = tf.argsort(numbers, stable=True)
    numbers, n = tf.gather(numbers, order), x.shape[0]
    # Bins in the order of their numbers; there are at most as many as elements.
    bins = tf.cumsum(tf.cast(numbers != tf.concat([numbers[:1], numbers[:-1]], 0), tf.int32))
    significands = tf.gather(significands, order)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(significands), bins, n)
    sums = tf.math.unsorted_segment_sum(significands, bins, n)
    found = tf.cast(tf.math.unsorted_segment_max(numbers, bins, n), tf.int64)
    ids = _bin_ids(found, counts, buckets, span)
    exponents = tf.bitwise.right_shift(found, 7) & 0xFF
    means = _means(counts, sums, exponents, ids, buckets)
    own = tf.cast(tf.gather(ids, bins), tf.int32)
    return tf.scatter_nd(order[:, tf.newaxis], own, [n]), means


def values(ids: tf.Tensor, means: tf.Tensor) -> tf.Tensor:
    """What ids stand for; one beyond the last bucket counts as the last."""
    return flush(tf.gather(means, tf.minimum(ids, means.shape[0] - 1)))


def encode_list(xs, residuals, multiplier: float, buckets: int, span: int):
    bits = id_bits(buckets)

    def encode_one(i, acc):
        ids, means = encode(acc, buckets, span)
        return pack(ids, bits), means

    sizes = [x.shape.num_elements() for x in xs]
    return encode_each(xs, residuals, multiplier, encode_one, _decoder(sizes, bits))


def decode_list(words, means, shapes, factor: float, buckets: int):
    sizes, bits = [shape.num_elements() for shape in shapes], id_bits(buckets)
    lengths = [packed_words(n, bits) for n in sizes], [buckets] * len(sizes)
    return sum_each([words, means], lengths, shapes, factor, _decoder(sizes, bits))


def _decoder(sizes: Sequence[int], bits: int) -> Callable:
    return lambda i, parts: values(unpack(parts[0], sizes[i], bits), parts[1])
