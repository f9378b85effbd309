"""Requests, and the table of fused lane rounds.

A compressor communicates by yielding a request that holds one payload a lane; it is sent back one
reply a lane with the same part names: the sum or maximum over workers (`Sum`, `Max`), or every
worker's part under a leading axis of workers (`Gather`).  Parts of `AllToAll` are `[size, n]`:
row w goes to worker w, and row w of the reply came from worker w.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Callable

import tensorflow as tf

Payload = dict[str, tf.Tensor]

# The dtypes of the wire: of parts that are gathered, and of parts that are reduced on the way.
GATHERED = ("float32", "int32", "uint32", "float16", "bfloat16", "int16", "uint16")
REDUCED = ("float32", "float16", "bfloat16", "float64", "int32", "int64")


@dataclasses.dataclass(frozen=True)
class Request:
    """One payload per lane of the group, to be communicated together.

    Args:
      payloads: a list with one dict per lane, `{part name: tensor}`, with the same names, static
        shapes and dtypes on every worker and every step.
    """

    payloads: Sequence[Payload]


class Sum(Request):
    """The elementwise sum over all workers; parts have a dtype of REDUCED."""


class Max(Request):
    """The elementwise maximum over all workers; parts have a dtype of REDUCED."""


class Gather(Request):
    """Every worker's payload, `[size, n]` a part, bit for bit; parts have a dtype of GATHERED."""


class AllToAll(Request):
    """Row w of every part goes to worker w; parts have a dtype of GATHERED."""


Rounds = Generator[Request, Sequence[Payload], tuple]

_FUSED: dict[tuple[type, type], Callable[..., Rounds]] = {}


def fuses(compressor: type, memory: type) -> Callable:
    """Declares a replacement of compensate + rounds + update for this pair of types.

    The function has the signature and the result of `exchange.lane_rounds`, of which it must be a
    bit-equal replacement: `(compressor, memory, grads, memory_states, states, ctx)`.
    """

    def declare(function: Callable[..., Rounds]) -> Callable[..., Rounds]:
        _FUSED[compressor, memory] = function
        return function

    return declare


def fused(compressor: type, memory: type) -> Callable[..., Rounds] | None:
    """The declared replacement for exactly this pair of types, or None."""
    return _FUSED.get((compressor, memory))
