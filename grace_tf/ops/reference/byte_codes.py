"""What the operations of `grace_tf.ops.byte_codes` mean, in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from grace_tf.ops import reference
from grace_tf.ops.backend.arguments import Key
from grace_tf.ops.reference import _bits, _flush, _pad_to, _per_element, _quotient
from grace_tf.ops.reference.low_rank import accs

_MAGNITUDE = 0x7FFFFFFF
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


def _pack(codes: tf.Tensor) -> tf.Tensor:
    """int32 codes [n] of a byte each to words, the first in the lowest byte."""
    fours = tf.reshape(_pad_to(codes, -(-codes.shape[0] // 4) * 4), [-1, 4])
    return tf.reduce_sum(tf.bitwise.left_shift(fours, [0, 8, 16, 24]), axis=1)


def _unpack(words: tf.Tensor, n: int) -> tf.Tensor:
    codes = tf.bitwise.right_shift(words[:, tf.newaxis], [0, 8, 16, 24]) & 0xFF
    return tf.reshape(codes, [-1])[:n]


def _sign_byte(x: tf.Tensor) -> tf.Tensor:
    return tf.where(_bits(x) < 0, 0x80, 0)


def _signed(codes: tf.Tensor, magnitudes: tf.Tensor) -> tf.Tensor:
    """Magnitudes with the signs of their codes; zero has none."""
    return 0.0 + tf.where(codes & 0x80 != 0, -magnitudes, magnitudes)


def _tree_codes(x: tf.Tensor, scales: tf.Tensor, block: int) -> tf.Tensor:
    four = tf.constant(4, tf.float32)
    inverse = tf.where(scales < reference.SMALLEST_SCALE, 0.0, _quotient(four, scales))
    a = _flush(tf.abs(x)) * _per_element(inverse, x.shape[0], block)
    code = a * _SLOPES[0]
    for slope, start in zip(_SLOPES[1:], _STARTS[1:]):
        line = a * slope + start
        code = tf.where(line < code, line, code)
    # Written as a comparison so that NaN, which compares false, becomes the largest code.
    code = tf.round(tf.where(code < 127.0, code, 127.0))
    return tf.cast(code, tf.int32) | _sign_byte(x)


def _tree_values(codes: tf.Tensor, scales: tf.Tensor, block: int) -> tf.Tensor:
    scales = tf.where(scales < reference.SMALLEST_SCALE, 0.0, scales)
    magnitudes = tf.gather(tf.constant(NUMBERS), codes & 0x7F)
    return _signed(codes, _flush(magnitudes * _per_element(scales, codes.shape[0], block)))


def _power_codes(x: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    random = tf.bitwise.right_shift(words, 9) & 0x7FFFFF
    exponents = tf.bitwise.right_shift((_bits(x) & _MAGNITUDE) + random, 23) & 0x1FF
    return tf.clip_by_value(exponents - _POWER_OFFSET, 0, 127) | _sign_byte(x)


def _power_values(codes: tf.Tensor) -> tf.Tensor:
    magnitudes = codes & 0x7F
    powers = tf.bitcast(tf.bitwise.left_shift(magnitudes + _POWER_OFFSET, 23), tf.float32)
    return _signed(codes, tf.where(magnitudes > 0, powers, 0.0))


def _encoded(xs, residuals, multiplier, encode, decode):
    """(codes, what is kept or None, finite); encode(i, acc) gives the codes of tensor i."""
    whole = accs(xs, residuals, multiplier)
    flat = [tf.reshape(acc, [-1]) for acc in whole]
    codes = [encode(i, acc) for i, acc in enumerate(flat)]
    residuals_out = None
    if residuals is not None:
        residuals_out = [
            tf.reshape(acc - decode(i, own), x.shape)
            for i, (acc, own, x) in enumerate(zip(flat, codes, xs))
        ]
    words = tf.concat([_pack(own) for own in codes], 0)
    return words, residuals_out, reference.all_finite(whole)


def encode_tree(xs, residuals, multiplier: float, block: int | None):
    scales = [
        reference.block_scales(tf.reshape(acc, [-1]), block or acc.shape.num_elements(), "max")
        for acc in accs(xs, residuals, multiplier)
    ]
    blocks = [block or x.shape.num_elements() for x in xs]
    words, residuals_out, finite = _encoded(
        xs,
        residuals,
        multiplier,
        lambda i, acc: _tree_codes(acc, scales[i], blocks[i]),
        lambda i, codes: _tree_values(codes, scales[i], blocks[i]),
    )
    return words, tf.concat(scales, 0), residuals_out, finite


def encode_powers(xs, residuals, multiplier: float, key):
    def encode(i, acc):
        own = Key(key.seed, key.worker, key.step, key.variables[i], key.draw)
        return _power_codes(acc, reference.random_words(acc.shape[0], own))

    return _encoded(xs, residuals, multiplier, encode, lambda i, codes: _power_values(codes))


def _decoded(rows: list, shapes, sizes: list, factor: float, decode: Callable):
    """The sums over workers of decode(i, own) for each shape, times factor: (totals, finite).

    rows[i] has the parts of tensor i, [workers, ...] each.
    """
    totals = []
    for i, (parts, shape, n) in enumerate(zip(rows, shapes, sizes)):
        total = tf.foldl(
            lambda total, own, i=i: _flush(total + decode(i, own)), parts, tf.zeros([n])
        )
        totals.append(tf.reshape(total if factor == 1.0 else total * factor, shape))
    return totals, reference.all_finite(totals)


def _split(part: tf.Tensor, lengths: Sequence[int]) -> list[tf.Tensor]:
    return tf.split(part, lengths, axis=1)


def decode_tree(codes, scales, shapes, factor: float, block: int | None):
    sizes = [shape.num_elements() for shape in shapes]
    blocks = [block or n for n in sizes]
    rows = list(
        zip(
            _split(codes, [-(-n // 4) for n in sizes]),
            _split(scales, [-(-n // b) for n, b in zip(sizes, blocks)]),
        )
    )
    return _decoded(
        rows,
        shapes,
        sizes,
        factor,
        lambda i, own: _tree_values(_unpack(own[0], sizes[i]), own[1], blocks[i]),
    )


def decode_powers(codes, shapes, factor: float):
    sizes = [shape.num_elements() for shape in shapes]
    rows = _split(codes, [-(-n // 4) for n in sizes])
    return _decoded(
        rows, shapes, sizes, factor, lambda i, own: _power_values(_unpack(own, sizes[i]))
    )
