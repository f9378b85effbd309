"""The line: everything that happens to a gradient between backward and the optimizer.

    grad → Memory.compensate → Compressor.compress → wire.fuse → Transport → wire.split
         → Compressor.aggregate → mean → Memory.settle → optimizer

Read `exchange` for one step of all workers of this process, `composed` for one lane group of one
worker, `round_driver.communicate` for one round of one bucket.  Nothing here stores state: the
functions take the states and return the next ones, with a flag, the same on every worker, that says
whether they may be committed.

Buckets advance as a wavefront: in each tick every started bucket does its next round, and one more
bucket starts.  No round waits for another bucket: between buckets there are no data and no control
dependencies.  Their collectives may run at the same time, since each has its own key (`Plan.key`),
all workers start the same ones in the same order, and no waiting collective holds a thread that
another one needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.context import Context
from grace_tf.core.memory import Memory
from grace_tf.core.rounds import Outcome, Rounds, Sum, fused
from grace_tf.line import compressed_rows
from grace_tf.line.compressed_rows import Received, Sender
from grace_tf.line.dense_lanes import mean, uncompressed
from grace_tf.line.host_sums import added_up
from grace_tf.line.lanes import Lane
from grace_tf.line.plan import LaneGroup, Plan
from grace_tf.line.round_driver import Bucket, GroupRounds, Watch
from grace_tf.line.sparse_gradients import all_finite, with_values
from grace_tf.line.two_hops import in_two_hops
from grace_tf.transports.base import Transport


@dataclasses.dataclass
class Share:
    """One worker's part of a step: the gradients and states, or the aggregates and next states.

    `memory[ordinal]` and `compressor[ordinal]` are the states of a variable, nests of tensors.
    """

    grads: list[tf.Tensor | tf.IndexedSlices]
    memory: dict[int, dict[str, tf.Tensor]]
    compressor: dict[int, dict[str, tf.Tensor]]
    step: tf.Tensor
    finite: tf.Tensor | None = None  # on all workers
    own_finite: Callable[[], tf.Tensor] | None = None  # of this worker; reads the gradients again


def exchange(
    plan: Plan,
    shares: Sequence[Share],
    transport: Transport,
    summed: bool,
    watch: Watch | None = None,
) -> list[Share]:
    """One step: `shares[i]` belongs to worker `transport.workers[i]`; returns what each gets.

    With `summed` the caller has divided the gradients by the number of workers (as Keras does under
    a strategy) and gets their sum; else it gets the mean.  In both cases the compressor sees the
    undivided gradient of one worker; where a worker is a host of several processes, their mean.
    `watch`: sees the collectives of all buckets, or None.
    """
    if transport.inside is not None:
        shares = [
            dataclasses.replace(share, grads=added_up(plan, share.grads, transport.inside))
            for share in shares
        ]
    workers = [_Worker(plan, share, transport, i, summed) for i, share in enumerate(shares)]
    waiting, under_way = list(range(len(plan.buckets))), []
    while waiting or under_way:
        if waiting:
            b = waiting.pop(0)
            running = [worker.start(b) for worker in workers]
            under_way.append(Bucket(plan, b, running, transport, watch))
        under_way = [bucket for bucket in under_way if not bucket.advance()]
    # Rows go last, since backward computes the gradients of embedding tables last.
    if plan.by_rows:
        _exchange_compressed_rows(plan, workers, transport)
    if plan.sparse:
        _exchange_rows(plan, shares, workers, transport, summed)
    return [worker.finish() for worker in workers]


def composed(
    compressor: Compressor,
    memory: Memory,
    xs: Sequence[tf.Tensor],
    memories: Sequence[dict[str, tf.Tensor]],
    states: Sequence[dict[str, tf.Tensor]],
    ctx: Context,
) -> Rounds:
    """One lane group of one worker, from gradients to aggregates; `fuses` may replace it.

    Args:
      xs: the worker's gradients, float32.
      memories, states: the states of the memory and of the compressor, one for each lane.
      ctx: the sender's `Context` of the lane group.
    Returns: an `Outcome`.
    """
    if ctx.multiplier != 1:
        xs = [x * ctx.multiplier for x in xs]
    compensated, carries = memory.compensate_list(xs, memories, ctx)
    finite = ops.all_finite(compensated)
    rounds = compressor.rounds(compensated, states, ctx)
    replies, asked = None, False
    while True:
        try:
            request = rounds.send(replies)
        except StopIteration as stop:
            totals, sent, states = stop.value
            break
        replies = yield request if asked else dataclasses.replace(request, finite=finite)
        asked = True
    if not asked:
        yield Sum([], finite)  # sends only the flag
    if compressor.aggregates == "sum":  # a consensus is never divided
        totals = [mean(total, ctx.size) for total in totals]
    sent = sent or [None] * len(ctx)
    return Outcome(*memory.settle_list(carries, sent, totals, memories, ctx), states)


class _Worker:
    """One worker of this process in one step: turns its `Share` into its result."""

    def __init__(
        self, plan: Plan, share: Share, transport: Transport, position: int, summed: bool
    ) -> None:
        self._plan, self._share, self._summed = plan, share, summed
        self._transport, self._position = transport, position
        self._running: list[GroupRounds] = []
        self.rows: list[tuple[int, tf.IndexedSlices]] = []
        self.unseen: list[tf.Tensor] = []  # aggregates that no decoder has checked for finiteness
        self._by_rows: Received | None = None

    def start(self, bucket: int) -> list[GroupRounds]:
        """Starts the rounds of all groups of a bucket: each holds its first request."""
        with self._transport.device(self._position):
            running = [
                GroupRounds(group, self._rounds(group)) for group in self._plan.buckets[bucket]
            ]
        self._running += running
        return running

    def _rounds(self, group: LaneGroup) -> Rounds:
        share = self._share
        xs = [share.grads[lane.position] for lane in group.lanes]
        ctx = self._context(group, group.specs, group.ordinals)
        if group.dense:
            xs = [x if x.dtype == s.dtype else tf.cast(x, s.dtype) for x, s in zip(xs, group.specs)]
            return uncompressed(xs, ctx, 1 if self._summed else self._transport.gradients)
        xs = [x if x.dtype == tf.float32 else tf.cast(x, tf.float32) for x in xs]
        stored = [share.memory.get(lane.ordinal, {}) for lane in group.lanes]
        memories = group.memory.load(stored, [lane.spec for lane in group.lanes])
        states = [share.compressor.get(ordinal, {}) for ordinal in group.ordinals]
        if group.merged:
            leaves = memories[0]
            memories = [{leaf: _flat([m[leaf] for m in memories]) for leaf in leaves}]
            xs = [_flat(xs)]
        form = fused(group.compressor, group.memory, xs) or composed
        rounds = form(group.compressor, group.memory, xs, memories, states, ctx)
        if group.takes_two_hops(ctx.size):
            return in_two_hops(rounds, group.compressor, group.memory, ctx)
        return rounds

    def _context(self, group: LaneGroup, specs: Sequence, ordinals: Sequence[int]) -> Context:
        size = self._transport.size
        return Context(
            tuple(specs),
            tuple(ordinals),
            self._share.step,
            self._plan.seed,
            size,
            self._transport.workers[self._position],
            multiplier=float(size) if self._summed else size / self._transport.gradients,
            needs_sent=group.memory.needs_sent,
            dense=group.claimed,
        )

    def sender(self) -> Sender:
        """This worker's input for the lanes of compressed rows."""
        share, lanes = self._share, self._row_lanes
        return Sender(
            [share.grads[lane.position] for _, lane in lanes],
            [share.memory.get(lane.ordinal, {}) for _, lane in lanes],
            [self._context(group, (lane.spec,), (lane.ordinal,)) for group, lane in lanes],
        )

    @property
    def _row_lanes(self) -> list[tuple[LaneGroup, Lane]]:
        return [(group, lane) for group in self._plan.by_rows for lane in group.lanes]

    def receive(self, received: Received) -> None:
        """Takes the result of the lanes of compressed rows."""
        self._by_rows = received
        for (_, lane), total in zip(self._row_lanes, received.totals):
            values = mean(total.values, self._transport.size)
            self.unseen.append(values)  # before a cast that turns infinity into the largest number
            if lane.dtype != "float32":
                values = tf.saturate_cast(values, lane.dtype)
            self.rows.append((lane.position, with_values(total, values)))

    def finish(self) -> Share:
        """The aggregates and next states of all groups, and whether they may be committed."""
        share = self._share
        result = Share([None] * len(share.grads), {}, {}, share.step)
        with self._transport.device(self._position):
            unseen, flags, dense = self.unseen, [], []
            own_flags = [one.own_finite for one in self._running if one.own_finite is not None]
            for one in self._running:
                outcome = one.outcome
                if one.own_finite is None:
                    dense += [share.grads[lane.position] for lane in one.group.lanes]
                flags.append(one.finite)
                if outcome.finite is None:
                    unseen += outcome.aggregates
                else:
                    flags.append(outcome.finite)
                self._deliver(one.group, outcome, result)
            for position, rows in self.rows:
                result.grads[position] = rows
            if self._by_rows is not None:
                flags.append(self._by_rows.finite)
                own_flags.append(self._by_rows.own_finite)
                for (_, lane), memory in zip(self._row_lanes, self._by_rows.memories):
                    result.memory[lane.ordinal] = memory
            # A sum of finite payloads may still overflow; every worker sees the same aggregate.
            result.finite = tf.reduce_all([*flags, all_finite(unseen)])
            result.own_finite = lambda: tf.reduce_all([*own_flags, all_finite(dense)])
        return result

    def _deliver(self, group: LaneGroup, outcome: Outcome, result: Share) -> None:
        aggregates, memories = outcome.aggregates, outcome.memories
        if group.merged:
            shapes = [lane.shape for lane in group.lanes]
            aggregates = _unflat(aggregates[0], shapes)
            split = {leaf: _unflat(value, shapes) for leaf, value in memories[0].items()}
            memories = [{leaf: split[leaf][i] for leaf in split} for i in range(len(shapes))]
        specs, ordinals = zip(*[(lane.spec, lane.ordinal) for lane in group.lanes])
        memories = group.memory.store(memories, self._context(group, specs, ordinals).stored())
        for lane, aggregate, memory in zip(group.lanes, aggregates, memories):
            if aggregate.dtype.name != lane.dtype:
                # A value that is finite only in float32 is cut to the largest number of a narrow
                # dtype: as infinity it would stop every step.
                aggregate = tf.saturate_cast(aggregate, lane.dtype)
            result.grads[lane.position] = aggregate
            result.memory[lane.ordinal] = memory
        for ordinal, state in zip(group.ordinals, outcome.states):
            result.compressor[ordinal] = state


def _exchange_compressed_rows(plan: Plan, workers: Sequence[_Worker], transport: Transport) -> None:
    received = compressed_rows.communicate(plan, [worker.sender() for worker in workers], transport)
    for i, (worker, result) in enumerate(zip(workers, received)):
        with transport.device(i):
            worker.receive(result)


def _exchange_rows(plan: Plan, shares, workers, transport: Transport, summed: bool) -> None:
    """Exchanges rows in full precision; their sums show on all workers whether they are finite."""
    mine = [[share.grads[lane.position] for lane in plan.sparse] for share in shares]
    for i, totals in enumerate(transport.rows(mine, plan.row_key)):
        with transport.device(i):
            for lane, total in zip(plan.sparse, totals):
                if not summed and transport.gradients > 1:
                    total = with_values(total, mean(total.values, transport.gradients))
                workers[i].rows.append((lane.position, total))
                workers[i].unseen.append(total.values)


def _flat(xs: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(x, [-1]) for x in xs], 0)


def _unflat(flat: tf.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[tf.Tensor]:
    pieces = tf.split(flat, [tf.TensorShape(shape).num_elements() for shape in shapes])
    return [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes)]
