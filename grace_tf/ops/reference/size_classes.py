"""What the operations of `grace_tf.ops.size_classes` mean, in plain TensorFlow."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from grace_tf.ops.reference.arithmetic import bits_of, flush
from grace_tf.ops.reference.lists import encode_each, sum_each
from grace_tf.ops.reference.random import low_word
from grace_tf.ops.reference.words import pack, unpack

_UNITS = 16  # that are tried for each least exponent
_LARGEST_UNIT = 253
_SHOWN = 25  # exponents below the least whose elements count as an error
_SCALE = 20  # bits of what an element of the least exponent counts


def _exponents(x: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.right_shift(bits_of(x), 23) & 0xFF


def _scaled(counts: tf.Tensor, halvings) -> tf.Tensor:
    counts = tf.bitwise.left_shift(counts, tf.constant(_SCALE, tf.int64))
    return tf.bitwise.right_shift(counts, tf.constant(halvings, tf.int64))


def _choice(exponents: tf.Tensor, bound: int, room):
    """(least exponent, unit, how many elements of the exponent below it are sent)."""
    found = tf.math.unsorted_segment_sum(tf.ones_like(exponents), exponents, 256)
    found = tf.cast(found, tf.int64)
    above = tf.concat([tf.cumsum(found, reverse=True), tf.zeros([1], tf.int64)], 0)
    origin = 1 + tf.reduce_sum(tf.cast(above[1:] > room.outliers, tf.int32))
    lowest = tf.maximum(1, origin - bound)
    highest = 1 + tf.reduce_max(exponents)

    e, least = np.arange(256), np.arange(1, 257)[:, None]
    shown = (1 <= e) & (e < least) & (e >= least - _SHOWN)
    lost = _scaled(found, np.where(shown, 2 * (least - e), 62))
    lost = tf.reduce_sum(tf.where(shown, lost, 0), axis=1, keepdims=True)

    unit = least - np.arange(_UNITS)
    half, whole = (np.clip(np.maximum(least, unit + b), 0, 256) for b in (7, 15))
    wholes = tf.gather(above, whole)
    halves = tf.gather(above, half) - wholes
    bytes_ = tf.gather(above, least) - halves - wholes
    left = 4 * (room.words - wholes - (halves + 1) // 2) - bytes_
    more = tf.cast((least - 7 <= unit) & (unit < least), tf.int64)
    more *= tf.cast(least > lowest, tf.int64)
    more *= tf.minimum(left, tf.gather(found, least - 1))
    cut = _scaled(bytes_ + more + halves, 2 * np.broadcast_to(np.arange(_UNITS), unit.shape))
    error = tf.cast(7 * (lost - _scaled(more, 2)) + cut, tf.float64) * 4.0 ** (least - 127)
    fits = (least >= lowest) & (least <= highest) & (left >= 0)
    fits &= (1 <= unit) & (unit <= _LARGEST_UNIT)
    at = tf.argmin(tf.reshape(tf.where(fits, error, np.inf), [-1]), output_type=tf.int32)
    least = 1 + at // _UNITS
    return least, least - at % _UNITS, tf.gather(tf.reshape(more, [-1]), at)


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
    e = _exponents(x)
    least, unit, more = _choice(e, bound, room)
    edges = least, tf.maximum(least, unit + 7), tf.maximum(least, unit + 15)
    tags = sum(tf.cast(e >= edge, tf.int32) for edge in edges)
    below = (e == least - 1) & (e > 0)
    wanted = tf.reduce_sum(tf.cast(below, tf.int64))
    begin = tf.bitcast(low_word(step), tf.int64) * more % tf.maximum(wanted, 1)
    rank = tf.cast(_ranks(below), tf.int64)
    from_begin = tf.where(rank >= begin, rank - begin, rank + wanted - begin)
    tags = tf.where(below & (from_begin < more), 1, tags)

    bytes_, halves, wholes = (tf.reduce_sum(tf.cast(tags == i, tf.int32)) for i in (1, 2, 3))
    shifts = 23 + unit - e
    numbers = [0, _cut(x, shifts, 7), _cut(x, shifts, 15), bits_of(x)]
    half_at, byte_at = wholes, wholes + (halves + 1) // 2
    places = [room.words, byte_at + _ranks(tags == 1) // 4]
    places += [half_at + _ranks(tags == 2) // 2, _ranks(tags == 3)]
    lefts = [0, 8 * (_ranks(tags == 1) % 4), 16 * (_ranks(tags == 2) % 2), 0]
    number, place, left = numbers[0], places[0], lefts[0]
    for i in (1, 2, 3):
        number = tf.where(tags == i, numbers[i], number)
        place = tf.where(tags == i, places[i], place)
        left = tf.where(tags == i, lefts[i], left)
    # Static shapes, so that XLA can compile it: what is nothing goes to one place at the end. No
    # two numbers share a bit, so their sum is an "or".
    words = tf.bitwise.left_shift(number, left)
    words = tf.scatter_nd(place[:, tf.newaxis], words, [room.words + 1])[: room.words]
    return pack(tags, 2), words, tf.stack([unit, bytes_, halves, wholes])


def _taken(numbers: tf.Tensor, of: tf.Tensor, first, count, bits: int) -> tf.Tensor:
    """For those that are so the next of `count` numbers from word `first` on, 0 beyond them."""
    each = 32 // bits
    rank = _ranks(of)
    there = of & (rank < count)
    words = tf.gather(numbers, tf.where(there, first + rank // each, 0))
    if bits < 32:
        words = tf.bitwise.right_shift(words, bits * (rank % each)) & (2**bits - 1)
    return tf.where(there, words, 0)


def _values(levels: tf.Tensor, bits: int, unit: tf.Tensor) -> tf.Tensor:
    magnitudes = levels & (2 ** (bits - 1) - 1)
    signed = tf.where(levels >= 2 ** (bits - 1), -magnitudes, magnitudes)
    return tf.cast(signed, tf.float32) * unit


def _decode(parts, n: int, room) -> tf.Tensor:
    tags, numbers, counts = parts
    unit = tf.clip_by_value(counts[0], 1, _LARGEST_UNIT)
    unit = tf.bitcast(tf.bitwise.left_shift(unit, 23), tf.float32)
    wholes = tf.clip_by_value(counts[3], 0, room.words)
    halves = tf.clip_by_value(counts[2], 0, 2 * (room.words - wholes))
    byte_at = wholes + (halves + 1) // 2
    bytes_ = tf.clip_by_value(counts[1], 0, 4 * (room.words - byte_at))
    tags = unpack(tags, n, 2)
    return (
        _values(_taken(numbers, tags == 1, byte_at, bytes_, 8), 8, unit)
        + _values(_taken(numbers, tags == 2, wholes, halves, 16), 16, unit)
        + flush(tf.bitcast(_taken(numbers, tags == 3, 0, wholes, 32), tf.float32))
    )


def _sizes(n: int, room) -> tuple[int, ...]:
    return 2 * (-(-n // 32)), room.words, 4


def encode_classes(xs, residuals, multiplier: float, bound: int, rooms, step):
    *parts, residuals_out, finite = encode_each(
        xs,
        residuals,
        multiplier,
        lambda i, acc: _encode(acc, bound, rooms[i], step),
        lambda i, own: _decode(own, xs[i].shape.num_elements(), rooms[i]),
    )
    return parts, residuals_out, finite


def decode_classes(parts, shapes, factor: float, rooms):
    sizes = [shape.num_elements() for shape in shapes]
    lengths = zip(*[_sizes(n, room) for n, room in zip(sizes, rooms)])
    return sum_each(parts, lengths, shapes, factor, lambda i, own: _decode(own, sizes[i], rooms[i]))
