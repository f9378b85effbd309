"""One step of the lanes whose gradients are compressed as rows; sparse_policy.py says which.

It takes the rows that each worker of this process touched, repeated ones too.  It returns the sums
of all workers' rows, each row once, and the next states of the memory for the rows that this worker
touched.  Workers first compare how many rows they have, then gather their words.  So nothing
overflows, and the cost of a step grows with the rows that it touches, not with the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.context import Context
from grace_tf.line import row_selection
from grace_tf.line.plan import LaneGroup, Plan
from grace_tf.line.sparse_gradients import with_values
from grace_tf.transports.base import Transport
from grace_tf.transports.rows import summed


@dataclasses.dataclass
class Sender:
    """The input of one worker, one entry a lane: its rows, states of the memory, contexts.

    The leaves of a state may be variables: only the touched rows of them are read.
    """

    grads: Sequence[tf.IndexedSlices]
    memories: Sequence[dict[str, tf.Tensor]]
    contexts: Sequence[Context]


@dataclasses.dataclass
class Received:
    """The result for one worker: sums over workers and next states, one a lane, whether the values
    of all workers are finite, and whether those of this worker are."""

    totals: list[tf.IndexedSlices]
    memories: list[dict[str, tf.IndexedSlices]]
    finite: tf.Tensor
    own_finite: tf.Tensor


@dataclasses.dataclass
class _Sent:
    words: tf.Tensor
    counts: tf.Tensor  # how many rows each lane sends; then 1 where a value is not finite, or 0
    memories: list[dict[str, tf.IndexedSlices]]
    finite: tf.Tensor


def communicate(plan: Plan, senders: Sequence[Sender], transport: Transport) -> list[Received]:
    """One step of the lanes `plan.by_rows` on the workers of this process."""
    groups, sent = plan.by_rows, []
    for i, sender in enumerate(senders):
        with transport.device(i):
            sent.append(_send(groups, sender))
    tables = transport.gather([each.counts for each in sent], plan.message_key("lengths"))
    with transport.device(0):
        longest = tf.reduce_max(tf.reduce_sum(_lengths(groups, tables[0]), 1))
    words = transport.messages([each.words for each in sent], longest, plan.message_key)
    received = []
    for i, sender in enumerate(senders):
        with transport.device(i):
            # Between copies within a process there may be one result for all workers.
            if i == 0 or words[i] is not words[0]:
                totals = _receive(groups, sender, tables[i], words[i])
            finite = tf.reduce_all(tables[i][:, -1] == 0)
            received.append(Received(totals, sent[i].memories, finite, sent[i].finite))
    return received


@dataclasses.dataclass
class _Compensated:
    """The rows of one lane of one worker after `compensate`, and what `settle` takes."""

    rows: tf.IndexedSlices  # each row once
    chosen: tf.Tensor | None  # the positions of the rows that are sent; None: all of them
    leaves: dict[str, tf.Tensor]
    carry: Any
    ctx: Context

    def sent(self) -> tf.IndexedSlices:
        """The rows that are sent."""
        if self.chosen is None:
            return self.rows
        values, indices = (
            tf.gather(each, self.chosen) for each in (self.rows.values, self.rows.indices)
        )
        return tf.IndexedSlices(values, indices, self.rows.dense_shape)

    def stands_for(self, decoded: tf.Tensor | None) -> tf.Tensor | None:
        """What was sent, in the shape of the rows, from its decoded form."""
        if decoded is None or self.chosen is None:
            return decoded
        # A row that is not sent decodes to zeros, so its residual is the row itself, bit for bit.
        return tf.scatter_nd(self.chosen[:, tf.newaxis], decoded, tf.shape(self.rows.values))


def _send(groups: Sequence[LaneGroup], sender: Sender) -> _Sent:
    inputs = zip(sender.grads, sender.memories, sender.contexts)
    words, counts, memories, seen = [], [], [], []
    for group in groups:
        lanes = [_prepared(group, *next(inputs)) for _ in group.lanes]
        sent = [lane.sent() for lane in lanes]
        made, decoded = group.chunks.encode(
            _joined([tf.cast(each.indices, group.chunks.index) for each in sent]),
            _joined([each.values for each in sent]),
            lanes[0].ctx,
        )
        sizes = [tf.shape(each.indices)[0] for each in sent]
        for lane, values in zip(lanes, _apart(decoded, sizes)):
            # `settle` of a memory with the trait `by_rows` does not look at the total.
            compensated, stands_for = lane.rows.values, lane.stands_for(values)
            _, leaves = group.memory.settle(
                lane.carry, stands_for, compensated, lane.leaves, lane.ctx
            )
            where = lane.rows.indices
            memories.append({k: tf.IndexedSlices(leaf, where) for k, leaf in leaves.items()})
            seen.append(compensated)
        words.append(made)
        counts += sizes
    finite = ops.all_finite(seen)
    counts.append(tf.cast(~finite, tf.int32))
    return _Sent(tf.concat(words, 0), tf.stack(counts), memories, finite)


def _prepared(
    group: LaneGroup, grad: tf.IndexedSlices, state: dict[str, tf.Tensor], ctx: Context
) -> _Compensated:
    values = tf.cast(grad.values, tf.float32)
    rows = summed(values * ctx.multiplier, grad.indices, grad.dense_shape)
    leaves = {name: tf.gather(leaf, rows.indices) for name, leaf in state.items()}
    compensated, carry = group.memory.compensate(rows.values, leaves, ctx)
    rows = with_values(rows, compensated)
    ratio = group.compressor.row_share
    chosen = None if ratio is None else row_selection.largest(rows, ratio)
    return _Compensated(rows, chosen, leaves, carry, ctx)


def _joined(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, 0)


def _apart(joined: tf.Tensor | None, sizes: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
    if joined is None or len(sizes) == 1:
        return [joined] * len(sizes)
    return tf.split(joined, tf.stack(sizes), num=len(sizes))


def _tables(groups: Sequence[LaneGroup], table: tf.Tensor) -> list[tf.Tensor]:
    """The number of rows by worker and lane, `[size, lanes]`, of each group."""
    return tf.split(table[:, :-1], [len(group.lanes) for group in groups], 1)


def _lengths(groups: Sequence[LaneGroup], table: tf.Tensor) -> tf.Tensor:
    """How many words each group of each worker has, `[size, groups]`."""
    rows = [tf.reduce_sum(each, 1) for each in _tables(groups, table)]
    return tf.stack([group.chunks.length(each) for group, each in zip(groups, rows)], 1)


def _receive(
    groups: Sequence[LaneGroup], sender: Sender, table: tf.Tensor, words: tf.Tensor
) -> list[tf.IndexedSlices]:
    begins = tf.range(tf.shape(words)[0]) * tf.shape(words)[1]
    starts = begins[:, None] + tf.cumsum(_lengths(groups, table), axis=1, exclusive=True)
    flat, totals = tf.reshape(words, [-1]), []
    inputs = zip(sender.grads, sender.contexts)
    for i, (group, counts) in enumerate(zip(groups, _tables(groups, table))):
        mine = [next(inputs) for _ in group.lanes]
        rows, ctx = tf.reduce_sum(counts, 1), mine[0][1].public()
        indices, values = group.chunks.decode(flat, starts[:, i], rows, ctx)
        found = zip(*(_by_lane(each, counts) for each in (indices, values)))
        for (grad, _), (where, decoded) in zip(mine, found):
            totals.append(summed(decoded, tf.cast(where, grad.indices.dtype), grad.dense_shape))
    return totals


def _by_lane(rows: tf.Tensor, counts: tf.Tensor) -> list[tf.Tensor]:
    """Rows in the order of workers, and of lanes within a worker, as one tensor for each lane."""
    size, lanes = counts.shape
    if lanes == 1:
        return [rows]
    pieces = tf.split(rows, tf.reshape(counts, [-1]), num=size * lanes)
    return [tf.concat(pieces[lane::lanes], 0) for lane in range(lanes)]
