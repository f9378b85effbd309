"""Requests, the outcome of a lane group, and the table of fused forms.

A compressor communicates by yielding a request that holds payloads: one for each lane, or one for
the whole group.  It gets back as many replies with the same part names: the sum or maximum over
workers (`Sum`, `Max`), or every worker's part under a leading axis of workers (`Gather`).  Parts of
`AllToAll` are `[size, n]`: row w goes to worker w, and row w of the reply came from worker w.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend.words_as_floats import joined

Payload = dict[str, tf.Tensor]

# The dtypes of parts: those that collectives gather, and those that collectives reduce.
GATHERED = ("float32", "int32", "uint32", "float16", "bfloat16", "int16", "uint16")
REDUCED = ("float32", "float16", "bfloat16", "float64", "int32", "int64")


@dataclasses.dataclass(frozen=True)
class Request:
    """Payloads of a lane group, which are communicated together.

    On the wire the parts of one name lie end to end, in the order of the payloads.  So one payload
    for the group, whose parts are the lanes' parts end to end, has the same bits as one payload for
    each lane.

    Args:
      payloads: a list of dicts `{part name: tensor}`: one for each lane, or one for the whole
        group.  Names, static shapes and dtypes are the same on every worker and every step.
      finite: in a group's first request: a bool scalar, whether all that this worker compresses is
        finite.  A fused form gives it; for all others the line computes it.  Uncompressed lanes
        need no flag, since a non-finite value makes their sum non-finite on every worker.
    """

    payloads: Sequence[Payload]
    finite: tf.Tensor | None = None


class Sum(Request):
    """The elementwise sum over all workers; parts have a dtype of REDUCED."""


class Max(Request):
    """The elementwise maximum over all workers; parts have a dtype of REDUCED."""


class Gather(Request):
    """Every worker's payload, `[size, n]` a part, bit for bit; parts have a dtype of GATHERED."""


class AllToAll(Request):
    """Row w of every part goes to worker w; parts have a dtype of GATHERED."""


Rounds = Generator[Request, Sequence[Payload], Any]


@dataclasses.dataclass
class Outcome:
    """The result of a step for a lane group of one worker, one entry for each lane.

    Attributes:
      aggregates: what the optimizer gets: the mean over workers, or their consensus.
      memories: the next states of the memory, `{leaf name: tensor}`.
      states: the next states of the compressor.
      finite: a bool scalar, whether all aggregates are finite; None where that is not yet known.
    """

    aggregates: list[tf.Tensor]
    memories: Sequence[dict[str, tf.Tensor]]
    states: Sequence[dict[str, tf.Tensor]]
    finite: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Fused:
    """A fused form and where it may run: `when(compressor, xs)`, a Python bool."""

    rounds: Callable[..., Rounds]
    when: Callable[[Any, Sequence[tf.Tensor]], bool]
    composites: bool


_FUSED: dict[tuple[type, type], Fused] = {}


def fuses(
    compressor: type,
    *memories: type,
    when: Callable[[Any, Sequence[tf.Tensor]], bool] = lambda compressor, xs: True,
    composites: bool = False,
) -> Callable:
    """Declares a replacement of compensate, compress, aggregate and settle for these types.

    The function has the signature of `exchange.composed`, `(compressor, memory, xs, memories,
    states, ctx)`, and must give the same bits as it: the same parts on the wire, and the same
    `Outcome`.  A test runs every fused form against the composition.  The composition runs where
    `when` returns False, and for subclasses of the compressor or of a memory.

    Args:
      compressor: the type of the method.
      memories: the types of memories that the form serves.
      when: called with the compressor and the gradients while a step is traced; it looks at
        hyperparameters, devices and whether the native library is loaded.
      composites: whether the form also serves composites whose outer method has the type.

    A `ListCompressor` needs it only for memories without the trait `in_encode`.

    Example:

        @fuses(SignSGD, Momentum, when=lambda compressor, xs: dispatch.runs_here(xs))
        def averaged_in_one_pass(compressor, memory, xs, memories, states, ctx):
            momenta = [state["momentum"] for state in memories]
            words, averages, finite = momentum_sign_list(xs, momenta, ctx.multiplier, memory.beta)
            (reply,) = yield Gather([{"signs": words}], finite)
            votes, finite = compressor.decode(reply, 1.0, ctx)
            next_memories = [{"momentum": average} for average in averages]
            return Outcome(votes, next_memories, states, finite)
    """

    def declare(function: Callable[..., Rounds]) -> Callable[..., Rounds]:
        for memory in memories:
            _FUSED[compressor, memory] = Fused(function, when, composites)
        return function

    return declare


_AFTER: dict[type, tuple[str, Callable[[Any], bool], Callable]] = {}


def settles_after(
    memory: type, base: str, when: Callable[[Any], bool] = lambda memory: True
) -> Callable:
    """Declares that a memory settles as the memory named `base` does, and then changes the result.

    So the fused forms of `base`, a memory whose states have the same leaves, serve this memory too.
    The function gets the memory, its states before the step, the states that `base` returns, one
    for each lane, and the sender's `Context` of the lane group.  It returns the memory's next
    states, the same bits as its `settle`.  `base` may be the memory itself, with a `when` that says
    by the hyperparameters of a memory whether the function is needed.
    """

    def declare(function: Callable) -> Callable:
        _AFTER[memory] = base, when, function
        return function

    return declare


def fused(compressor: Any, memory: Any, xs: Sequence[tf.Tensor]) -> Callable[..., Rounds] | None:
    """The fused form for exactly these types that may run on these gradients, or None.

    The first of these that exists: the form declared for both types; `encode` of the method, for a
    memory with the trait `in_encode`; the form for the memory that `settles_after` names, followed
    by its function; and, for a method of one round, its form for a memory without state, with this
    memory around it.
    """
    outer = getattr(compressor, "outer", compressor)

    def declared(base: type | None) -> Callable[..., Rounds] | None:
        found = _FUSED.get((type(outer), base))
        if found is None or (outer is not compressor and not found.composites):
            return None
        return found.rounds if found.when(compressor, xs) else None

    def encoding() -> Callable[..., Rounds] | None:
        encodes = outer is compressor and getattr(compressor, "encodes", False)
        return _encoded if encodes and dispatch.runs_here(xs) else None

    def named(name: str) -> type | None:
        return next((m for c, m in _FUSED if c is type(outer) and m.name == name), None)

    base, when, after = _AFTER.get(type(memory), ("", None, None))
    if base and when(memory):
        if found := declared(named(base)) or encoding():
            return _followed(found, after)
    elif (type(outer), type(memory)) in _FUSED or "in_encode" in vars(type(memory)):
        return declared(type(memory)) or encoding()
    found = declared(named("none")) or encoding() if compressor.one_round else None
    return found and _surrounded(found)


def _encoded(compressor, memory, xs, memories, states, ctx) -> Rounds:
    return compressor.in_one_round(memory, xs, memories, states, ctx)


def _followed(form: Callable[..., Rounds], after: Callable) -> Callable[..., Rounds]:
    def rounds(compressor, memory, xs, memories, states, ctx):
        outcome = yield from form(compressor, memory, xs, memories, states, ctx)
        states = after(memory, memories, outcome.memories, ctx)
        return dataclasses.replace(outcome, memories=states)

    return rounds


def _surrounded(form: Callable[..., Rounds]) -> Callable[..., Rounds]:
    """A form for a memory without state, with another memory before and after it."""

    def rounds(compressor, memory, xs, memories, states, ctx):
        if ctx.multiplier != 1:
            xs = [x * ctx.multiplier for x in xs]
        compensated, carries = memory.compensate_list(xs, memories, ctx)
        inner = dataclasses.replace(ctx, multiplier=1.0, needs_sent=False)
        steps = form(compressor, None, compensated, [{}] * len(ctx), states, inner)
        request = next(steps)
        replies = yield request
        try:
            steps.send(replies)
            raise RuntimeError(f"{compressor} says that it is one round, and asks for another.")
        except StopIteration as stop:
            outcome = stop.value
        sent = [None] * len(ctx)
        if ctx.needs_sent:
            sent = compressor.decompress_list(joined(request.payloads), inner.public())
        totals = outcome.aggregates
        aggregates, next_memories = memory.settle_list(carries, sent, totals, memories, ctx)
        return Outcome(aggregates, next_memories, outcome.states)

    return rounds
