"""Elements in classes by their size, each with numbers of its own width, on whole lists of tensors.

An element is sent as nothing, as a byte, as a half (16 bits) or as the float it is. With e its
biased exponent, a bound of 2^-b and a shift s, and

    least_byte = 127 - b,  least_half = 127 + min(0, 7 - b),  least_whole = 127 + min(0, 15 - b)

it is nothing where e < least_byte + s, a byte where e < least_half + s, a half where
e < least_whole + s, and else the float. A byte is a sign and 7 bits, in units of
2^(least_half + s - 134); a half is a sign and 15 bits, in units of 2^(least_whole + s - 142); what
is below a unit is cut off. So every error is below 2^(s - b).

A payload has room for a fixed number of each. The shift is the least, from 0 on, with which the
halves and the floats fit. Of w bytes of which only r fit, those are sent whose rank, from 0 on in
order of index, is one of the r from (step * r) mod w on, in a circle; the others count as nothing.

The encoders and decoders are as those of `grace_tf.ops.byte_codes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import ResidualsOut, Tensors, decoded, encoded, totals_of
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import size_classes as reference


class Room(NamedTuple):
    """How many numbers the payload of a tensor has room for, at least one of each."""

    bytes: int
    halves: int
    wholes: int


class Classes(NamedTuple):
    """The parts of a payload; those of several tensors lie one behind the other.

    Numbers that are not used are 0.
    """

    tags: tf.Tensor
    """int32: the classes, 0 to 3, in two bit planes."""
    bytes: tf.Tensor
    """int32: four numbers in a word, the first in its lowest byte."""
    halves: tf.Tensor
    """int32: two numbers in a word, the first in its lower half."""
    wholes: tf.Tensor
    """float32."""
    counts: tf.Tensor
    """int32: for each tensor the shift, and how many elements were bytes, halves and floats."""


def lengths(n: int, room: Room) -> Classes:
    """The lengths of the parts for a tensor of n elements."""
    return Classes(packed_words(n, 2), -(-room.bytes // 4), -(-room.halves // 2), room.wholes, 4)


def encode_classes(
    xs: Tensors,
    residuals: Tensors | None,
    multiplier: float,
    bound: int,
    rooms: Sequence[Room],
    step: int | tf.Tensor,
) -> tuple[Classes, ResidualsOut, tf.Tensor]:
    """Each acc in classes, under a bound of 2^-bound: (parts, residuals_out, finite)."""
    xs, residuals = arguments.encoder_lists(xs, residuals)
    _check(bound, rooms, len(xs))
    if not dispatch.runs_here(xs):
        parts, residuals_out, finite = reference.encode_classes(
            xs, residuals, multiplier, bound, rooms, step
        )
        return Classes(*parts), residuals_out, finite
    outputs = native._ops().grace_encode_classes_list(
        xs=xs,
        residuals=residuals,
        step=native._int64(step),
        multiplier=multiplier,
        **_attributes(bound, rooms),
    )
    lengths = _sizes([x.shape for x in xs], rooms)
    *parts, residuals_out, finite = encoded(outputs, lengths, residuals)
    return Classes(*parts), residuals_out, finite


def decode_classes(
    parts: Classes, shapes: Sequence, factor: float, bound: int, rooms: Sequence[Room]
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums of what workers sent, from rows of their parts, times factor: (totals, finite).

    A number beyond its room counts as 0, and a shift counts as the nearest that there is.
    """
    shapes = arguments.shape_list(shapes)
    _check(bound, rooms, len(shapes))
    dtypes = (tf.int32, tf.int32, tf.int32, tf.float32, tf.int32)
    each = zip(parts, dtypes, _sizes(shapes, rooms))
    parts = Classes(*arguments.rows(**dict(zip(Classes._fields, each))))
    if not dispatch.runs_here(parts):
        return reference.decode_classes(parts, shapes, factor, bound, rooms)
    outputs = native._ops().grace_decode_classes_list(
        **parts._asdict(), factor=factor, **totals_of(shapes), **_attributes(bound, rooms)
    )
    return decoded(outputs, shapes)


def _check(bound: int, rooms: Sequence[Room], tensors: int) -> None:
    if not 1 <= bound <= 100:
        raise ValueError(f"bound must be from 1 to 100, for 2^-bound, not {bound}.")
    if len(rooms) != tensors:
        raise ValueError(f"There are {len(rooms)} rooms for {tensors} tensors.")
    if any(min(room) < 1 for room in rooms):
        raise ValueError("There must be room for at least one number of each kind.")


def _sizes(shapes: Sequence[tf.TensorShape], rooms: Sequence[Room]) -> list[int]:
    each = [lengths(shape.num_elements(), room) for shape, room in zip(shapes, rooms)]
    return [sum(sizes) for sizes in zip(*each)]


def _attributes(bound: int, rooms: Sequence[Room]) -> dict:
    """The rooms as attributes of a node."""
    bytes_room, halves_room, wholes_room = zip(*rooms)
    return {
        "bound": bound,
        "bytes_room": list(bytes_room),
        "halves_room": list(halves_room),
        "wholes_room": list(wholes_room),
    }
