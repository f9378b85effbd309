"""The operations on one tensor; many of those on lists are made of them."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.ops.reference.arithmetic import (
    INFINITY,
    MAGNITUDE,
    SMALLEST_SCALE,
    bits_of,
    flush,
    not_negative,
    pad_to,
    pairwise_sum,
    per_element,
    quotient,
)
from grace_tf.ops.reference.random import coarse_uniform, uniform
from grace_tf.ops.reference.words import pack, unpack

COARSE_LEVELS = 127
"""Up to so many levels 16 random bits an element round; a level and 17 bits are a float."""


def pack_signs(x: tf.Tensor) -> tf.Tensor:
    return pack(tf.cast(not_negative(x), tf.int32), 1)


def vote_signs(words: tf.Tensor, n: int) -> tf.Tensor:
    votes = tf.foldl(
        lambda total, own: total + (2 * unpack(own, n, 1) - 1), words, tf.zeros([n], tf.int32)
    )
    return tf.cast(tf.sign(votes), tf.float32)


def block_scales(x: tf.Tensor, block: int, norm: str) -> tf.Tensor:
    n = x.shape[0]
    block = min(block, n)
    blocks = -(-n // block)
    rows = tf.reshape(pad_to(x, blocks * block), [blocks, block])
    if norm == "max":
        # As integers NaN is the largest magnitude, so it is never lost in the maximum.
        scale = tf.bitcast(tf.reduce_max(bits_of(rows) & MAGNITUDE, axis=1), tf.float32)
        return tf.where(scale < SMALLEST_SCALE, 0.0, scale)
    scale = tf.sqrt(pairwise_sum(tf.square(tf.cast(flush(rows), tf.float64))))
    return tf.cast(tf.where(scale < SMALLEST_SCALE, tf.zeros_like(scale), scale), tf.float32)


def quantize(x, scales, levels: int, bits: int, block: int, key) -> tf.Tensor:
    draw = coarse_uniform if levels <= COARSE_LEVELS else uniform
    u = None if key is None else draw(x.shape[0], key)
    return quantize_with(x, scales, levels, bits, block, u)


def quantize_with(x, scales, levels: int, bits: int, block: int, u) -> tf.Tensor:
    """`quantize` with these numbers in [0, 1) in place of a key's stream."""
    n = x.shape[0]
    levels_f = tf.constant(levels, tf.float32)
    # The quotient of a huge scale is denormal, hence the flush.
    inverse = tf.where(scales < SMALLEST_SCALE, 0.0, flush(quotient(levels_f, scales)))
    a = flush(tf.abs(x)) * per_element(inverse, n, block)
    q = tf.round(a) if u is None else tf.floor(a + u)
    # Written as a comparison so that NaN, which compares false, becomes the top level.
    q = tf.cast(tf.where(q < levels_f, q, levels_f), tf.int32)
    return pack(tf.where(bits_of(x) < 0, levels - q, levels + q), bits)


def dequantize(words, scales, n: int, levels: int, bits: int, block: int) -> tf.Tensor:
    code = tf.minimum(unpack(words, n, bits), 2 * levels)
    levels_f = tf.constant(levels, tf.float32)
    unit = tf.where(scales < SMALLEST_SCALE, 0.0, quotient(scales, levels_f))
    return tf.cast(code - levels, tf.float32) * per_element(unit, n, block)


def top_k(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    indices = tf.sort(tf.math.top_k(bits_of(x) & MAGNITUDE, k).indices)
    return tf.gather(x, indices), indices


def gather(x: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, indices)


def scatter_sum(values, indices, counts, n: int) -> tf.Tensor:
    workers, k = values.shape
    if counts is None:
        counts = tf.fill([workers], k)

    def add(total, own):
        value, index, count = own
        used = (tf.range(k) < count) & (index >= 0) & (index < n)
        # One place beyond the end takes what is not used.
        index = tf.where(used, index, n)
        new = flush(tf.gather(total, index) + flush(value))
        return tf.tensor_scatter_nd_update(total, index[:, tf.newaxis], new)

    return tf.foldl(add, (values, indices, counts), tf.zeros([n + 1]))[:n]


def all_finite(xs: list[tf.Tensor]) -> tf.Tensor:
    finite = [tf.reduce_all(bits_of(x) & INFINITY < INFINITY) for x in xs]
    return tf.reduce_all(tf.stack(finite)) if finite else tf.constant(True)
