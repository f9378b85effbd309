"""`fp8`: floats of eight bits, and a power of two for each block."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.flat_groups import FlatGroup, cut, filled
from grace_tf.core.hyperparameters import check_choice, check_integer
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops.backend.words_as_floats import row
from grace_tf.ops.byte_codes import byte_words

_LEAST = 33  # the exponent field of 2^-94; a block whose largest magnitude is smaller becomes 0
_TOO_LARGE = 255  # the exponent field of NaN and infinity; the scale of a block that has either
_SMALLEST_NORMAL = 113 << 23  # the bits of 2^-14, the smallest normal float16


class _Format(NamedTuple):
    """Where the numbers of a format lie among those of float16.

    Times a power of two each of them is a float16 whose lowest bits are zero, a subnormal one where
    it is subnormal itself.  The other bits are its code.
    """

    exponent: int
    """That of the largest number, which is 1.75 * 2^exponent."""
    half_exponent: int
    """That of the same number as a float16."""
    zeros: int
    """How many of the lowest bits of a float16 are zero."""


_FORMATS = {"e4m3": _Format(8, 0, 7), "e5m2": _Format(15, 15, 8)}


@register(
    "fp8",
    family="quantisation",
    paper="arXiv:2209.05433",
    memory="none",
    examples=("fp8:format=e5m2", "fp8:block=128"),
)
class FP8(ListCompressor):
    """Sends each element as a float of eight bits times a power of two of its block:
    C(x) = 2^s·fp8(x/2^s), to nearest, ties to even.

    `format` is e4m3 (1 sign bit, 4 of exponent, 3 of mantissa: up to 448, subnormal below 2^-6, in
    units of 2^-9) or e5m2 (5 and 2: up to 57344, subnormal below 2^-14, in units of 2^-16).
    s is the least whole number with which the block's largest magnitude is at most 448 or 57344, so
    that nothing saturates.  The error of an element is at most 2^-4 of it (e5m2: 2^-3), or half a
    unit: 2^-18 (e5m2: 2^-32) of the block's largest, at most.
    A block whose largest magnitude is below 2^-94 is sent as zeros; one with an element that is not
    finite, or above 1.75·2^127, decodes to NaN.
    Shapes: any float32 tensor.
    Wire: codes int32[⌈n/4⌉], four in a word, scales int32[⌈n/(4·block)⌉], four bytes s + 127 in a
    word, 0 for a block of zeros, gathered: n + n/block bytes, 8.25 bits an element by default.
    Raises: ValueError or TypeError for another format, or a block that is no multiple of 32.
    Paper: Micikevicius et al. 2022, FP8 Formats for Deep Learning; the Open Compute Project's
    Microscaling Formats (MX), version 1.0, for the blocks and their scales.
    Differs: MX takes 2^s from the exponent of the largest magnitude alone, and saturates what is
    then above 448.  Zero has no sign, and a scale of 0 stands for zeros, not for 2^-127.  The
    residual is not the default, but allowed: no element's error exceeds the element.
    """

    format: str = "e4m3"
    block: int = 32

    nonexpansive = True
    elementwise = True
    recompressible = True
    homogeneous = True
    divides_at = property(lambda self: 4 * self.block)  # the elements of a word of scales

    def __post_init__(self):
        check_choice("fp8", "format", self.format, tuple(_FORMATS))
        check_integer("fp8", "block", self.block, 32)
        if self.block % 32:
            raise ValueError(f"fp8: block is a multiple of 32, not {self.block!r}.")

    def wire(self, spec):
        n = spec.shape.num_elements()
        return {
            "codes": tf.TensorSpec([byte_words(n)], tf.int32),
            "scales": tf.TensorSpec([-(-n // self.divides_at)], tf.int32),
        }

    def encode(self, xs, residuals, multiplier, ctx):
        group = self._group(ctx)
        flat, finite = group.join(xs, residuals, multiplier)
        scales = _scales(ops.block_scales(flat, self.block, "max"), self._numbers)
        inverse, factors = self._factors(scales)
        x = tf.reshape(flat, [-1, self.block])
        halves = _rounded(x * inverse[:, tf.newaxis], self._numbers)
        codes = _words(_codes(halves, self._numbers))
        unsent = None
        if residuals is not None:
            sent = tf.cast(halves, tf.float32) * factors[:, tf.newaxis]
            unsent, _ = group.apart(tf.reshape(x - sent, [-1]), 1.0, ctx.shapes)
        payload = {"codes": cut(codes, *self._words_of(group)), "scales": _words(scales)}
        return Encoded(payload, unsent, finite)

    def decode(self, payload, factor, ctx):
        group = self._group(ctx)
        workers = payload["codes"].shape[0]

        def add(w, total):
            return w + 1, total + self._decoded(row(payload, w), group)

        total = self._decoded(row(payload, 0), group)
        if workers > 1:
            # A loop, so that the graph does not grow with the number of workers.
            first = (tf.constant(1), total)
            _, total = tf.while_loop(lambda w, _: w < workers, add, first)
        return group.apart(total, factor, ctx.shapes)

    def _decoded(self, payload, group):
        lengths, kept = self._words_of(group)
        codes = _bytes(filled(payload["codes"], kept, lengths))
        _, factors = self._factors(_bytes(payload["scales"]))
        halves = tf.reshape(_halves(codes, self._numbers), [-1, self.block])
        return tf.reshape(tf.cast(halves, tf.float32) * factors[:, tf.newaxis], [-1])

    @property
    def _numbers(self):
        return _FORMATS[self.format]

    def _group(self, ctx):
        return FlatGroup(tuple(ctx.lengths), self.divides_at)

    def _words_of(self, group):
        """The words of the lanes' codes, with and without those that fill up the last blocks."""
        return [n // 4 for n in group.filled_lengths], [byte_words(n) for n in group.lengths]

    def _factors(self, scales):
        """What a block is multiplied by before it is rounded to float16, and after."""
        exponents = tf.cast(scales, tf.int32) + self._numbers.exponent
        field = exponents - self._numbers.half_exponent
        zero, wrong = scales == 0, field >= _TOO_LARGE
        factors = tf.where(zero, 0.0, tf.where(wrong, float("nan"), _power(field)))
        inverse = _power(254 + self._numbers.half_exponent - exponents)
        return tf.where(zero | wrong, 0.0, inverse), factors


def _power(field):
    """The float32 power of two with this exponent field."""
    return tf.bitcast(tf.bitwise.left_shift(field, 23), tf.float32)


def _scales(largest, numbers):
    """The scale of each block from its largest magnitude, uint8."""
    # A mantissa above 1.75 carries into the exponent.
    field = tf.bitwise.right_shift(tf.bitcast(largest, tf.int32) + 0x1FFFFF, 23)
    scales = tf.where(field < _LEAST, 0, field - numbers.exponent)
    return tf.cast(tf.where(field >= _TOO_LARGE, _TOO_LARGE, scales), tf.uint8)


def _rounded(x, numbers):
    """Each element rounded to the nearest number of the format, as a float16."""
    # `units` is 1.5 * 2^23 units, so x + units has no bits below one unit: x is rounded to units.
    field = tf.maximum(tf.bitcast(x, tf.int32) & 0x7F800000, _SMALLEST_NORMAL)
    units = tf.bitcast(field + ((13 + numbers.zeros) << 23 | 0x400000), tf.float32)
    return tf.cast((x + units) - units, tf.float16)


def _codes(halves, numbers):
    """The codes of float16 numbers, uint8."""
    bits = tf.bitcast(halves, tf.uint16)
    codes = tf.bitwise.right_shift(bits, tf.constant(numbers.zeros, tf.uint16))
    if numbers.zeros == 7:  # the exponent has a bit more, which is zero: the sign moves over it
        signs = tf.bitwise.right_shift(bits, tf.constant(15, tf.uint16))
        codes -= tf.bitwise.left_shift(signs, tf.constant(7, tf.uint16))
    return tf.cast(codes, tf.uint8)


def _halves(codes, numbers):
    """The float16 numbers that these codes stand for."""
    bits = tf.cast(codes, tf.uint16)
    if numbers.zeros == 7:
        bits += bits & 0x80
    bits = tf.bitwise.left_shift(bits, tf.constant(numbers.zeros, tf.uint16))
    return tf.bitcast(bits, tf.float16)


def _words(codes):
    """Bytes as words, the first in the lowest byte of a word."""
    return tf.bitcast(tf.reshape(codes, [-1, 4]), tf.int32)


def _bytes(words):
    """The inverse of `_words`."""
    return tf.reshape(tf.bitcast(words, tf.uint8), [-1])
