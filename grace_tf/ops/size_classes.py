"""Elements in classes by their size, each with numbers of its own width, on whole lists of tensors.

An element is sent as nothing, as a byte, as a half (16 bits) or as the float it is. With e its
biased exponent, a least exponent l and a unit u, l - 15 <= u <= l, 1 <= u <= 253, it is

    nothing where e < l, a byte where e < u + 7, a half where e < u + 15, and else the float.

A byte is a sign and 7 bits, a half a sign and 15 bits, both in units of 2^(u - 127); what is below
a unit is cut off.

A tensor has a room of so many words for its numbers, whatever their classes. l and u are those
whose numbers fit and whose error, as it is expected, is least: 7/3 * 4^(e - 127) for each element
that is not sent, 4^(u - 127) / 3 for each byte and half. The estimate is an integer, 3 * 2^20 times
the error over 4^(l - 127), and elements more than 25 exponents below l count as no error; among
equals the least l counts, and then the largest u. Elements whose e is below both o - bound and
the least normal exponent, 1, are never sent. o, the origin, is the least exponent that at most
`outliers` elements reach, so that few huge elements move nothing.

Room that is left, r bytes, takes elements whose e is l - 1, where l - 7 <= u < l: all w of them,
or those whose rank, from 0 on in order of index, is one of the r from (step * r) mod w on, in a
circle.

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
    """What the payload of a tensor has room for."""

    words: int
    """Of 32 bits, for all numbers; at least one."""
    outliers: int
    """How many elements may lie beyond the origin."""


class Classes(NamedTuple):
    """The parts of a payload; those of several tensors lie one behind the other."""

    tags: tf.Tensor
    """int32: the classes, 0 to 3, in two bit planes."""
    numbers: tf.Tensor
    """int32: the floats; the halves, two in a word, the first in its lower half; the bytes, four
    in a word, the first in its lowest byte. What is not used is 0."""
    counts: tf.Tensor
    """int32: for each tensor u, and how many bytes, halves and floats it has."""


def lengths(n: int, room: Room) -> Classes:
    """The lengths of the parts for a tensor of n elements."""
    return Classes(packed_words(n, 2), room.words, 4)


def encode_classes(
    xs: Tensors,
    residuals: Tensors | None,
    multiplier: float,
    bound: int,
    rooms: Sequence[Room],
    step: int | tf.Tensor,
) -> tuple[Classes, ResidualsOut, tf.Tensor]:
    """Each acc in classes, none below 2^-bound of the origin: (parts, residuals_out, finite)."""
    xs, residuals = arguments.encoder_lists(xs, residuals)
    if not 1 <= bound <= 100:
        raise ValueError(f"bound must be from 1 to 100, for 2^-bound, not {bound}.")
    _check(rooms, len(xs))
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
        bound=bound,
        rooms=[room.words for room in rooms],
        outliers=[room.outliers for room in rooms],
    )
    lengths = _sizes([x.shape for x in xs], rooms)
    *parts, residuals_out, finite = encoded(outputs, lengths, residuals)
    return Classes(*parts), residuals_out, finite


def decode_classes(
    parts: Classes, shapes: Sequence, factor: float, rooms: Sequence[Room]
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums of what workers sent, from rows of their parts, times factor: (totals, finite).

    A number beyond its count counts as 0. A u or a count that cannot be counts as the nearest that
    can, the floats' first, then the halves'.
    """
    shapes = arguments.shape_list(shapes)
    _check(rooms, len(shapes))
    each = zip(parts, (tf.int32, tf.int32, tf.int32), _sizes(shapes, rooms))
    parts = Classes(*arguments.rows(**dict(zip(Classes._fields, each))))
    if not dispatch.runs_here(parts):
        return reference.decode_classes(parts, shapes, factor, rooms)
    outputs = native._ops().grace_decode_classes_list(
        **parts._asdict(),
        factor=factor,
        **totals_of(shapes),
        rooms=[room.words for room in rooms],
    )
    return decoded(outputs, shapes)


def _check(rooms: Sequence[Room], tensors: int) -> None:
    if len(rooms) != tensors:
        raise ValueError(f"There are {len(rooms)} rooms for {tensors} tensors.")
    if any(room.words < 1 or room.outliers < 0 for room in rooms):
        raise ValueError("A room has at least one word, and no negative number of outliers.")


def _sizes(shapes: Sequence[tf.TensorShape], rooms: Sequence[Room]) -> list[int]:
    each = [lengths(shape.num_elements(), room) for shape, room in zip(shapes, rooms)]
    return [sum(sizes) for sizes in zip(*each)]
