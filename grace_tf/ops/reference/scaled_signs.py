"""What the operations of `grace_tf.ops.scaled_signs` mean, in plain TensorFlow.

Arguments arrive checked. `cells` is a `Cells` of that module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from grace_tf.ops import reference
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference.low_rank import accs as accs

Tensors = Sequence[tf.Tensor]

_CHUNK = 2048  # elements
_ROWS = 32  # of a chunk of columns


def encode(xs: Tensors, cells) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """(words, levels) of a list, those of its tensors end to end."""
    words = [reference.pack_signs(tf.reshape(x, [-1])) for x in xs]
    levels = zip(*[_levels(x, cells) for x in xs])
    return tf.concat(words, 0), [tf.concat(each, 0) for each in levels]


def decode(words: tf.Tensor, levels: Tensors, shaped: Sequence, cells) -> list[tf.Tensor]:
    """The sums over workers of what rows of words and levels stand for; tensors or shapes give
    the shapes.
    """
    shapes = [tf.TensorShape(getattr(each, "shape", each)) for each in shaped]
    parts = tf.split(words, [packed_words(s.num_elements(), 1) for s in shapes], 1)
    cut = [tf.split(each, [cells.count(s) for s in shapes], 1) for each in levels]
    return [_sum(part, own, s, cells) for part, own, s in zip(parts, zip(*cut), shapes)]


def averages(xs: Tensors, momenta: Tensors, beta: float) -> list[tf.Tensor]:
    """m * beta + x * (1 - beta) of each."""
    return [m * beta + x * (1 - beta) for x, m in zip(xs, momenta)]


def _sum(words: tf.Tensor, levels: Tensors, shape: tf.TensorShape, cells) -> tf.Tensor:
    n = shape.num_elements()
    low = 0.0 - levels[0] if cells.sides == 1 else levels[0]
    up = tf.constant(1, tf.int32)

    def add(total, own):
        bits, low, high = own
        low, high = (_each(level, shape, cells) for level in (low, high))
        return reference._flush(total + tf.where(reference._unpack(bits, n, 1) == up, high, low))

    total = tf.foldl(add, (words, low, levels[-1]), tf.zeros([n]))
    return tf.reshape(total, shape)


def _each(levels: tf.Tensor, shape: tf.TensorShape, cells) -> tf.Tensor:
    """The level of every element, from those of the cells."""
    n, columns = shape.num_elements(), cells.columns(shape)
    if columns > 1:
        return tf.tile(levels, [n // columns])
    return reference._per_element(levels, n, cells.block or n)


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
            return _sum_rows(tf.reshape(reference._pad_to(values, count * block), [count, block]))

    wide = tf.cast(reference._flush(x), tf.float64)
    if cells.sides == 1:
        return [_level(add_up(tf.abs(wide)) * (1.0 / counts.astype(np.float64)))]
    up = reference._not_negative(x)
    zeros, ones = tf.zeros_like(wide), tf.ones_like(wide)
    ups = add_up(tf.where(up, ones, zeros))  # whole numbers, exact in any order
    lows = tf.constant(counts, tf.float64) - ups
    low, high = add_up(tf.where(up, zeros, wide)), add_up(tf.where(up, wide, zeros))
    return [_level(low / tf.maximum(lows, 1.0)), _level(high / tf.maximum(ups, 1.0))]


def _level(mean: tf.Tensor) -> tf.Tensor:
    small = tf.abs(mean) < reference.SMALLEST_SCALE
    return tf.cast(tf.where(small, tf.zeros_like(mean), mean), tf.float32)


def _halves(x: tf.Tensor) -> tf.Tensor:
    """Sums [cells, n, ...] over n by halves, filled up with zeros to a power of two."""
    n = x.shape[1]
    missing = (1 << (n - 1).bit_length()) - n
    x = tf.pad(x, [[0, 0], [0, missing]] + [[0, 0]] * (len(x.shape) - 2)) if missing else x
    while x.shape[1] > 1:
        lower, upper = tf.split(x, 2, axis=1)
        x = lower + upper
    return tf.squeeze(x, 1)


def _sum_rows(x: tf.Tensor) -> tf.Tensor:
    """Sums each row of x [cells, block], chunk by chunk."""
    count, block = x.shape
    chunk = min(block, _CHUNK)
    chunks = -(-block // chunk)
    x = tf.pad(x, [[0, 0], [0, chunks * chunk - block]])
    sums = _halves(tf.reshape(x, [count * chunks, chunk]))
    return _halves(tf.reshape(sums, [count, chunks]))


def _sum_columns(x: tf.Tensor) -> tf.Tensor:
    """Sums each column of x [rows, columns], chunk by chunk."""
    rows, columns = x.shape
    chunks = math.ceil(rows / _ROWS)
    x = tf.pad(x, [[0, chunks * _ROWS - rows], [0, 0]])
    sums = _halves(tf.reshape(x, [chunks, _ROWS, columns]))
    return _halves(sums[tf.newaxis])[0]
