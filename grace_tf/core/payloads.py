"""Checks a payload before it is decoded: it must have the parts that the method's `wires` lists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.core.context import Context
from grace_tf.core.rounds import Payload

# The actions that decode, and whether their parts have a leading axis of rows.
_DECODING = {
    "decompress": False,
    "decompress_list": False,
    "aggregate": True,
    "aggregate_list": True,
}


def check_decoding(cls: type, without: Sequence[str] = ()) -> None:
    """Makes the decoding actions that this class defines check their payload; not `without`."""
    for action, rows in _DECODING.items():
        if action in vars(cls) and action not in without:
            setattr(cls, action, _checked(vars(cls)[action], rows))


def _checked(decode: Callable, rows: bool) -> Callable:
    @functools.wraps(decode)
    def checked(compressor: Any, payload: Payload, ctx: Context) -> Any:
        check_parts(compressor, payload, compressor.wires(ctx.specs), rows)
        return decode(compressor, payload, ctx)

    return checked


def check_parts(
    compressor: Any, payload: Payload, wires: Sequence[dict[str, tf.TensorSpec]], rows: bool
) -> None:
    """Raises ValueError or TypeError, before TensorFlow does, where a part is not as announced.

    Args:
      compressor: named in the error.
      payload: of a lane group; with `rows`, every part has a leading axis.
      wires: from `wires` of its lanes.  A part is the lanes' parts of that name end to end.
    """
    lengths: dict[str, int] = {}
    for name, part in ((name, part) for parts in wires for name, part in parts.items()):
        lengths[name] = lengths.get(name, 0) + part.shape[0]
    dtypes = {name: part.dtype for parts in wires for name, part in parts.items()}
    for name, length in lengths.items():
        if name not in payload:
            given = ", ".join(payload) or "nothing"
            raise ValueError(f"{compressor}: the payload lacks the part {name!r}; it has {given}.")
        part = payload[name]
        dtype, shape = tf.as_dtype(part.dtype), tf.TensorShape(part.shape)
        if dtype != dtypes[name]:
            raise TypeError(
                f"{compressor}: the part {name!r} must be {dtypes[name].name}, not {dtype.name}."
            )
        if not shape.is_compatible_with([None, length] if rows else [length]):
            wanted = f"[rows, {length}]" if rows else f"[{length}]"
            raise ValueError(
                f"{compressor}: the part {name!r} must have shape {wanted}, not {shape}."
            )
