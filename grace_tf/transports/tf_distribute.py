"""Transports between replicas of tf.distribute: in one process, or by its own collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import distribute_utils, values
from tensorflow.python.ops import collective_ops

from grace_tf.transports import collectives
from grace_tf.transports.base import Keys, Lanes, Tensors, Transport
from grace_tf.transports.loopback import Loopback, appended
from grace_tf.transports.rows import padded


def worker_devices(strategy: tf.distribute.Strategy) -> Sequence[str]:
    """The devices of the strategy's replicas in this process."""
    return strategy.extended.worker_devices


def replicas_here(strategy: tf.distribute.Strategy) -> range:
    """The numbers of the strategy's replicas in this process."""
    count = len(worker_devices(strategy))
    # There is no public name for the number of the process; only strategies of several have it.
    process = strategy.extended._id_in_cluster if count < strategy.num_replicas_in_sync else 0
    return range(process * count, (process + 1) * count)


def replica_of(context: tf.distribute.ReplicaContext) -> int:
    """The number of the replica; its id is a constant tensor, of no use to state and streams."""
    return int(tf.get_static_value(context.replica_id_in_sync_group))


class Replicas(Loopback):
    """The replicas of a strategy that all live in this process, seen from outside them.

    Gathers are copies between devices, and so are sums on CPUs; on GPUs sums use the strategy's own
    reduction (NCCL where it has it).
    """

    def __init__(self, strategy: tf.distribute.Strategy, devices: Sequence[str]) -> None:
        super().__init__(len(devices), devices)
        self._strategy = strategy
        self._on_gpus = all("GPU" in device.upper() for device in devices)

    def _sum(self, buffers: Tensors, key: int) -> Tensors:
        if not self._on_gpus:
            return super()._sum(buffers, key)
        value = values.PerReplica(tuple(buffers))
        (total,) = self._strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, [(value, value)]
        )
        return list(total.values)

    def _rows(self, slices: Lanes, key: Keys) -> Lanes:
        return reduced_rows(self._strategy.extended.batch_reduce_to, slices)

    def added_on_first(self, per_replica: Sequence[Sequence[Any]]) -> list[Any]:
        """The sums over replicas, lane by lane, on the first one's device; rows stay rows.

        Narrow floats are added up as float32, since the sum of two large ones may overflow.
        """

        def added(lane):
            if isinstance(lane[0], tf.IndexedSlices):
                return appended(lane)
            narrow = lane[0].dtype in (tf.float16, tf.bfloat16)
            return tf.add_n([tf.cast(x, tf.float32) for x in lane] if narrow else lane)

        with self.device(0):
            return [added(lane) for lane in zip(*per_replica)]

    def on_each(self, tensors: Sequence[Any]) -> list[list[Any]]:
        """The same tensors for every replica, on its own device."""
        copies = []
        for i in range(self.size):
            with self.device(i):
                copies.append(tf.nest.map_structure(tf.identity, tensors, expand_composites=True))
        return copies


def reduced_rows(
    batch_reduce: Callable, slices: Sequence[Sequence[tf.IndexedSlices]]
) -> list[list[tf.IndexedSlices]]:
    """The sums of every replica's sparse lanes by tf.distribute's own `batch_reduce(op, pairs)`."""
    lanes = [values.PerReplica(lane) for lane in zip(*slices)]
    sums = batch_reduce(tf.distribute.ReduceOp.SUM, [(lane, lane) for lane in lanes])
    return [list(mine) for mine in zip(*(total.values for total in sums))]


class ReplicaContext(Transport):
    """One replica of a strategy that spans processes (MultiWorkerMirroredStrategy), from inside."""

    sums_in_conditions = False  # TensorFlow's own sum leaves the replicas, and a condition cannot

    def __init__(self, context: tf.distribute.ReplicaContext) -> None:
        self._context = context
        self.size = context.num_replicas_in_sync
        self.workers = (replica_of(context),)

    def _sum(self, buffers: Tensors, key: int) -> Tensors:
        # identity: a captured tensor has no device, and the strategy needs one
        return [self._context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(buffers[0]))]

    def _max(self, buffers: Tensors, key: int) -> Tensors:
        # tf.distribute knows sums and means only.
        return [tf.reduce_max(self._stacked(buffers[0]), 0)]

    def _gather(self, buffers: Tensors, key: int) -> Tensors:
        return [self._stacked(buffers[0])]

    def _all_to_all(self, buffers: Tensors, key: int) -> Tensors:
        sent = tf.identity(buffers[0])
        if self._launcher is None:
            rows = self._stacked(tf.reshape(sent, [-1]))
            return [tf.reshape(rows, [self.size, *sent.shape])[:, self.workers[0]]]
        members = self._members()
        sent = sent if members is None else tf.gather(sent, members)
        return [self._by_replica(self._moved(collective_ops.all_to_all_v2, sent))]

    def _rows(self, slices: Lanes, key: Keys) -> Lanes:
        mine = [not_empty(s) for s in slices[0]]
        mine = [tf.nest.map_structure(tf.identity, s, expand_composites=True) for s in mine]
        return [list(self._context.all_reduce(tf.distribute.ReduceOp.SUM, mine))]

    def _messages(self, messages: Tensors, longest: tf.Tensor, key: Keys) -> Tensors:
        # A traced step can gather messages of any length; in a loop the plan makes rows dense.
        # TensorFlow ends the process where all messages are empty.
        return [self._stacked(padded(messages[0], tf.maximum(longest, 1)))]

    def _stacked(self, buffer: tf.Tensor) -> tf.Tensor:
        buffer = tf.identity(buffer)
        if self._launcher is None:
            rows = self._context.all_gather(buffer[None], axis=0)
        else:
            # The strategy's own gather would first gather the lengths, which are equal here.
            rows = self._moved(collective_ops.all_gather_v2, buffer)
            rows = tf.reshape(rows, [self.size, -1])
        return self._by_replica(tf.ensure_shape(rows, [self.size, *buffer.shape]))

    @property
    def _launcher(self) -> Any:
        """TensorFlow's launcher of this replica's collectives; None in eager steps, where replicas
        run one after the other and the strategy must gather."""
        starter = getattr(self._context.strategy.extended, "_cross_device_ops", None)
        launchers = getattr(starter, "_launchers", None)
        if launchers is None or tf.executing_eagerly():
            return None
        return launchers[self._context._replica_id]  # its number within this process

    def _moved(self, collective: Callable, buffer: tf.Tensor) -> tf.Tensor:
        """Runs `collective` on the buffer; the strategy has no gather for equal lengths."""
        launcher = self._launcher

        def move(carried: tf.Tensor) -> tf.Tensor:
            return collective(
                carried,
                launcher._group_size,
                launcher._group_key,
                launcher._next_instance_key(),
                communication_hint=launcher._options.implementation.value,
                timeout=launcher._options.timeout_seconds or 0,
                ordering_token=launcher._get_ordering_token(),
            )

        return collectives.moved(buffer, move, launcher._device)

    def _members(self) -> list[int] | None:
        """The replicas' numbers in TensorFlow's order; None where they are already in order."""
        strategy = self._context.strategy
        if strategy.cluster_resolver is None:
            return None
        jobs = strategy.cluster_resolver.cluster_spec().as_dict()
        return members(jobs, len(strategy.extended.worker_devices))

    def _by_replica(self, rows: tf.Tensor) -> tf.Tensor:
        members = self._members()
        return rows if members is None else tf.gather(rows, np.argsort(members))


def members(jobs: Mapping[str, Sequence[str]], local: int) -> list[int] | None:
    """The numbers of the replicas of a cluster, `local` a task, in the order of collectives.

    Replicas are numbered from the chief's on; collectives are ordered by the names of tasks, where
    task 10 comes before task 2.  None where both orders are the same.
    """
    tasks = [(job, i) for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]
    names = [f"/job:{job}/replica:0/task:{i}" for job, i in tasks]
    order = sorted(range(len(tasks)), key=names.__getitem__)
    found = [local * task + i for task in order for i in range(local)]
    return None if found == sorted(found) else found


def not_empty(grad: tf.Tensor | tf.IndexedSlices) -> tf.Tensor | tf.IndexedSlices:
    """The same gradient; where it has no rows, row 0 with zeros.

    TensorFlow's own sum of rows between processes crashes where no worker has any row.
    """
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    missing = tf.cast(tf.equal(tf.shape(grad.indices)[0], 0), tf.int32)
    values = tf.pad(grad.values, [[0, missing]] + [[0, 0]] * (grad.values.shape.rank - 1))
    return tf.IndexedSlices(values, tf.pad(grad.indices, [[0, missing]]), grad.dense_shape)


def across_replicas(
    context: tf.distribute.ReplicaContext,
    function: Callable[[Replicas, list[list[tf.Tensor]]], list[list[tf.Tensor]]],
    tensors: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Calls `function(transport, tensors of every replica)` once for all replicas of this process.

    Every replica calls it with its own tensors, and gets its own list of the results.
    """

    @tf.autograph.experimental.do_not_convert
    def merged(strategy, per_replica):
        devices = list(strategy.extended.worker_devices)
        transport = Replicas(strategy, devices)
        rows = [strategy.experimental_local_results(v) for v in per_replica]
        # A tensor made outside the replicas is the same for all of them, and comes as one row.
        mine = [[row[min(i, len(row) - 1)] for row in rows] for i in range(len(devices))]
        results = function(transport, mine)
        return [distribute_utils.regroup(tuple(row), values.Mirrored) for row in zip(*results)]

    return list(context.merge_call(merged, args=(list(tensors),)))


def in_every_replica(
    strategy: tf.distribute.Strategy,
    function: Callable[[tf.distribute.ReplicaContext, list[tf.Tensor]], list[tf.Tensor]],
    per_replica: Sequence[Sequence[tf.Tensor]],
) -> list[list[tf.Tensor]]:
    """Calls `function(context, its tensors)` in each replica of this process, from outside them.

    So a condition outside the replicas can decide what they do, and they can communicate in it.
    """

    @tf.autograph.experimental.do_not_convert
    def inside(*mine):
        return function(tf.distribute.get_replica_context(), list(mine))

    arguments = [
        distribute_utils.regroup(tuple(row), values.PerReplica) for row in zip(*per_replica)
    ]
    results = strategy.extended.call_for_each_replica(inside, args=tuple(arguments))
    rows = [strategy.experimental_local_results(v) for v in results]
    return [[row[min(i, len(row) - 1)] for row in rows] for i in range(len(per_replica))]
