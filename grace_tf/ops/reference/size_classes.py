"""What the operations of `grace_tf.ops.size_classes` mean, in plain TensorFlow."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from grace_tf.ops.reference.arithmetic import bits_of, flush
from grace_tf.ops.reference.lists import encode_each, sum_each
from grace_tf.ops.reference.random import low_word
from grace_tf.ops.reference.words import compacted, pack, pack_fields, unpack, unpack_fields


def _edges(bound: int) -> tuple[int, int, int]:
    """The least biased exponents of bytes, halves and floats without a shift."""
    return 127 - bound, 127 + min(0, 7 - bound), 127 + min(0, 15 - bound)


def largest_shift(bound: int) -> int:
    """With it everything fits: there are no halves and no floats."""
    return 256 - _edges(bound)[1]


def _exponents(x: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.right_shift(bits_of(x), 23) & 0xFF


def _shift(exponents: tf.Tensor, bound: int, room) -> tf.Tensor:
    """The least shift with which halves and floats fit."""
    _, half, whole = _edges(bound)
    found = tf.math.unsorted_segment_sum(tf.ones_like(exponents), exponents, 256)
    shifts, e = np.arange(largest_shift(bound) + 1)[:, None], np.arange(256)
    wholes = tf.reduce_sum(tf.where(e >= whole + shifts, found, 0), axis=1)
    above = tf.reduce_sum(tf.where(e >= half + shifts, found, 0), axis=1)
    fits = (above - wholes <= room.halves) & (wholes <= room.wholes)
    return tf.argmax(tf.cast(fits, tf.int32), output_type=tf.int32)


def _ranks(of: tf.Tensor) -> tf.Tensor:
    """How many before each element are so."""
    return tf.cumsum(tf.cast(of, tf.int32), exclusive=True)


def _cut(x: tf.Tensor, shifts: tf.Tensor, bits: int) -> tf.Tensor:
    """Sign and significand of x without this many of its last bits; all ones if x is not finite."""
    significand = (bits_of(x) & 0x7FFFFF) | 0x800000
    level = tf.bitwise.right_shift(significand, tf.clip_by_value(shifts, 0, 31))
    level = tf.where(_exponents(x) == 255, 2**bits - 1, level)
    return (level & (2**bits - 1)) | tf.where(bits_of(x) < 0, 2**bits, 0)


def _encode(x: tf.Tensor, bound: int, room, step):
    """The parts of one acc, flat."""
    byte, half, whole = _edges(bound)
    e = _exponents(x)
    shift = _shift(e, bound, room)
    tags = sum(tf.cast(e >= edge + shift, tf.int32) for edge in (byte, half, whole))
    found = [tf.reduce_sum(tf.cast(tags == i, tf.int32)) for i in (1, 2, 3)]
    wanted, most = tf.cast(found[0], tf.int64), tf.constant(room.bytes, tf.int64)
    most = tf.minimum(wanted, most)
    begin = tf.bitcast(low_word(step), tf.int64) * most % tf.maximum(wanted, 1)
    rank = tf.cast(_ranks(tags == 1), tf.int64)
    from_begin = tf.where(rank >= begin, rank - begin, rank + wanted - begin)
    tags = tf.where((tags == 1) & (from_begin >= most), 0, tags)
    bytes_ = compacted(_cut(x, 16 + half + shift - e, 7), tags == 1, room.bytes)
    halves = compacted(_cut(x, 8 + whole + shift - e, 15), tags == 2, room.halves)
    wholes = compacted(x, tags == 3, room.wholes)
    counts = tf.stack([shift, *found])
    words = pack(tags, 2), pack_fields(bytes_, 8), pack_fields(halves, 16)
    return *words, wholes, counts


def _unit(exponent: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tf.bitwise.left_shift(exponent, 23), tf.float32)


def _numbers(levels: tf.Tensor, bits: int, unit: tf.Tensor) -> tf.Tensor:
    magnitudes = levels & (2**bits - 1)
    signed = tf.where(levels >= 2**bits, -magnitudes, magnitudes)
    return tf.cast(signed, tf.float32) * unit


def _taken(numbers: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
    """For those that are so the next number, 0 where there is none left."""
    ranks, room = _ranks(of), numbers.shape[0]
    return tf.where(of & (ranks < room), tf.gather(numbers, tf.minimum(ranks, room - 1)), 0.0)


def _decode(parts, n: int, bound: int, room) -> tf.Tensor:
    tags, bytes_, halves, wholes, counts = parts
    _, half, whole = _edges(bound)
    shift = tf.clip_by_value(counts[0], 0, largest_shift(bound))
    tags = unpack(tags, n, 2)
    byte_unit = _unit(half + shift - 7)
    half_unit = _unit(tf.minimum(whole + shift - 15, 254))
    return (
        _taken(_numbers(unpack_fields(bytes_, 8, room.bytes), 7, byte_unit), tags == 1)
        + _taken(_numbers(unpack_fields(halves, 16, room.halves), 15, half_unit), tags == 2)
        + _taken(flush(wholes), tags == 3)
    )


def _sizes(n: int, room) -> tuple[int, ...]:
    return 2 * (-(-n // 32)), -(-room.bytes // 4), -(-room.halves // 2), room.wholes, 4


def encode_classes(xs, residuals, multiplier: float, bound: int, rooms, step):
    *parts, residuals_out, finite = encode_each(
        xs,
        residuals,
        multiplier,
        lambda i, acc: _encode(acc, bound, rooms[i], step),
        lambda i, own: _decode(own, xs[i].shape.num_elements(), bound, rooms[i]),
    )
    return parts, residuals_out, finite


def decode_classes(parts, shapes, factor: float, bound: int, rooms):
    sizes = [shape.num_elements() for shape in shapes]
    lengths = zip(*[_sizes(n, room) for n, room in zip(sizes, rooms)])
    return sum_each(
        parts, lengths, shapes, factor, lambda i, own: _decode(own, sizes[i], bound, rooms[i])
    )
