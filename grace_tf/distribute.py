"""`CompressedAllReduce`: cross-device ops of tf.distribute that compress gradients only.

They get per-replica values with their destinations, in the cross-replica context.  An Aggregator
compresses those that were announced as gradients, for all replicas at once.  Everything else goes
to the inner ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_utils, values
from tensorflow.python.trackable.autotrackable import AutoTrackable

from grace_tf.aggregation.aggregator import Aggregator
from grace_tf.keras import flavours, repairs
from grace_tf.line.inputs import gradient_of
from grace_tf.transports.loopback import Loopback
from grace_tf.transports.tf_distribute import reduced_rows
from grace_tf.transports.world.current_workers import (
    other_door,
    refuse_half_a_reduction,
    refuse_xla,
)


class _ReplicasSeenByInner(Loopback):
    """All replicas of one process; the inner ops reduce rows of sparse gradients."""

    def __init__(self, devices: Sequence[str], batch_reduce: Callable) -> None:
        super().__init__(len(devices), devices)
        self._batch_reduce = batch_reduce

    def _rows(self, slices, key):
        return reduced_rows(self._batch_reduce, slices)


class CompressedAllReduce(tf.distribute.CrossDeviceOps, AutoTrackable):
    """Compressed gradients under `tf.distribute.MirroredStrategy(cross_device_ops=…)`.

    Compresses batched SUM reductions whose destinations are trainable variables: these are
    gradients. Metrics, losses, SyncBatchNormalization's sums and everything else is reduced by
    `inner` (`tf.distribute.ReductionToOneDevice()` unless given).  State is trackable by
    `tf.train.Checkpoint`.

    Args:
      compressor, memory, granularity, exchange, min_elements, exclude, bucket_bytes, seed,
        check_every, average_logs, **hyperparameters: as for `grace_tf.wrap`.
      inner: the `tf.distribute.CrossDeviceOps` for everything that is not a gradient.

    Raises ValueError or TypeError as `wrap` does, and ValueError at the first step where the
    strategy's optimizer is wrapped as well.
    """

    def __init__(
        self,
        compressor: Any = "qsgd",
        inner: tf.distribute.CrossDeviceOps | None = None,
        **keywords: Any,
    ):
        super().__init__()
        if keywords.get("hierarchical"):
            raise ValueError(
                "CompressedAllReduce reduces within one process, so there is nothing between hosts "
                "to compress: leave hierarchical out, or use grace_tf.wrap."
            )
        if inner is not None and not isinstance(inner, tf.distribute.CrossDeviceOps):
            raise TypeError(f"inner is a tf.distribute.CrossDeviceOps, not {inner!r}.")
        self._inner = inner or tf.distribute.ReductionToOneDevice()
        self.aggregator = Aggregator(compressor, reduce="sum", **keywords)
        other_door.add(self)
        flavours.when_imported(repairs.name_the_variables_of_gradients)

    # TensorFlow passes these by keyword, so it determines the parameter names.

    def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
        return self._inner.reduce_implementation(
            reduce_op, per_replica_value, destinations, options
        )

    def broadcast_implementation(self, tensor, destinations):
        return self._inner.broadcast_implementation(tensor, destinations)

    def _gather_implementation(self, per_replica_value, destinations, axis, options):
        return self._inner._gather_implementation(per_replica_value, destinations, axis, options)

    def batch_reduce_implementation(self, reduce_op, value_destination_pairs, options):
        pairs = list(value_destination_pairs)
        gradients = [i for i, pair in enumerate(pairs) if _is_gradient(reduce_op, *pair)]
        others = [i for i in range(len(pairs)) if i not in set(gradients)]
        reduced: list[Any] = [None] * len(pairs)
        if gradients:
            for i, total in zip(
                gradients, self._compressed([pairs[i] for i in gradients], options)
            ):
                reduced[i] = total
        if others:
            inner = self._inner.batch_reduce_implementation(
                reduce_op, [pairs[i] for i in others], options
            )
            for i, total in zip(others, inner):
                reduced[i] = total
        return reduced

    @tf.autograph.experimental.do_not_convert
    def _compressed(self, pairs, options):
        refuse_half_a_reduction(tf.distribute.get_strategy())
        refuse_xla(tf.distribute.get_strategy())
        devices = [component.device for component in pairs[0][1].values]
        grads = [
            [_on(device, value.values[i], variable) for value, variable in pairs]
            for i, device in enumerate(devices)
        ]

        def reduce_rows(operation, rows):
            return self._inner.batch_reduce_implementation(operation, rows, options)

        transport = _ReplicasSeenByInner(devices, reduce_rows)
        totals = self.aggregator.aggregate_replicas(
            transport, grads, [v for _, v in pairs], devices
        )
        if totals is None:
            return self._inner.batch_reduce_implementation(
                tf.distribute.ReduceOp.SUM, pairs, options
            )
        return [distribute_utils.regroup(row, values.Mirrored) for row in zip(*totals)]


def _is_gradient(reduce_op, value, destination) -> bool:
    return (
        reduce_op == tf.distribute.ReduceOp.SUM
        and isinstance(destination, values.DistributedVariable)
        and destination.trainable
        and isinstance(value, values.PerReplica)
        and len(value.values) == len(destination.values)
    )


def _on(device: str, grad: Any, variable: Any) -> tf.Tensor | tf.IndexedSlices:
    with tf.device(device):
        return gradient_of(grad, variable)
