"""Runs the rounds of all workers of this process together, bucket by bucket.

Each group and worker has a generator, which yields requests and returns a result.  A round of a
bucket joins the requests of all its groups into one collective for each kind and dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from grace_tf.core.rounds import Outcome, Payload, Request, Rounds
from grace_tf.line import wire
from grace_tf.line.plan import LaneGroup, Plan
from grace_tf.transports.base import Transport


class Watch(Protocol):
    """Sees when each collective of the first worker of this process begins and ends.

    A worker alone receives at once what it would send.
    """

    def begins(self, bucket: int, sent: tf.Tensor) -> tf.Tensor:
        """The same buffer, which the collective sends instead of `sent`."""

    def ends(self, received: tf.Tensor) -> None:
        """`received` is the reply to the buffer that began last."""


class _Unwatched:
    def begins(self, bucket: int, sent: tf.Tensor) -> tf.Tensor:
        return sent

    def ends(self, received: tf.Tensor) -> None:
        pass


_UNWATCHED = _Unwatched()


class Bucket:
    """A bucket on all workers of this process; `running[i]`: worker i's rounds, by lane group.

    `watch`: sees the bucket's collectives, or None.
    """

    def __init__(
        self,
        plan: Plan,
        number: int,
        running: Sequence[Sequence[GroupRounds]],
        transport: Transport,
        watch: Watch | None = None,
    ) -> None:
        self._key = functools.partial(plan.key, number)
        self._number, self._watch = number, watch or _UNWATCHED
        self._running, self._transport, self._round = running, transport, 0

    def advance(self) -> bool:
        """Does the next round of all groups; True when that was the last one."""
        asked = [[one.request for one in mine] for mine in self._running]
        key = functools.partial(self._key, self._round)
        carry = returned if self._transport.size == 1 else communicate
        watched = self._watch, self._number
        replies, flags = carry(asked, self._transport, key, self._round == 0, *watched)
        for i, mine in enumerate(self._running):
            with self._transport.device(i):
                for one, reply in zip(mine, replies[i]):
                    one.finite = flags[i] if flags else one.finite
                    if reply is not None:
                        one.advance(reply)
        self._round += 1
        return not any(one.request for one in self._running[0])


class GroupRounds:
    """The generator of one lane group of one worker, and its request or its result."""

    def __init__(self, group: LaneGroup, rounds: Rounds) -> None:
        self.group, self._rounds = group, rounds
        self.finite: tf.Tensor | None = None  # agreed in the first round
        self.outcome: Outcome | None = None
        self.request: Request | None = next(rounds)
        self.own_finite = self.request.finite

    def advance(self, replies: Sequence[Payload]) -> None:
        """Hands the generator the replies to its request and takes the next one."""
        try:
            self.request = self._rounds.send(replies)
        except StopIteration as stop:
            self.request, self.outcome = None, stop.value


def communicate(
    asked: Sequence[Sequence[Request | None]],
    transport: Transport,
    key: Callable[[str, str], int],
    flagged: bool,
    watch: Watch = _UNWATCHED,
    bucket: int = 0,
) -> tuple[list[list[list[Payload] | None]], list[tf.Tensor]]:
    """One round of one bucket: `asked[i]` are the requests of worker i, one for each lane group.

    `key(kind, dtype)` names each collective.  `watch` sees them as those of `bucket`.  Returns the
    replies, nested like the requests, and a list: with `flagged`, as in a first round, it holds a
    bool scalar for each worker, whether all that the workers compress in this bucket is finite;
    else it is empty.
    """
    replies = [[r and [{} for _ in r.payloads] for r in mine] for mine in asked]
    flags = []
    for buffer in wire.layout(asked[0], flagged):
        sent = []
        for i, mine in enumerate(asked):
            with transport.device(i):
                sent.append(wire.fuse(buffer, mine))
                if i == 0:
                    sent = [watch.begins(bucket, sent[0])]
        received = getattr(transport, buffer.kind)(sent, key(buffer.kind, buffer.dtype))
        with transport.device(0):
            watch.ends(received[0])
        for i, (reply, mine) in enumerate(zip(received, replies)):
            with transport.device(i):
                finite = wire.split(buffer, reply, mine)
            flags += [] if finite is None else [finite]
    return replies, flags


def returned(
    asked: Sequence[Sequence[Request | None]],
    transport: Transport,
    key: Callable[[str, str], int],
    flagged: bool,
    watch: Watch = _UNWATCHED,
    bucket: int = 0,
) -> tuple[list[list[list[Payload] | None]], list[tf.Tensor]]:
    """`communicate` for a single worker: it gets what it sends, so no buffer is made.

    The transport records what one of several workers would hand to collectives.
    """
    (mine,) = asked
    for buffer in wire.layout(mine, flagged):
        transport.take_down(buffer.kind, buffer.dtype, buffer.length)
    parts = [p for request in mine if request for load in request.payloads for p in load.values()]
    for part in parts[:1]:  # all are ready at the same time, or nearly so
        watch.ends(watch.begins(bucket, part))
    replies = [request and wire.received_alone(request) for request in mine]
    return [replies], [wire.all_finite(mine)] if flagged else []
