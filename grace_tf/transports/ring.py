"""`Ring`: TensorFlow's own collectives between processes, over gRPC between CPUs.

A collective takes this process's buffers and a key, and returns the common result of all processes
of the ring.  `ProcessGroup` or a strategy has connected the processes before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from grace_tf.advice.network import SMALL_SUM
from grace_tf.transports import collectives
from grace_tf.transports.base import Tensors
from grace_tf.transports.lifeline.waits import Waits
from grace_tf.transports.rows import GathersRows

GROUP_KEY = 0x67726163  # "grac": no tf.distribute strategy of this process counts this far
_SUMMED = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


class Ring(GathersRows):
    """Collectives between `size` processes; this one is number `position`.

    Several rings may exist in one process, each with its own `group_key`; the keys of collectives
    belong to their ring.

    Args:
      size, position: the number of processes, and this one's place among them.
      group_key: the ring's name in TensorFlow, the same in all its processes, and no other ring's.
      timeout: seconds after which TensorFlow ends a collective, where there is no `waits`; 0 for
        never.
      members: `members[i]` is the place of TensorFlow's i-th process; None where all are in order.
      waits: watches the collectives in place of TensorFlow's timeouts.
    """

    def __init__(
        self,
        size: int,
        position: int,
        group_key: int = GROUP_KEY,
        timeout: float = 0.0,
        members: Sequence[int] | None = None,
        waits: Waits | None = None,
    ) -> None:
        self.size, self.workers, self.timeout = size, (position,), float(timeout)
        self._group_key, self._members, self._waits = group_key, members, waits
        self._signatures: dict[int, tuple] = {}
        self._marks = collectives.Marks(of_all=group_key == GROUP_KEY)

    def _sum(self, buffers: Tensors, key: int) -> Tensors:
        buffer = buffers[0]
        if self.size == 2 and buffer.shape.num_elements() * buffer.dtype.size <= SMALL_SUM:
            with tf.device("/CPU:0"):
                rows = self._from_all(_summable(buffer), key, "Add")
                return [rows[0] + rows[1]]
        return [self._reduce(buffer, key, "Add")]

    def _max(self, buffers: Tensors, key: int) -> Tensors:
        return [self._reduce(buffers[0], key, "Max")]

    def _gather(self, buffers: Tensors, key: int) -> Tensors:
        return [self._from_all(buffers[0], key, "gather")]

    def _all_to_all(self, buffers: Tensors, key: int) -> Tensors:
        if self.size == 1 or buffers[0].shape.num_elements() == 0:
            return [tf.identity(buffers[0])]
        self._check(key, "all_to_all", buffers[0])
        sent = buffers[0] if self._members is None else tf.gather(buffers[0], self._members)
        return [self._by_rank(self._move(tf.raw_ops.CollectiveAllToAllV2, sent, key))]

    def _from_all(self, buffer: tf.Tensor, key: int, kind: str) -> tf.Tensor:
        """The buffers of all workers, one in each row.

        `kind` is "gather" for a caller that returns the rows, and "Add" for one that adds them up.
        """
        if self.size == 1 or buffer.shape.num_elements() == 0:
            return tf.tile(buffer[None], [self.size, 1])
        self._check(key, kind, buffer)
        moved = self._move(tf.raw_ops.CollectiveGatherV2, buffer, key)
        return self._by_rank(tf.reshape(moved, [self.size, buffer.shape[0]]))

    def _reduce(self, buffer: tf.Tensor, key: int, operation: str) -> tf.Tensor:
        _summable(buffer)
        if self.size == 1 or buffer.shape.num_elements() == 0:
            return tf.identity(buffer)
        self._check(key, operation, buffer)
        collective = tf.raw_ops.CollectiveReduceV2
        return self._run(collective, buffer, key, merge_op=operation, final_op="Id")

    def _move(self, op, buffer: tf.Tensor, key: int) -> tf.Tensor:
        return collectives.moved(buffer, lambda carried: self._run(op, carried, key))

    def _run(self, op, buffer: tf.Tensor, key: int, **attributes) -> tf.Tensor:
        with tf.device("/CPU:0"):
            attributes.update(self._arguments(key))
            if self._waits is None:
                return op(input=buffer, **attributes)
            mark = self._marks[key]
            return self._waits.around(mark, [buffer], lambda: op(input=buffer, **attributes))

    def _by_rank(self, rows: tf.Tensor) -> tf.Tensor:
        return rows if self._members is None else tf.gather(rows, np.argsort(self._members))

    def _check(self, key: int, kind: str, buffer: tf.Tensor) -> None:
        # TensorFlow ties a key to its first kind, dtype and shape; other ones abort the process.
        new = (kind, buffer.dtype.name, tuple(buffer.shape))
        old = self._signatures.setdefault(key, new)
        if old != new:
            raise ValueError(f"The key {key} belongs to {old} and cannot carry {new}.")

    def _arguments(self, key: int) -> dict:
        collectives.refuse_xla()
        return dict(
            group_size=self.size,
            group_key=self._group_key,
            instance_key=key,
            # TensorFlow runs collectives that read the same handle one after the other, in the
            # order of the program.  It also serialises all collectives that read no handle.
            ordering_token=[self._marks[key].handle],
            communication_hint="ring",
            timeout_seconds=0 if self._waits else self.timeout,
        )


def _summable(buffer: tf.Tensor) -> tf.Tensor:
    """Returns the buffer; raises TypeError if TensorFlow cannot all-reduce its dtype."""
    if buffer.dtype.name not in _SUMMED:
        raise TypeError(f"{buffer.dtype.name} cannot be reduced; there are {', '.join(_SUMMED)}.")
    return buffer
