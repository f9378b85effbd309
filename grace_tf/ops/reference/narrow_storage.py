"""What the operations of `grace_tf.ops.narrow_storage` mean, one tensor at a time."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.ops.backend.arguments import Key
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import one_tensor
from grace_tf.ops.reference.arithmetic import INFINITY, MAGNITUDE
from grace_tf.ops.reference.random import coarse_words

BITS, LEVELS, BLOCK = 8, 127, 256


def to_halves(x: tf.Tensor, key: Key) -> tf.Tensor:
    bits = tf.bitcast(tf.reshape(x, [-1]), tf.int32)
    draws = tf.bitwise.right_shift(coarse_words(bits.shape[0], key), 16) & 0xFFFF
    rounded = bits + draws
    # What would round up to infinity is cut off instead.
    rounded = tf.where(rounded & MAGNITUDE < INFINITY, rounded, bits)
    upper = tf.bitwise.right_shift(rounded, 16) & 0xFFFF
    return tf.reshape(tf.cast(upper, tf.uint16), x.shape)


def from_halves(halves: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.bitcast(halves, tf.bfloat16), tf.float32)


def to_bytes(x: tf.Tensor, key: Key) -> tf.Tensor:
    x = tf.reshape(x, [-1])
    scales = one_tensor.block_scales(x, BLOCK, "max")
    codes = one_tensor.quantize(x, scales, LEVELS, BITS, BLOCK, key)
    return tf.bitcast(tf.concat([codes, tf.bitcast(scales, tf.int32)], 0), tf.int8)


def from_bytes(stored: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    n = shape.num_elements()
    codes, scales = tf.split(tf.bitcast(stored, tf.int32), _sizes(n))
    scales = tf.bitcast(scales, tf.float32)
    x = one_tensor.dequantize(codes, scales, n, LEVELS, BITS, BLOCK)
    return tf.reshape(x, shape)


def shape_of_bytes(shape: tf.TensorShape) -> tf.TensorShape:
    return tf.TensorShape([sum(_sizes(shape.num_elements())), 4])


def _sizes(n: int) -> tuple[int, int]:
    """How many words the codes and the scales of n elements make."""
    return packed_words(n, BITS), -(-n // BLOCK)
