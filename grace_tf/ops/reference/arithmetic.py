"""Arithmetic on float32 that gives the same bits on every machine.

Comparisons of magnitudes or signs work on the bits as integers. A denormal (|x| < 2^-126) counts as
zero in all arithmetic, so results do not depend on how a machine treats denormals. Sums have a
fixed order.
"""

from __future__ import annotations

import tensorflow as tf

MAGNITUDE = 0x7FFFFFFF
INFINITY = 0x7F800000
SMALLEST_NORMAL = 0x00800000
SMALLEST_SCALE = 2.0**-110
_SIGN = -(2**31)


def bits_of(x: tf.Tensor) -> tf.Tensor:
    """The bits of float32 x as int32."""
    return tf.bitcast(x, tf.int32)


def flush(x: tf.Tensor) -> tf.Tensor:
    """x with every denormal replaced by +0."""
    return tf.where(bits_of(x) & MAGNITUDE < SMALLEST_NORMAL, 0.0, x)


def not_negative(x: tf.Tensor) -> tf.Tensor:
    """Whether x >= 0, as bool: true for zero of either sign, false for NaN."""
    bits = bits_of(x)
    return ((bits >= 0) & (bits <= INFINITY)) | (bits == _SIGN)


def quotient(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The correctly rounded float32 x / y.

    Graph optimisers turn a division by or of a constant into a product with a rounded reciprocal.
    In float64 that error stays below what a quotient of float32 keeps from a rounding boundary.
    """
    return tf.cast(tf.cast(x, tf.float64) / tf.cast(y, tf.float64), tf.float32)


def pad_to(x: tf.Tensor, length: int) -> tf.Tensor:
    """x [n, ...], its first axis filled up with zeros."""
    missing = length - x.shape[0]
    return tf.pad(x, [[0, missing]] + [[0, 0]] * (x.shape.rank - 1)) if missing else x


def to_power_of_two(x: tf.Tensor) -> tf.Tensor:
    """x [m, n, ...], its second axis filled up with zeros to a power of two."""
    n = x.shape[1]
    missing = (1 << (n - 1).bit_length()) - n
    return tf.pad(x, [[0, 0], [0, missing]] + [[0, 0]] * (x.shape.rank - 2)) if missing else x


def pairwise_sum(rows: tf.Tensor) -> tf.Tensor:
    """Sums each row of [m, n] over adjacent pairs, then pairs of pairs, and so on."""
    rows = to_power_of_two(rows)
    while rows.shape[1] > 1:
        rows = rows[:, 0::2] + rows[:, 1::2]
    return rows[:, 0]


def sum_by_halves(x: tf.Tensor) -> tf.Tensor:
    """Sums x [m, n, ...] over n: the upper half onto the lower, and so on."""
    x = to_power_of_two(x)
    while x.shape[1] > 1:
        lower, upper = tf.split(x, 2, axis=1)
        x = lower + upper
    return tf.squeeze(x, 1)


def per_element(per_block: tf.Tensor, n: int, block: int) -> tf.Tensor:
    """Repeats the value of each block over its elements: [ceil(n / block)] to [n]."""
    block = min(block, n)
    blocks = per_block.shape[0]
    return tf.reshape(tf.broadcast_to(per_block[:, tf.newaxis], [blocks, block]), [-1])[:n]
