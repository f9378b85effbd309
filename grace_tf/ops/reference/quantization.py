"""What the operations of `grace_tf.ops.quantization` mean, in plain TensorFlow."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.ops.backend import arguments
from grace_tf.ops.backend.arguments import ListKey, Strata
from grace_tf.ops.backend.words import packed_words
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
from grace_tf.ops.reference.random import coarse_words, random_words, top_24_bits
from grace_tf.ops.reference.words import pack, unpack


def uniforms(n: int, random: ListKey | Strata | None, i: int, levels: int) -> tf.Tensor | None:
    """The n uniform numbers that round tensor i to so many levels; None for None."""
    if random is None:
        return None
    coarse = levels <= one_tensor.COARSE_LEVELS
    draw = coarse_words if coarse else random_words
    if isinstance(random, Strata):
        stratum = _stratum(random, i)
        words = draw(n, random.key.stream(i)) + (stratum & -(2**16) if coarse else stratum)
    else:
        words = draw(n, random.stream(i))
    return tf.cast(top_24_bits(words), tf.float32) * 2.0**-24


def _stratum(strata: Strata, i: int) -> tf.Tensor:
    """What this worker adds to the words that all draw alike."""
    drawn = random_words(strata.size, strata.key.stream(i, strata.order))
    drawn = tf.cast(drawn, tf.int64) & 0xFFFFFFFF
    # Of equal words the first is least.
    drawn = drawn * 2**24 + tf.range(strata.size, dtype=tf.int64)
    own = drawn[tf.cast(strata.worker, tf.int32) % strata.size]
    place = tf.reduce_sum(tf.cast(drawn < own, tf.int64))
    return tf.cast(tf.bitwise.left_shift(place, tf.constant(32, tf.int64)) // strata.size, tf.int32)


def _block(n: int, code) -> int:
    return n if code.block is None else code.block


def count_scales(n: int, code) -> int:
    blocks = arguments.count_blocks(n, _block(n, code))
    return 2 * blocks if code.norm == "minmax" else blocks


def encode(x: tf.Tensor, code, u: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
    """The words and scales of x [n]."""
    block = _block(x.shape[0], code)
    if code.norm != "minmax":
        scales = one_tensor.block_scales(x, block, code.norm)
        return one_tensor.quantize_with(x, scales, code.levels, code.bits, block, u), scales
    half, lowest = _ranges(x, block)
    inverse = tf.where(
        half < SMALLEST_SCALE, 0.0, flush(quotient(tf.constant(code.levels / 2), half))
    )
    n, levels = x.shape[0], tf.constant(code.levels, tf.float32)
    a = flush(flush(x) - per_element(lowest, n, block)) * per_element(inverse, n, block)
    q = tf.round(a) if u is None else tf.floor(a + u)
    # Written as a comparison so that NaN, which compares false, becomes the top level.
    codes = tf.cast(tf.where(q < levels, q, levels), tf.int32)
    return pack(codes, code.bits), tf.reshape(tf.stack([half, lowest], 1), [-1])


def _ordered(bits: tf.Tensor) -> tf.Tensor:
    """Bits of floats to integers in the same order, NaN beyond infinity; its own inverse."""
    return tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, MAGNITUDE), bits)


def _ranges(x: tf.Tensor, block: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Half the distance of a block's extremes, and the lower one, [blocks] each."""
    n = x.shape[0]
    block = min(block, n)
    blocks = -(-n // block)
    # The last element once more, as often as it takes, changes no extreme.
    places = tf.minimum(tf.range(blocks * block), n - 1)
    rows = tf.reshape(tf.gather(_ordered(bits_of(x)), places), [blocks, block])
    low, high = (
        flush(tf.bitcast(_ordered(extreme(rows, axis=1)), tf.float32))
        for extreme in (tf.reduce_min, tf.reduce_max)
    )
    # Halved first: the distance may be more than the largest float.
    half = flush(high * 0.5) - flush(low * 0.5)
    return tf.where(half < SMALLEST_SCALE, 0.0, half), low


def decode(words: tf.Tensor, scales: tf.Tensor, n: int, code) -> tf.Tensor:
    """What the words and scales of one worker stand for, float32 [n]."""
    block = _block(n, code)
    if code.norm != "minmax":
        return one_tensor.dequantize(words, scales, n, code.levels, code.bits, block)
    pairs = tf.reshape(scales, [-1, 2])
    unit = quotient(pairs[:, 0], tf.constant(code.levels / 2))
    unit = tf.where(pairs[:, 0] < SMALLEST_SCALE, 0.0, unit)
    steps = tf.cast(unpack(words, n, code.bits), tf.float32) * per_element(unit, n, block)
    return flush(per_element(pairs[:, 1], n, block) + steps)


def encode_list(xs, residuals, multiplier: float, code, random: ListKey | Strata | None):
    def encode_one(i, acc):
        return encode(acc, code, uniforms(acc.shape[0], random, i, code.levels))

    def decode_one(i, parts):
        return decode(*parts, xs[i].shape.num_elements(), code)

    return encode_each(xs, residuals, multiplier, encode_one, decode_one)


def decode_list(words, scales, shapes, factor, code):
    sizes = [shape.num_elements() for shape in shapes]
    lengths = (
        [packed_words(n, code.bits) for n in sizes],
        [count_scales(n, code) for n in sizes],
    )
    return sum_each(
        [words, scales], lengths, shapes, factor, lambda i, parts: decode(*parts, sizes[i], code)
    )
