"""What the operations of `grace_tf.ops.codes.ternary` mean, in plain TensorFlow."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.ops.reference.arithmetic import (
    MAGNITUDE,
    SMALLEST_SCALE,
    bits_of,
    flush,
    pad_to,
    pairwise_sum,
    quotient,
)
from grace_tf.ops.reference.random import coarse_uniform

_WORDS = 16  # of a group
_CHUNK = 2048
_LANES = 16
_SIXTH = 2**32 // 6
# The variance may be off by some 2^-50 of the mean square.
_NEGLIGIBLE = 2.0**-32


def digits_of(bits: int | None) -> int:
    """How many digits a word holds."""
    return 20 if bits is None else 32 // bits


def _sum(x: tf.Tensor) -> tf.Tensor:
    """The sum of float64 x [n] in its own order."""
    chunks = -(-x.shape[0] // _CHUNK)
    rows = tf.reshape(pad_to(x, chunks * _CHUNK), [chunks, _CHUNK // _LANES, _LANES])
    lanes = tf.foldl(tf.add, tf.transpose(rows, [1, 0, 2]), tf.zeros([chunks, _LANES], x.dtype))
    return pairwise_sum(pairwise_sum(lanes)[tf.newaxis])[0]


def scale(x: tf.Tensor, clip: float) -> tf.Tensor:
    x = tf.reshape(x, [-1])
    largest = tf.bitcast(tf.reduce_max(bits_of(x) & MAGNITUDE), tf.float32)
    if clip:
        exact, each = tf.cast(flush(x), tf.float64), 1.0 / x.shape[0]
        mean, square = _sum(exact) * each, _sum(exact * exact) * each
        variance = square - mean * mean
        bound = tf.cast(tf.sqrt(tf.maximum(variance, tf.zeros_like(variance))) * clip, tf.float32)
        clipped = (variance > square * _NEGLIGIBLE) & (bound < largest)
        largest = tf.where(clipped, bound, largest)
    return tf.where(largest < SMALLEST_SCALE, 0.0, largest)


def _in_groups(x: tf.Tensor, digits: int) -> tf.Tensor:
    """x [n] in rows, one for each word, of its digits."""
    n = x.shape[0]
    group = _WORDS * digits
    whole = n // group
    rows = tf.reshape(x[: whole * group], [whole, digits, _WORDS])
    rows = tf.reshape(tf.transpose(rows, [0, 2, 1]), [whole * _WORDS, digits])
    rest = n - whole * group
    if not rest:
        return rows
    words = -(-rest // digits)
    last = tf.reshape(pad_to(x[whole * group :], words * digits), [digits, words])
    return tf.concat([rows, tf.transpose(last)], 0)


def _out_of_groups(rows: tf.Tensor, n: int) -> tf.Tensor:
    """The inverse of `_in_groups`, to n elements."""
    words, digits = rows.shape
    whole = n // (_WORDS * digits)
    x = tf.reshape(rows[: whole * _WORDS], [whole, _WORDS, digits])
    last = tf.transpose(rows[whole * _WORDS : words])
    x = tf.concat([tf.reshape(tf.transpose(x, [0, 2, 1]), [-1]), tf.reshape(last, [-1])], 0)
    return x[:n]


def _worths(bits: int | None) -> list[int]:
    """What the digits of a word are worth in its number."""
    digits = digits_of(bits)
    return [3 ** (digits - 1 - d) if bits is None else 2 ** (bits * d) for d in range(digits)]


def encode(x: tf.Tensor, own: tf.Tensor, scale: tf.Tensor, bits: int | None, key) -> tf.Tensor:
    x = tf.reshape(x, [-1])
    inverse = tf.where(scale < SMALLEST_SCALE, 0.0, flush(quotient(tf.ones([]), scale)))
    size = flush(tf.abs(x))
    # Comparisons are false for NaN.
    size = tf.where(size < own, size, own)
    digit = tf.where(size * inverse + coarse_uniform(x.shape[0], key) < 1.0, 0, 1)
    digit = tf.where(bits_of(x) < 0, -digit, digit)
    rows = tf.cast(_in_groups(digit, digits_of(bits)), tf.int64)
    numbers = tf.reduce_sum(rows * tf.constant(_worths(bits), tf.int64), 1)
    if bits is None:
        # The nearest integer is exact in float64, and no number lies in the middle of two.
        numbers = tf.round(tf.cast(numbers, tf.float64) * (2.0**32 / 3**20))
    return tf.cast(numbers, tf.int32)


def _digits(words: tf.Tensor, bits: int | None) -> tf.Tensor:
    """int32 words [w] to digits [w, D]."""
    if bits is not None:
        half = 1 << (bits - 1)
        bias = sum(half * worth for worth in _worths(bits))
        # Fields are not negative where each has half of what it can hold added to it.
        words = tf.cast(words, tf.int64) + bias
        shifts = tf.constant([bits * d for d in range(digits_of(bits))], tf.int64)
        fields = tf.bitwise.right_shift(words[:, tf.newaxis], shifts) & (2 * half - 1)
        return tf.cast(fields - half, tf.int32)
    digits = []
    for _ in range(digits_of(bits)):
        above = tf.cast(words > _SIXTH, tf.int32)
        digits.append(above - tf.cast(words < -_SIXTH, tf.int32))
        words = words * 3  # without what does not fit
    return tf.stack(digits, 1)


def decode(words: tf.Tensor, scale: tf.Tensor, n: int, bits: int | None) -> tf.Tensor:
    """What the words of one worker stand for, with a scale [1]."""
    worth = tf.where(scale < SMALLEST_SCALE, 0.0, scale)
    return tf.cast(_out_of_groups(_digits(words, bits), n), tf.float32) * worth
