"""Guards on Keras' optimizers: raise where a plain one would skip a reduction, or reduce twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grace_tf.aggregation.already_aggregated import aggregated
from grace_tf.aggregation.plan_cache import loss_scaled
from grace_tf.keras.classes import Wrapped, reducing
from grace_tf.keras.flavours import Flavour, flavour_of
from grace_tf.keras.optimizers import is_horovods, unchanged_errors
from grace_tf.line import collective_keys
from grace_tf.transports.lifeline import lifeline
from grace_tf.transports.world.current_workers import compresses, several


def agree(optimizer: Any, finite: tf.Tensor) -> tf.Tensor:
    """Whether the step is finite on all workers; `finite` itself where grace_tf does not reduce."""
    context = tf.distribute.get_replica_context()
    replicas = 1 if context is None else context.num_replicas_in_sync
    ours = replicas > 1 and compresses(context.strategy)
    if not ours and not isinstance(optimizer, Wrapped):
        return finite
    if tf.inside_function():
        loss_scaled.add(tf.compat.v1.get_default_graph())
    agreed = _agreed(context, replicas, finite)
    if ours:
        aggregators = [context.strategy.extended._cross_device_ops.aggregator]
    else:
        aggregators = [each._aggregator() for each in reducing(optimizer)]
    for aggregator in aggregators:
        aggregator.count_skipped(agreed)
    return agreed


def _agreed(context: Any, replicas: int, finite: tf.Tensor) -> tf.Tensor:
    bad = 1.0 - tf.cast(finite, tf.float32)
    if replicas > 1:
        return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(bad)), 0.0)
    connected = several()
    if connected is None:
        return finite
    return tf.equal(connected.sum([bad[None]], collective_keys.FINITE)[0][0], 0.0)


def _guard(original):
    """Wraps a method: raises where a plain optimizer would skip a reduction, or reduce twice."""

    @unchanged_errors()
    def guarded(self, grads_and_vars):
        grads_and_vars = list(grads_and_vars)
        if not isinstance(self, Wrapped):
            _check_plain(self, [v for g, v in grads_and_vars if g is not None])
        return original(self, grads_and_vars)

    return guarded


def _check_plain(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raises RuntimeError where a plain optimizer must not update these variables."""
    connected = several()
    if connected is not None and not all(map(aggregated, variables)):
        # Horovod sets it after its reduction, but not on Keras 3.
        if is_horovods(optimizer) and optimizer._aggregated_gradients:
            return
        raise RuntimeError(
            f"This process is worker {connected.rank} of {connected.size}, but its "
            f"{type(optimizer).__name__} is not wrapped, so gradients would not be reduced: wrap "
            "it with grace_tf.wrap() on every worker, or aggregate them with grace_tf.Aggregator."
        )
    context = tf.distribute.get_replica_context()
    replicas = 1 if context is None else context.num_replicas_in_sync
    if replicas > 1:
        lifeline.tell_plain(context.strategy, optimizer)
    if replicas > 1 and any(map(aggregated, variables)):
        ways = ["grace_tf.wrap(optimizer) under a strategy"]
        if not flavour_of(optimizer).is_3:
            ways.append(_own_reduction_off(optimizer))
        raise RuntimeError(
            "These gradients were reduced by a grace_tf.Aggregator already, and "
            f"{type(optimizer).__name__} would reduce them once more: use "
            f"{' instead, or '.join(ways)}{' instead' * (len(ways) == 1)}."
        )


def _own_reduction_off(optimizer: Any) -> str:
    """How to tell a Keras 2 optimizer that gradients are reduced already, for the message."""
    legacy = not hasattr(optimizer, "aggregate_gradients")
    off = "experimental_aggregate_gradients=False" if legacy else "skip_gradients_aggregation=True"
    return f"apply_gradients(..., {off})"


def install(keras: Flavour) -> None:
    """Guards the methods of a Keras' optimizers that reduce gradients."""
    if keras.is_3:
        from keras.src.backend.tensorflow.optimizer import TFOptimizer

        TFOptimizer._all_reduce_sum_gradients = _guard(TFOptimizer._all_reduce_sum_gradients)
        return
    optimizers = keras.module.optimizers
    new, legacy = optimizers.Optimizer, optimizers.legacy.Optimizer
    new.aggregate_gradients = _guard(new.aggregate_gradients)
    legacy._aggregate_gradients = _guard(legacy._aggregate_gradients)
