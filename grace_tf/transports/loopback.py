"""`Loopback`: all workers in one process, for simulation, tests, a single worker, and replicas."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from grace_tf.transports.base import Keys, Lanes, Tensors, Transport
from grace_tf.transports.rows import padded


class Loopback(Transport):
    """Collectives by plain copies between `size` workers of this process.

    With `devices`, worker i computes on devices[i] and every result is formed on its own device.
    Sums run in worker order.
    """

    def __init__(self, size: int = 1, devices: Sequence[str] | None = None) -> None:
        if devices is not None and len(devices) != size:
            raise ValueError(f"{size} workers need {size} devices, not {len(devices)}.")
        self.size = size
        self.workers = tuple(range(size))
        self._devices = devices

    def device(self, position: int):
        return tf.device(None if self._devices is None else self._devices[position])

    def _sum(self, buffers: Tensors, key: int) -> Tensors:
        return self._everywhere(lambda: functools.reduce(_add, buffers))

    def _max(self, buffers: Tensors, key: int) -> Tensors:
        return self._everywhere(lambda: functools.reduce(tf.maximum, buffers))

    def _gather(self, buffers: Tensors, key: int) -> Tensors:
        return self._everywhere(lambda: tf.stack(buffers))

    def _all_to_all(self, buffers: Tensors, key: int) -> Tensors:
        received = []
        for i in range(self.size):
            with self.device(i):
                received.append(tf.stack([buffer[i] for buffer in buffers]))
        return received

    def _rows(self, slices: Lanes, key: Keys) -> Lanes:
        return self._everywhere(lambda: [appended(lane) for lane in zip(*slices)])

    def _messages(self, messages: Tensors, longest: tf.Tensor, key: Keys) -> Tensors:
        return self._everywhere(lambda: tf.stack([padded(each, longest) for each in messages]))

    def _everywhere(self, compute) -> list:
        if self._devices is None:
            return [compute()] * self.size
        results = []
        for i in range(self.size):
            with self.device(i):
                results.append(compute())
        return results


def appended(lane: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """All rows of the slices, one after the other."""
    values, indices = (tf.concat(x, 0) for x in zip(*((s.values, s.indices) for s in lane)))
    return tf.IndexedSlices(values, indices, lane[0].dense_shape)


def _add(total: tf.Tensor, buffer: tf.Tensor) -> tf.Tensor:
    # The graph's optimizer regroups chains of additions, and AddN, but does not see through a
    # snapshot.
    return tf.raw_ops.Snapshot(input=tf.add(total, buffer))
