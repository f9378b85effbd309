"""`SharedMemory`: the processes of one host add up gradients in memory that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from grace_tf.ops.backend.host_memory import Segment
from grace_tf.transports import collectives
from grace_tf.transports.base import Keys, Lanes, Tensors, Transport
from grace_tf.transports.group import Group

_SUMMED = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


class SharedMemory(Transport):
    """The processes of one host; sums, and what `join` joins, go through their shared memory.

    A sum of n bytes moves about 4 n through a process's part of the caches and memory, in pieces of
    half a MiB, and sends nothing.  Workers are added up in their order.  Numbers of 16 bits, and
    float32 that is to travel as bfloat16, are added up in float32 and rounded once.  Tensors on a
    GPU pass through the host's memory.

    Collectives of different keys may be under way together; a thread of the segment runs them one
    after the other, in the order in which they come in the first process.

    Args:
      sockets: the same processes over the network, for all other collectives.
      group: all processes, whose lifeline ends what waits for a lost one.
      segment: the memory.
    """

    def __init__(self, sockets: Transport, group: Group, segment: Segment) -> None:
        self.size, self.workers = sockets.size, sockets.workers
        self._sockets, self._group, self._segment = sockets, group, segment
        self._marks = collectives.Marks(of_all=False)

    def _sum(self, buffers: Tensors, key: int) -> Tensors:
        return self._sum_lists([buffers], key, False)[0]

    def _sum_lists(self, lists: Sequence[Tensors], key: int, narrow: bool) -> list[Tensors]:
        (xs,) = lists
        if xs[0].dtype.name not in _SUMMED:
            raise TypeError(f"{xs[0].dtype.name} cannot be summed; there are {', '.join(_SUMMED)}.")

        def run() -> list[tf.Tensor]:
            return self._segment.sum(xs, self._marks[key], key, narrow, self._seconds)

        return [self._run(xs, key, run)]

    def _join(self, pieces: Tensors, lengths: Sequence[int], key: int) -> Tensors:
        (piece,) = pieces

        def move(x: tf.Tensor) -> tf.Tensor:
            rows = tf.reshape(x, [-1, x.shape[-1]])
            mark = self._marks[key]
            return self._run(
                [rows], key, lambda: self._segment.join(rows, lengths, mark, key, self._seconds)
            )

        whole = collectives.moved(piece, move)
        return [tf.reshape(whole, [*piece.shape[:-1], sum(lengths)])]

    def _run(self, xs: Tensors, key: int, collective: Callable):
        collectives.refuse_xla()
        with tf.device("/CPU:0"):
            if self._group._waits is None:
                return collective()
            return self._group._waits.around(self._marks[key], xs, collective)

    @property
    def _seconds(self) -> float:
        """The timeout of the segment itself: the group's, where nothing else ends a wait."""
        return self._group.timeout if self._group._waits is None else 0.0

    # What goes over the network

    def _max(self, buffers: Tensors, key: int) -> Tensors:
        return self._sockets._max(buffers, key)

    def _gather(self, buffers: Tensors, key: int) -> Tensors:
        return self._sockets._gather(buffers, key)

    def _all_to_all(self, buffers: Tensors, key: int) -> Tensors:
        return self._sockets._all_to_all(buffers, key)

    def _rows(self, slices: Lanes, key: Keys) -> Lanes:
        return self._sockets._rows(slices, key)

    def _messages(self, messages: Tensors, longest: tf.Tensor, key: Keys) -> Tensors:
        return self._sockets._messages(messages, longest, key)

    def _explain(self, error: Exception) -> str | None:
        return self._group._explain(error)
