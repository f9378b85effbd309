"""Finds what a worker would hand to collectives, before any step: traces a step that sends nothing.

It takes the lane groups of a bucket and the number of workers, and returns the records of the
collectives.  No gradient, no state and no other worker is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from grace_tf.core.context import Context
from grace_tf.line.exchange import Share, exchange
from grace_tf.line.plan import LaneGroup, Plan
from grace_tf.transports.base import CollectiveRecord, Transport


class Counted(Transport):
    """Worker 0 of several; the other workers do not exist, and nothing is carried.

    A step over it computes all that one worker computes.  A gather returns copies of this worker's
    buffers in place of the others'.

    Attributes:
      sent: (key, tensor) of each collective, in the order of the trace.
    """

    def __init__(self, size: int) -> None:
        self.size, self.workers = size, (0,)
        self.sent: list[tuple[int, tf.Tensor]] = []

    def _sum(self, buffers, key):
        return self._returned(buffers, key)

    def _max(self, buffers, key):
        return self._returned(buffers, key)

    def _gather(self, buffers, key):
        self.sent.append((key, buffers[0]))
        return [tf.tile(buffer[None], [self.size, 1]) for buffer in buffers]

    def _all_to_all(self, buffers, key):
        return self._returned(buffers, key)

    def _rows(self, slices, key):
        return slices

    def _messages(self, messages, longest, key):
        return [message[None] for message in messages]

    def _returned(self, buffers, key):
        self.sent.append((key, buffers[0]))
        return buffers


def rehearsed(groups: Sequence[LaneGroup], size: int) -> list[CollectiveRecord]:
    """The collectives of one of `size` workers for a bucket of these groups.

    A single worker's are those that it would hand over as one of several.
    """
    transport = Counted(size)
    plan = Plan(buckets=(tuple(groups),), seed=0, digest=0)
    lanes = [lane for group in groups for lane in group.lanes]

    def step() -> list[tf.Tensor]:
        grads = [tf.zeros([])] * (1 + max(lane.position for lane in lanes))
        for lane in lanes:
            grads[lane.position] = tf.zeros(lane.shape, lane.dtype)
        memories, states = _memories(groups), _states(groups, size)
        share = Share(grads, memories, states, tf.zeros([], tf.int64))
        with transport.recorded() as handed:
            (result,) = exchange(plan, [share], transport, summed=False)
        records.extend(handed)
        return [result.grads[lane.position] for lane in lanes]

    records: list[CollectiveRecord] = []
    tf.function(step, autograph=False).get_concrete_function()
    return records


def without_flag(records: Sequence[CollectiveRecord], size: int) -> list[CollectiveRecord]:
    """The same without the finite flag, which ends the first buffer of a bucket."""
    first, *rest = records
    rows = size if first.kind == "all_to_all" else 1
    return [dataclasses.replace(first, elements=first.elements - rows), *rest]


def _memories(groups: Sequence[LaneGroup]) -> dict[int, dict[str, tf.Tensor]]:
    found = {}
    for group in groups:
        memory = group.memory
        begin = memory.init_dense_state if group.claimed else memory.init_state
        for lane in group.lanes:
            ctx = Context((lane.spec,), (lane.ordinal,), 0, 0, 1, 0).stored()
            (found[lane.ordinal],) = memory.store([begin(lane.spec)], ctx)
    return found


def _states(groups: Sequence[LaneGroup], size: int) -> dict[int, dict[str, tf.Tensor]]:
    found = {}
    with tf.init_scope():
        for group in groups:
            for spec, ordinal in zip(group.specs, group.ordinals):
                ctx = Context((spec,), (ordinal,), 0, 0, size)
                found[ordinal] = group.compressor.init_state(spec, ctx)
    return found
