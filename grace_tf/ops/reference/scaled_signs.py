"""What the operations of `grace_tf.ops.scaled_signs` mean, in plain TensorFlow.

Arguments arrive checked. `cells` is a `Cells` of that module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import one_tensor
from grace_tf.ops.reference.arithmetic import (
    SMALLEST_SCALE,
    flush,
    not_negative,
    pad_to,
    per_element,
    sum_by_halves,
)
from grace_tf.ops.reference.lists import encode_each, sum_each
from grace_tf.ops.reference.words import unpack

Tensors = Sequence[tf.Tensor]

_CHUNK = 2048  # elements
_ROWS = 32  # of a chunk of columns


def encode(xs: Tensors, residuals: Tensors | None, multiplier: float, cells):
    """(words, a tensor of levels for each side, residuals_out, finite) of a list."""
    shapes = [x.shape for x in xs]

    def encode_one(i, acc):
        return one_tensor.pack_signs(acc), *_levels(tf.reshape(acc, shapes[i]), cells)

    return encode_each(xs, residuals, multiplier, encode_one, _decoder(shapes, cells))


def decode(words: tf.Tensor, levels: Tensors, shapes: Sequence, factor: tf.Tensor, cells):
    """(totals, finite) of rows of words and levels."""
    counts = [cells.count(shape) for shape in shapes]
    lengths = [packed_words(shape.num_elements(), 1) for shape in shapes], *[counts] * len(levels)
    return sum_each([words, *levels], lengths, shapes, factor, _decoder(shapes, cells))


def _decoder(shapes: Sequence, cells) -> Callable:
    """decode(i, parts): what one worker's words and levels of a tensor stand for."""

    def decode_one(i, parts):
        words, *levels = parts
        low, high = (0.0 - levels[0], levels[0]) if cells.sides == 1 else levels
        low, high = (_each(level, shapes[i], cells) for level in (low, high))
        bits = unpack(words, shapes[i].num_elements(), 1)
        return tf.where(bits == tf.constant(1, tf.int32), high, low)

    return decode_one


def averages(xs: Tensors, momenta: Tensors, beta: float) -> list[tf.Tensor]:
    """m * beta + x * (1 - beta) of each."""
    return [m * beta + x * (1 - beta) for x, m in zip(xs, momenta)]


def _each(levels: tf.Tensor, shape: tf.TensorShape, cells) -> tf.Tensor:
    """The level of every element, from those of the cells."""
    n, columns = shape.num_elements(), cells.columns(shape)
    if columns > 1:
        return tf.tile(levels, [n // columns])
    return per_element(levels, n, cells.block or n)


def _levels(x: tf.Tensor, cells) -> list[tf.Tensor]:
    """The levels of one tensor: for each side float32 [cells]."""
    n, columns = x.shape.num_elements(), cells.columns(x.shape)
    if columns > 1:
        x = tf.reshape(x, [n // columns, columns])
        counts = np.full([columns], n // columns)
        add_up = _sum_columns
    else:
        block = min(cells.block or n, n)
        count = -(-n // block)
        # Zeros beyond the end would count as elements with bit 1.
        counts = np.minimum(block, n - block * np.arange(count))
        x = tf.reshape(x, [-1])

        def add_up(values):
            return _sum_rows(tf.reshape(pad_to(values, count * block), [count, block]))

    wide = tf.cast(flush(x), tf.float64)
    if cells.sides == 1:
        return [_level(add_up(tf.abs(wide)) * (1.0 / counts.astype(np.float64)))]
    up = not_negative(x)
    zeros, ones = tf.zeros_like(wide), tf.ones_like(wide)
    ups = add_up(tf.where(up, ones, zeros))  # whole numbers, exact in any order
    lows = tf.constant(counts, tf.float64) - ups
    low, high = add_up(tf.where(up, zeros, wide)), add_up(tf.where(up, wide, zeros))
    return [_level(low / tf.maximum(lows, 1.0)), _level(high / tf.maximum(ups, 1.0))]


def _level(mean: tf.Tensor) -> tf.Tensor:
    small = tf.abs(mean) < SMALLEST_SCALE
    return tf.cast(tf.where(small, tf.zeros_like(mean), mean), tf.float32)


def _sum_rows(x: tf.Tensor) -> tf.Tensor:
    """Sums each row of x [cells, block], chunk by chunk."""
    count, block = x.shape
    chunk = min(block, _CHUNK)
    chunks = -(-block // chunk)
    x = tf.pad(x, [[0, 0], [0, chunks * chunk - block]])
    sums = sum_by_halves(tf.reshape(x, [count * chunks, chunk]))
    return sum_by_halves(tf.reshape(sums, [count, chunks]))


def _sum_columns(x: tf.Tensor) -> tf.Tensor:
    """Sums each column of x [rows, columns], chunk by chunk."""
    rows, columns = x.shape
    chunks = math.ceil(rows / _ROWS)
    x = tf.pad(x, [[0, chunks * _ROWS - rows], [0, 0]])
    sums = sum_by_halves(tf.reshape(x, [chunks, _ROWS, columns]))
    return sum_by_halves(sums[tf.newaxis])[0]
