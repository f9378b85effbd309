"""The line: what happens to a gradient between backward and the optimizer, told once.

    grad → Memory.compensate → Compressor.compress → wire.fuse → Transport → wire.split
         → Compressor.aggregate → Memory.restore → mean → optimizer
         Memory.update: residual = compensated − sent

Read `exchange` for one step of all workers of this process, `lane_rounds` for one lane group of one
worker, `communicate` for one round of one bucket.  Nothing here keeps state: it comes in, and the
next state goes out with a flag that says, alike on every worker, whether it may be committed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import tensorflow as tf

from grace_tf import ops, wire
from grace_tf.core.compressor import Compressor
from grace_tf.core.context import Context
from grace_tf.core.memory import Memory
from grace_tf.core.rounds import Request, Rounds, fused
from grace_tf.plan import Group, Plan, collective_key
from grace_tf.sparse import values_of, with_values
from grace_tf.transports.base import Transport


@dataclasses.dataclass
class Share:
    """One worker's part of a step: gradients and states in; aggregates, next states and flag out.

    `memory[ordinal]` and `compressor[ordinal]` are the states of a variable, nests of tensors.
    """

    grads: list[tf.Tensor | tf.IndexedSlices]
    memory: dict[int, dict[str, tf.Tensor]]
    compressor: dict[int, dict[str, tf.Tensor]]
    step: tf.Tensor
    finite: tf.Tensor | None = None  # on all workers
    own_finite: tf.Tensor | bool = True  # what this worker sends


def exchange(
    plan: Plan, shares: Sequence[Share], transport: Transport, summed: bool
) -> list[Share]:
    """One step: `shares[i]` belongs to worker `transport.workers[i]`; returns what each gets.

    With `summed` the host sums gradients that it divided by the number of workers before (Keras
    under a strategy); else it takes the mean.  The codec sees the worker's own gradient either way.
    """
    results = [Share([None] * len(s.grads), {}, {}, s.step, tf.constant(True)) for s in shares]
    for b, bucket in enumerate(plan.buckets):
        generators, bad = [], []
        for i, share in enumerate(shares):
            with transport.device(i):
                inputs = [
                    _inputs(group, share, transport.size if summed else 1) for group in bucket
                ]
                bad.append(_any_non_finite(bucket, inputs, share))
                generators.append(
                    [
                        _start(group, xs, share, _context(plan, group, share, transport, i))
                        for group, xs in zip(bucket, inputs)
                    ]
                )
        outcomes, flags = _drive(plan, b, generators, bad, transport)
        for i, result in enumerate(results):
            with transport.device(i):
                result.own_finite &= ~bad[i]
                for group, outcome in zip(bucket, outcomes[i]):
                    _deliver(group, outcome, result, shares[i], transport.size, summed)
                result.finite &= ~flags[i]
    if plan.sparse:
        # Last, since backward comes to tables of embeddings last.
        _exchange_rows(plan, shares, results, transport, summed)
    for i, result in enumerate(results):
        with transport.device(i):
            # A sum of finite payloads may still overflow; every worker sees the same aggregate.
            result.finite &= _all_finite([values_of(g) for g in result.grads])
    return results


def lane_rounds(
    compressor: Compressor,
    memory: Memory,
    grads: Sequence[tf.Tensor],
    memory_states: Sequence[dict[str, tf.Tensor]],
    states: Sequence[dict[str, tf.Tensor]],
    ctx: Context,
) -> Rounds:
    """One lane group of one worker, from gradients to aggregates: the composition that `fuses`
    may replace.

    Returns (totals, memory_states, states).  Where the group is merged there is one lane for the
    compressor and still one memory per variable.
    """
    merged = len(ctx) != len(grads)
    compensated = [memory.compensate(x, m) for x, m in zip(grads, memory_states)]
    xs = [_flat(compensated)] if merged else compensated
    totals, sent, states = yield from compressor.rounds(xs, states, ctx)
    if merged:
        totals, sent = _unflat(totals[0], grads), _unflat(sent[0], grads)
    totals = [memory.restore(t, m) for t, m in zip(totals, memory_states)]
    kept = [memory.update(x, s, m) for x, s, m in zip(compensated, sent, memory_states)]
    return totals, kept, states


def communicate(
    buffers: Sequence[wire.Buffer],
    requests: Sequence[Sequence[Request | None]],
    bad: Sequence[tf.Tensor],
    transport: Transport,
    keys: Sequence[int],
) -> tuple[list, list]:
    """One round of one bucket: `requests[worker][group]` → replies nested alike, and flags."""
    replies = [[[{} for _ in r.payloads] if r else None for r in mine] for mine in requests]
    flags: list[tf.Tensor | None] = [None] * len(requests)
    for buffer, key in zip(buffers, keys):
        sent = []
        for i, mine in enumerate(requests):
            with transport.device(i):
                sent.append(wire.fuse(buffer, mine, bad[i]))
        received = getattr(transport, buffer.kind)(sent, key)
        for i, reply in enumerate(received):
            with transport.device(i):
                flag = wire.split(buffer, reply, replies[i])
                flags[i] = flag if flag is not None else flags[i]
    return replies, flags


def _exchange_rows(plan: Plan, shares, results, transport: Transport, summed: bool) -> None:
    """Sparse lanes: whether their rows are finite shows when all workers' have come."""
    mine = [[share.grads[lane.position] for lane in plan.sparse] for share in shares]
    key = functools.partial(collective_key, plan.digest, plan.ordinal, "rows")
    for i, totals in enumerate(transport.rows(mine, key)):
        with transport.device(i):
            for lane, total in zip(plan.sparse, totals):
                if not summed and transport.size > 1:
                    total = with_values(total, _mean(total.values, transport.size))
                results[i].grads[lane.position] = total


def _drive(plan: Plan, b: int, generators, bad, transport: Transport) -> tuple[list, list]:
    """Runs all groups of a bucket on all workers of this process in lock-step, round by round."""
    outcomes = [[None] * len(mine) for mine in generators]
    requests = [
        [_advance(transport, i, g, generator, None, outcomes) for g, generator in enumerate(mine)]
        for i, mine in enumerate(generators)
    ]
    flags, round_ = None, 0
    while round_ == 0 or any(r is not None for r in requests[0]):
        buffers = wire.layout(requests[0], flagged=round_ == 0)
        keys = [plan.key(b, round_, buffer.kind, buffer.dtype) for buffer in buffers]
        replies, raised = communicate(buffers, requests, bad, transport, keys)
        flags = raised if round_ == 0 else flags
        requests = [
            [
                _advance(transport, i, g, generator, replies[i][g], outcomes)
                if requests[i][g]
                else None
                for g, generator in enumerate(mine)
            ]
            for i, mine in enumerate(generators)
        ]
        round_ += 1
    return outcomes, flags


def _advance(transport: Transport, i: int, g: int, generator, reply, outcomes) -> Request | None:
    with transport.device(i):
        try:
            return generator.send(reply)
        except StopIteration as stop:
            outcomes[i][g] = stop.value
            return None


def _start(group: Group, xs: Sequence[tf.Tensor], share: Share, ctx: Context) -> Rounds:
    memories = [share.memory.get(lane.ordinal, {}) for lane in group.lanes]
    states = [share.compressor.get(ordinal, {}) for ordinal in group.ordinals]
    rounds = fused(type(group.compressor), type(group.memory))
    if rounds is None or group.merged:
        rounds = lane_rounds
    return rounds(group.compressor, group.memory, xs, memories, states, ctx)


def _deliver(group: Group, outcome, result: Share, share: Share, size: int, summed: bool) -> None:
    totals, memories, states = outcome
    for lane, total, memory in zip(group.lanes, totals, memories):
        grad = share.grads[lane.position]
        if lane.dense:
            result.grads[lane.position] = total if summed or size == 1 else _mean(total, size)
            continue
        if group.compressor.aggregates == "sum" and size > 1:
            total = _mean(total, size)
        if grad.dtype != total.dtype:
            # What is finite as float32 must not stop a narrow gradient's step for ever.
            result.finite &= _all_finite([total])
            total = tf.saturate_cast(total, grad.dtype)
        result.grads[lane.position] = total
        result.memory[lane.ordinal] = memory
    for ordinal, state in zip(group.ordinals, states):
        result.compressor[ordinal] = state


def _mean(total: tf.Tensor, size: int) -> tf.Tensor:
    if total.dtype.is_integer:
        return total // size
    # Graphs turn a division by a constant into this product, and eager steps must give the same
    # bits.
    return total * tf.constant(1 / size, total.dtype)


def _context(plan: Plan, group: Group, share: Share, transport: Transport, i: int) -> Context:
    return Context(
        group.specs, group.ordinals, share.step, plan.seed, transport.size, transport.workers[i]
    )


def _inputs(group: Group, share: Share, divided_by: int) -> list[tf.Tensor]:
    """The group's gradients; in compressed lanes as float32 and as if the mean were wanted."""
    grads = [share.grads[lane.position] for lane in group.lanes]
    if group.lanes[0].dense:
        return grads
    grads = [tf.cast(g, tf.float32) for g in grads]
    return grads if divided_by == 1 else [g * float(divided_by) for g in grads]


def _any_non_finite(bucket, inputs, share: Share) -> tf.Tensor:
    # Compensated, since gradient + residual may overflow where neither is infinite; the graph's
    # optimizer merges this addition with the one in `lane_rounds`.
    seen = [
        group.memory.compensate(x, share.memory.get(lane.ordinal, {}))
        for group, xs in zip(bucket, inputs)
        for lane, x in zip(group.lanes, xs)
    ]
    return ~_all_finite(seen)


def _all_finite(xs: Sequence[tf.Tensor]) -> tf.Tensor:
    finite = ops.all_finite([x for x in xs if x.dtype == tf.float32])
    for x in xs:
        if x.dtype.is_floating and x.dtype != tf.float32:
            finite &= tf.reduce_all(tf.math.is_finite(x))
    return finite


def _flat(xs: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(x, [-1]) for x in xs], 0)


def _unflat(flat: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    pieces = tf.split(flat, [x.shape.num_elements() for x in like])
    return [tf.reshape(piece, x.shape) for piece, x in zip(pieces, like)]
