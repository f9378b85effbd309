"""What `ops.signed_sums` means, in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from grace_tf.ops.reference.random import random_words

_SIGN = np.int32(np.iinfo(np.int32).min)


def signed_sums(
    xs: Sequence[tf.Tensor], count: int, key, when: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    def wanted() -> tuple[tf.Tensor, tf.Tensor]:
        flat = tf.concat([tf.reshape(x, [-1]) for x in xs], 0)
        square = tf.cast(tf.reduce_sum(flat * flat), tf.float64)
        return (_sums(flat, count, key) if count else flat), square

    def nothing() -> tuple[tf.Tensor, tf.Tensor]:
        return tf.zeros([0]), tf.zeros([], tf.float64)

    known = tf.get_static_value(when)
    if known is not None:
        return wanted() if known else nothing()
    return tf.cond(when, wanted, nothing)


def _sums(flat: tf.Tensor, count: int, key) -> tf.Tensor:
    rows = -(-flat.shape[0] // count)
    groups = -(-rows * count // 32)
    words = random_words(groups, key)
    signs = tf.bitwise.left_shift(words[:, None], tf.range(32)[None]) & _SIGN
    bits = tf.bitcast(tf.pad(flat, [[0, 32 * groups - flat.shape[0]]]), tf.int32)
    signed = tf.bitcast(tf.bitwise.bitwise_xor(bits, tf.reshape(signs, [-1])), tf.float32)
    return tf.reduce_sum(tf.reshape(signed[: rows * count], [rows, count]), 0)
