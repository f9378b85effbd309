"""Codes and numbers of few bits as words of 32 bits, and back."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from grace_tf.ops.reference.arithmetic import pad_to

_PLACES = np.arange(32, dtype=np.int32)  # of the bits of a word


def _groups(n: int) -> int:
    return -(-n // 32)


def pack(codes: tf.Tensor, bits: int) -> tf.Tensor:
    """int32 codes [n] to words: word p of a group of 32 codes holds bit p of them."""
    groups = _groups(codes.shape[0])
    codes = tf.reshape(pad_to(codes, 32 * groups), [groups, 1, 32])
    planes = tf.bitwise.right_shift(codes, _PLACES[:bits, np.newaxis]) & 1
    # No two terms share a bit, so the sum is an "or", also where bit 31 makes it negative.
    words = tf.reduce_sum(tf.bitwise.left_shift(planes, _PLACES), axis=-1)
    return tf.reshape(words, [groups * bits])


def unpack(words: tf.Tensor, n: int, bits: int) -> tf.Tensor:
    """The inverse of `pack`: words to int32 codes [n]."""
    groups = _groups(n)
    words = tf.reshape(words, [groups, bits, 1])
    planes = tf.bitwise.right_shift(words, _PLACES) & 1
    codes = tf.reduce_sum(tf.bitwise.left_shift(planes, _PLACES[:bits, np.newaxis]), axis=1)
    codes = tf.reshape(codes, [32 * groups])
    return codes if n == 32 * groups else codes[:n]


def pack_fields(numbers: tf.Tensor, bits: int) -> tf.Tensor:
    """Numbers of 8 or 16 bits as words, the first in the lowest bits."""
    each = 32 // bits
    rows = tf.reshape(pad_to(numbers, -(-numbers.shape[0] // each) * each), [-1, each])
    return tf.reduce_sum(tf.bitwise.left_shift(rows, np.arange(each, dtype=np.int32) * bits), 1)


def unpack_fields(words: tf.Tensor, bits: int, n: int) -> tf.Tensor:
    """The inverse of `pack_fields`, to n numbers."""
    places = np.arange(32 // bits, dtype=np.int32) * bits
    numbers = tf.bitwise.right_shift(words[:, tf.newaxis], places) & (2**bits - 1)
    return tf.reshape(numbers, [-1])[:n]


def compacted(numbers: tf.Tensor, which: tf.Tensor, room: int) -> tf.Tensor:
    """The numbers where `which` is true, moved to the front, followed by zeros: [room]."""
    # Static shapes, so that XLA can compile it: what does not count goes to one place at the end.
    ranks = tf.cumsum(tf.cast(which, tf.int32), exclusive=True)
    places = tf.where(which, ranks, room)[:, tf.newaxis]
    return tf.scatter_nd(places, numbers, [room + 1])[:room]
