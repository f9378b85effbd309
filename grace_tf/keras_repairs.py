"""Repairs of Keras 3 that compression under several workers needs; each is applied once, where needed.

`APPLIED` lists what was repaired, for reports.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import keras
import tensorflow as tf

KERAS_3 = int(keras.__version__.split(".")[0]) >= 3

APPLIED: dict[str, str] = {}


def agree_on_finite(agree: Callable[[Any, tf.Tensor], tf.Tensor]) -> None:
    """LossScaleOptimizer must skip a step on every worker or on none.

    Keras 3 takes `finite` from one worker's own gradients, which are not reduced yet at this point
    (its comment says they are; optimizers/loss_scale_optimizer.py, checked in 3.0 to 3.15): the other
    workers apply a non-finite step, or wait in a collective for ever.  `agree(inner_optimizer, finite)`
    gives the common answer.
    """
    if not KERAS_3 or "agree_on_finite" in APPLIED:
        return
    cls = keras.optimizers.LossScaleOptimizer
    own = cls.check_finite

    @functools.wraps(own)
    def check_finite(self, grads):
        return agree(self.inner_optimizer, own(self, grads))

    cls.check_finite = check_finite
    APPLIED["agree_on_finite"] = "LossScaleOptimizer.check_finite"


def name_the_variables_of_gradients() -> None:
    """Cross-device ops must learn which reductions are of gradients, and of which variables.

    Keras 3 reduces gradients by `ReplicaContext.all_reduce`, whose destinations are the values
    themselves; Keras 2 named the variables (optimizers/utils.py).  Only strategies whose cross-device
    ops compress are served so.
    """
    if not KERAS_3 or "name_the_variables_of_gradients" in APPLIED:
        return
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    from grace_tf.aggregator import other_door

    own = TFOptimizer._all_reduce_sum_gradients

    @functools.wraps(own)
    def _all_reduce_sum_gradients(self, grads_and_vars):
        grads_and_vars = list(grads_and_vars)
        context = tf.distribute.get_replica_context()
        present = [pair for pair in grads_and_vars if pair[0] is not None]
        if (
            context is None
            or context.num_replicas_in_sync == 1
            or getattr(context.strategy.extended, "_cross_device_ops", None) not in other_door
        ):
            return own(self, grads_and_vars)
        reduced = iter(context.merge_call(_reduce_to_variables, args=(present,)))
        return [(g if g is None else next(reduced), v) for g, v in grads_and_vars]

    TFOptimizer._all_reduce_sum_gradients = _all_reduce_sum_gradients
    APPLIED["name_the_variables_of_gradients"] = "TFOptimizer._all_reduce_sum_gradients"


def _reduce_to_variables(strategy, grads_and_vars):
    return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, grads_and_vars)
