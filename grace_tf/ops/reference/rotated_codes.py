"""What the operations of `grace_tf.ops.codes.rotated_codes` mean, in plain TensorFlow."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from grace_tf.ops.reference.arithmetic import (
    INFINITY,
    MAGNITUDE,
    bits_of,
    flush,
    pad_to,
    quotient,
    sum_by_halves,
)
from grace_tf.ops.reference.lists import encode_each, scaled
from grace_tf.ops.reference.lloyd import CENTROIDS, resolution, thresholds
from grace_tf.ops.reference.random import random_words
from grace_tf.ops.reference.words import pack, unpack

LEAST = 2.0**-80  # a block without a larger magnitude is sent as zeros
LEAST_SCALE = 2.0**-95
_TARGET = 40 + 127  # blocks are multiplied so that their largest magnitude is 2^40 to 2^41
_MANTISSA = 23


def length_of(n: int, block: int) -> int:
    """The rotated elements of n: the last block grows to a power of two, 32 at least."""
    whole, rest = divmod(n, block)
    return whole * block + (max(32, 1 << (rest - 1).bit_length()) if rest else 0)


def _rows(x: tf.Tensor, block: int) -> list[tf.Tensor]:
    """x [length_of(n)] as the blocks of each size: [blocks, size]."""
    length = x.shape[0]
    whole = length // block * block
    parts = [x[:whole], x[whole:]]
    return [
        tf.reshape(part, [-1, size])
        for part, size in zip(parts, (block, length - whole))
        if part.shape[0]
    ]


def _signs(block: int, key) -> tf.Tensor:
    """The sign bits [block] of a stream."""
    return unpack(random_words(block // 32, key), block, 1)


def _flipped(x: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
    return tf.where(signs[: x.shape[1]] == 1, -x, x)


def _transformed(x: tf.Tensor) -> tf.Tensor:
    """The Walsh-Hadamard transform of each row, without a factor."""
    rows, size = x.shape
    distance = size // 2
    while distance:
        pairs = tf.reshape(x, [rows, size // (2 * distance), 2, distance])
        lower, upper = pairs[:, :, 0], pairs[:, :, 1]
        x = tf.reshape(tf.stack([lower + upper, lower - upper], 2), [rows, size])
        distance //= 2
    return x


def _sums(x: tf.Tensor) -> tf.Tensor:
    """Of each row 32 sums, of every 32nd element, one after another; these by halves."""
    groups = tf.transpose(tf.reshape(x, [x.shape[0], -1, 32]), [1, 0, 2])
    # A loop, since graph optimisers make one sum of a chain of additions, in an order of their own.
    # XLA cannot compile a loop that has nothing to do.
    folded = tf.foldl(tf.add, groups[1:], groups[0]) if groups.shape[0] > 1 else groups[0]
    return sum_by_halves(folded)


def _codes_of_steps(bits: int) -> np.ndarray:
    """The code of each number of steps; what is further out has the last one's."""
    limits = thresholds(bits)
    return np.searchsorted(limits, np.arange(max([0, *limits]) + 1), "right").astype(np.int32)


def _encode_rows(x: tf.Tensor, signs: tf.Tensor, bits: int, least: bool):
    """The words and scales of blocks [rows, size]."""
    size = x.shape[1]
    largest = tf.reduce_max(bits_of(x) & MAGNITUDE, axis=1)
    exponent = tf.bitwise.right_shift(largest, _MANTISSA)
    small, bad = tf.bitcast(largest, tf.float32) < LEAST, largest >= INFINITY
    usual = tf.where(small | bad, 127, exponent)
    factor = tf.bitcast(tf.bitwise.left_shift(_TARGET + 127 - usual, _MANTISSA), tf.float32)
    taken = tf.where((small | bad)[:, tf.newaxis], 0.0, x)
    y = _transformed(_flipped(taken * factor[:, tf.newaxis], signs))
    # A block of zeros has no norm; its numbers are not used.
    squares = tf.where(small | bad, 1.0, _sums(y * y))
    squares = tf.cast(squares, tf.float64)
    # The root is rounded to float32 before it divides: graph optimisers rewrite x / sqrt(y), which
    # changes last bits.
    norm = tf.cast(tf.sqrt(squares * (1 / size)), tf.float32)
    per_unit = quotient(tf.constant(float(resolution(bits))), norm)
    table = _codes_of_steps(bits)
    steps = tf.round(tf.abs(y) * per_unit[:, tf.newaxis])
    steps = tf.cast(tf.minimum(steps, float(len(table) - 1)), tf.int32)
    codes = tf.gather(tf.constant(table), steps)
    centroids = tf.gather(tf.constant(CENTROIDS[bits]), codes)
    shared = tf.cast(_sums(centroids * tf.abs(y)), tf.float64)
    if least:
        over, under = shared, tf.cast(_sums(centroids * centroids), tf.float64)
    else:
        over, under = squares, shared
    scales = tf.cast(over / (under * (tf.cast(factor, tf.float64) * size)), tf.float32)
    scales = tf.where(bad, float("nan"), tf.where(small, 0.0, scales))
    codes |= tf.where(y < 0, 1 << (bits - 1), 0)
    codes = tf.where((small | bad)[:, tf.newaxis], 0, codes)
    return pack(tf.reshape(codes, [-1]), bits), scales


def _encode(x: tf.Tensor, block: int, bits: int, least: bool, key):
    signs = _signs(block, key)
    rows = _rows(pad_to(x, length_of(x.shape[0], block)), block)
    parts = [_encode_rows(row, signs, bits, least) for row in rows]
    return tuple(tf.concat(part, 0) for part in zip(*parts))


def _rotated(words: tf.Tensor, scales: tf.Tensor, length: int, block: int, bits: int) -> tf.Tensor:
    """What codes [length] stand for in the rotated blocks."""
    codes = unpack(words, length, bits)
    centroids = tf.constant(CENTROIDS[bits])
    values = tf.gather(tf.concat([centroids, -centroids], 0), codes)
    scales = tf.where(scales < LEAST_SCALE, 0.0, scales)
    parts, at = [], 0
    for rows in _rows(values, block):
        own = scales[at : at + rows.shape[0], tf.newaxis]
        parts.append(tf.reshape(rows * own, [-1]))
        at += rows.shape[0]
    return tf.concat(parts, 0)


def _back(rotated: tf.Tensor, n: int, block: int, key) -> tf.Tensor:
    """The n elements whose blocks were rotated to these."""
    signs = _signs(block, key)
    parts = [_flipped(_transformed(rows), signs) for rows in _rows(rotated, block)]
    return flush(tf.concat([tf.reshape(part, [-1]) for part in parts], 0)[:n])


def encode_list(xs, residuals, multiplier: float, code, key):
    def encode_one(i, acc):
        return _encode(acc, code.block, code.bits, code.least, key.stream(i))

    def decode_one(i, parts):
        n = xs[i].shape.num_elements()
        rotated = _rotated(*parts, length_of(n, code.block), code.block, code.bits)
        return _back(rotated, n, code.block, key.stream(i))

    return encode_each(xs, residuals, multiplier, encode_one, decode_one)


def decode_list(words, scales, shapes, factor, code, key):
    sizes = [shape.num_elements() for shape in shapes]
    lengths = [length_of(n, code.block) for n in sizes]
    words = tf.split(words, [length // 32 * code.bits for length in lengths], axis=1)
    scales = tf.split(scales, [-(-n // code.block) for n in sizes], axis=1)
    totals = []
    for i, (n, length) in enumerate(zip(sizes, lengths)):

        def add(total, own, length=length):
            return total + _rotated(*own, length, code.block, code.bits)

        rotated = tf.foldl(add, (words[i], scales[i]), tf.zeros([length]))
        totals.append(tf.reshape(_back(rotated, n, code.block, key.stream(i)), shapes[i]))
    return scaled(totals, factor)
