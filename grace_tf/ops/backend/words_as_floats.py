"""How words are moved: as float32, whatever their bits mean.

Parts of payloads are concatenated, cut and reshaped here.  For int32 TensorFlow has these
operations in the host's memory only (`ConcatV2`, `SplitV`, `StridedSlice`, `Reshape`, `Pack` and
others), so every part on a GPU would be copied to the host and back.  For float32 they run on the
GPU.  They copy bits, those of NaN patterns too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

CARRIER = tf.float32  # no operation on the way may compute with it

Parts = TypeVar("Parts")


def as_carrier(part: tf.Tensor) -> tf.Tensor:
    """The bits of an int32 or uint32 part as CARRIER; other parts as they are."""
    return tf.bitcast(part, CARRIER) if part.dtype in (tf.int32, tf.uint32) else part


def from_carrier(part: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What `as_carrier` made of a part of this dtype, back."""
    return part if part.dtype == dtype else tf.bitcast(part, dtype)


def carried(move: Callable, parts: Parts):
    """`move(parts)`, where `move` copies numbers and does not compute with them.

    `parts` is a tensor or a list of tensors of one dtype; so is what `move` returns.
    """
    dtype = tf.nest.flatten(parts)[0].dtype
    moved = move(tf.nest.map_structure(as_carrier, parts))
    return tf.nest.map_structure(lambda part: from_carrier(part, dtype), moved)


def one_row(payload: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """A payload as the only row of payloads, as a gather between one worker would give it."""
    return {name: carried(lambda part: part[None], part) for name, part in payload.items()}


def row(payloads: dict[str, tf.Tensor], w: int | tf.Tensor) -> dict[str, tf.Tensor]:
    """The payload of worker w, from the rows of all."""
    return {name: carried(lambda part: part[w], part) for name, part in payloads.items()}


def joined(payloads: list[dict[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
    """One payload from those of several lanes: each part is the lanes' parts, end to end."""
    return {
        name: carried(lambda parts: tf.concat(parts, 0), [own[name] for own in payloads])
        for name in payloads[0]
    }
