"""What the operations of `grace_tf.ops.byte_codes` mean, in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.reference import one_tensor
from grace_tf.ops.reference.arithmetic import (
    MAGNITUDE,
    SMALLEST_SCALE,
    bits_of,
    flush,
    per_element,
    quotient,
)
from grace_tf.ops.reference.lists import encode_each, sum_each
from grace_tf.ops.reference.random import coarse_words
from grace_tf.ops.reference.words import pack_fields, unpack_fields

_POWER_OFFSET = 32


def _lines() -> tuple[np.ndarray, np.ndarray]:
    """The slopes, over four times a number, and starts of the lines through the tree's numbers."""
    powers, tens = 2.0 ** np.arange(7), np.array([10.0**j for j in range(7, 0, -1)])
    slopes, starts = powers * tens / 36, (8 * powers - 9) / 9
    slopes[0], starts[0] = 0.25e6, 0
    return slopes.astype(np.float32), starts.astype(np.float32)


def _numbers() -> np.ndarray:
    """The tree's numbers in order of their codes, 0 to 127."""
    powers, tens = 2.0 ** np.arange(7), np.array([10.0**j for j in range(7, 0, -1)])
    units = (1 / (powers * tens)).astype(np.float32)
    codes = np.arange(1, 128)
    k = np.array([int(c).bit_length() - 1 for c in codes])
    counts = (9 * (codes + 1) - 8 * 2**k).astype(np.float32)
    return np.concatenate([[np.float32(0)], counts * units[k]])


_SLOPES, _STARTS = _lines()
NUMBERS = _numbers()


def _sign_byte(x: tf.Tensor) -> tf.Tensor:
    return tf.where(bits_of(x) < 0, 0x80, 0)


def _signed(codes: tf.Tensor, magnitudes: tf.Tensor) -> tf.Tensor:
    """Magnitudes with the signs of their codes; zero has none."""
    return 0.0 + tf.where(codes & 0x80 != 0, -magnitudes, magnitudes)


def _tree_codes(x: tf.Tensor, scales: tf.Tensor, block: int) -> tf.Tensor:
    four = tf.constant(4, tf.float32)
    inverse = tf.where(scales < SMALLEST_SCALE, 0.0, quotient(four, scales))
    a = flush(tf.abs(x)) * per_element(inverse, x.shape[0], block)
    code = a * _SLOPES[0]
    for slope, start in zip(_SLOPES[1:], _STARTS[1:]):
        line = a * slope + start
        code = tf.where(line < code, line, code)
    # Written as a comparison so that NaN, which compares false, becomes the largest code.
    code = tf.round(tf.where(code < 127.0, code, 127.0))
    return tf.cast(code, tf.int32) | _sign_byte(x)


def _tree_values(codes: tf.Tensor, scales: tf.Tensor, block: int) -> tf.Tensor:
    scales = tf.where(scales < SMALLEST_SCALE, 0.0, scales)
    magnitudes = tf.gather(tf.constant(NUMBERS), codes & 0x7F)
    return _signed(codes, flush(magnitudes * per_element(scales, codes.shape[0], block)))


def _power_codes(x: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    random = tf.bitwise.right_shift(words, 9) & 0x7FFFFF
    exponents = tf.bitwise.right_shift((bits_of(x) & MAGNITUDE) + random, 23) & 0x1FF
    return tf.clip_by_value(exponents - _POWER_OFFSET, 0, 127) | _sign_byte(x)


def _power_values(codes: tf.Tensor) -> tf.Tensor:
    magnitudes = codes & 0x7F
    powers = tf.bitcast(tf.bitwise.left_shift(magnitudes + _POWER_OFFSET, 23), tf.float32)
    return _signed(codes, tf.where(magnitudes > 0, powers, 0.0))


def _tree(sizes: Sequence[int], block: int | None):
    """How tensors of these sizes are encoded and decoded, one by one."""
    blocks = [block or n for n in sizes]

    def encode(i, acc):
        scales = one_tensor.block_scales(acc, blocks[i], "max")
        return pack_fields(_tree_codes(acc, scales, blocks[i]), 8), scales

    def decode(i, parts):
        codes, scales = parts
        return _tree_values(unpack_fields(codes, 8, sizes[i]), scales, blocks[i])

    return encode, decode


def encode_tree(xs, residuals, multiplier: float, block: int | None):
    sizes = [x.shape.num_elements() for x in xs]
    return encode_each(xs, residuals, multiplier, *_tree(sizes, block))


def decode_tree(codes, scales, shapes, factor: float, block: int | None):
    sizes = [shape.num_elements() for shape in shapes]
    lengths = [-(-n // 4) for n in sizes], [-(-n // (block or n)) for n in sizes]
    _, decode = _tree(sizes, block)
    return sum_each([codes, scales], lengths, shapes, factor, decode)


def encode_powers(xs, residuals, multiplier: float, key: ListKey):
    def encode(i, acc):
        words = coarse_words(acc.shape[0], key.stream(i))
        return (pack_fields(_power_codes(acc, words), 8),)

    def decode(i, parts):
        return _power_values(unpack_fields(*parts, 8, xs[i].shape.num_elements()))

    return encode_each(xs, residuals, multiplier, encode, decode)


def decode_powers(codes, shapes, factor: float):
    sizes = [shape.num_elements() for shape in shapes]
    lengths = [-(-n // 4) for n in sizes]

    def decode(i, parts):
        return _power_values(unpack_fields(*parts, 8, sizes[i]))

    return sum_each([codes], [lengths], shapes, factor, decode)
