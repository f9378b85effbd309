"""One step of the lanes whose gradients are compressed as rows; sparse_policy.py says which.

It takes the rows that each worker of this process touched, repeated ones too.  It returns the sums
of all workers' rows, each row once, and the next states of the memory for the rows that this worker
touched.  Workers first compare how many rows they have, then gather their words.  So nothing
overflows, and the cost of a step grows with the rows that it touches, not with the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.context import Context
from grace_tf.line import row_selection
from grace_tf.line.plan import LaneGroup, Plan
from grace_tf.line.row_chunks import Chunks
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
    chunks = [group.chunks for group in plan.by_rows]
    sent = []
    for i, sender in enumerate(senders):
        with transport.device(i):
            sent.append(_send(plan.by_rows, sender))
    tables = transport.gather([each.counts for each in sent], plan.message_key("lengths"))
    with transport.device(0):
        longest = tf.reduce_max(tf.reduce_sum(_lengths(chunks, tables[0]), 1))
    words = transport.messages([each.words for each in sent], longest, plan.message_key)
    received = []
    for i, sender in enumerate(senders):
        with transport.device(i):
            # Between copies within a process there may be one result for all workers.
            if i == 0 or words[i] is not words[0]:
                totals = _receive(chunks, sender, tables[i], words[i])
            finite = tf.reduce_all(tables[i][:, -1] == 0)
            received.append(Received(totals, sent[i].memories, finite, sent[i].finite))
    return received


def _send(groups: Sequence[LaneGroup], sender: Sender) -> _Sent:
    words, counts, memories, seen = [], [], [], []
    for group, grad, state, ctx in zip(groups, sender.grads, sender.memories, sender.contexts):
        values = tf.cast(grad.values, tf.float32)
        rows = summed(values * ctx.multiplier, grad.indices, grad.dense_shape)
        leaves = {name: tf.gather(leaf, rows.indices) for name, leaf in state.items()}
        compensated, carry = group.memory.compensate(rows.values, leaves, ctx)
        made, stands_for, count = _encoded(group, with_values(rows, compensated), ctx)
        # `settle` of a memory with the trait `by_rows` does not look at the total.
        _, leaves = group.memory.settle(carry, stands_for, compensated, leaves, ctx)
        memories.append({k: tf.IndexedSlices(leaf, rows.indices) for k, leaf in leaves.items()})
        words.append(made)
        counts.append(count)
        seen.append(compensated)
    finite = ops.all_finite(seen)
    counts.append(tf.cast(~finite, tf.int32))
    return _Sent(tf.concat(words, 0), tf.stack(counts), memories, finite)


def _encoded(
    group: LaneGroup, rows: tf.IndexedSlices, ctx: Context
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
    """(words, what they stand for in the shape of `rows.values`, how many rows they hold)."""
    indices, values, ratio = rows.indices, rows.values, group.compressor.row_share
    if ratio is None:
        return *group.chunks.encode(indices, values, ctx), tf.shape(indices)[0]
    chosen = row_selection.largest(rows, ratio)
    words, sent = group.chunks.encode(tf.gather(indices, chosen), tf.gather(values, chosen), ctx)
    # The residual of a row that is not sent is the row, to the bit: it stands for zeros.
    sent = tf.scatter_nd(chosen[:, tf.newaxis], sent, tf.shape(values))
    return words, sent, tf.shape(chosen)[0]


def _lengths(chunks: Sequence[Chunks], table: tf.Tensor) -> tf.Tensor:
    """How many words each lane of each worker has, `[size, lanes]`."""
    return tf.stack([codec.length(table[:, i]) for i, codec in enumerate(chunks)], 1)


def _receive(
    chunks: Sequence[Chunks], sender: Sender, table: tf.Tensor, words: tf.Tensor
) -> list[tf.IndexedSlices]:
    begins = tf.range(tf.shape(words)[0]) * tf.shape(words)[1]
    starts = begins[:, None] + tf.cumsum(_lengths(chunks, table), axis=1, exclusive=True)
    flat, totals = tf.reshape(words, [-1]), []
    for i, (codec, grad, ctx) in enumerate(zip(chunks, sender.grads, sender.contexts)):
        indices, values = codec.decode(flat, starts[:, i], table[:, i], ctx.public())
        totals.append(summed(values, tf.cast(indices, grad.indices.dtype), grad.dense_shape))
    return totals
