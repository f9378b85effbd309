"""Lets Keras 3's LossScaleOptimizer skip a step whose gradients overflow in the exchange.

Keras 3 checks the gradients before the exchange.  A gradient that is finite there may overflow when
it is converted to float16, or in the sum over workers.  The optimizers of all workers then get
NaN.  Keras 2 checks after the exchange, so nothing is changed there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from grace_tf.keras.classes import Wrapped
from grace_tf.keras.flavours import Flavour
from grace_tf.keras.optimizers import parts
from grace_tf.keras.replacing import in_place_of
from grace_tf.line.inputs import plain
from grace_tf.line.sparse_gradients import all_finite
from grace_tf.transports.world.current_workers import compresses

# By the id of an optimizer: the LossScaleOptimizer around it that takes a step now, once for each
# replica.  Not by thread, since a strategy may run parts of one replica's step in several.
_scalers: dict[int, list[Any]] = {}
_SKIPPED = -1  # its counter of steps, while it leaves out one whose aggregates are not finite


def install(keras: Flavour) -> None:
    """Lets the aggregates decide too whether a LossScaleOptimizer takes a step."""
    scaler = keras.module.optimizers.LossScaleOptimizer if keras.is_3 else None
    if not hasattr(scaler, "_stateful_handle_finite_grads"):
        return
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    @in_place_of(scaler, "_stateful_handle_finite_grads")
    def handle_finite_grads(original, self, grads, trainable_variables):
        inner = self.inner_optimizer
        if not _exchanges(inner):
            original(self, grads, trainable_variables)
            return
        before = tf.convert_to_tensor(self.dynamic_scale)
        with _stepping(self, inner):
            original(self, grads, trainable_variables)
        # The batches of an update that is left out do not count, nor does their sum remain.
        skipped = tf.cast(plain(self.dynamic_scale) < before, inner._iterations.dtype)
        every = getattr(inner, "gradient_accumulation_steps", None)  # not in the first Keras 3
        inner._iterations.assign_sub(skipped * (every or 1))

    @in_place_of(TFOptimizer, "_apply_weight_decay")
    def apply_weight_decay(original, self, variables):
        if _around(self) is None:  # else the weights decay where they are updated
            original(self, variables)

    @in_place_of(TFOptimizer, "_backend_update_step")
    def update_step(original, self, grads, trainable_variables, learning_rate):
        outer = _around(self)
        if outer is None:
            original(self, grads, trainable_variables, learning_rate)
        else:
            _step(self, outer, grads, trainable_variables, learning_rate)

    @in_place_of(TFOptimizer, "_update_model_variables_moving_average")
    def update_averages(original, self, trainable_variables):
        momentum, outer = self.ema_momentum, _around(self)
        if outer is not None and momentum is not None:
            skipped = tf.equal(plain(outer.step_counter), _SKIPPED)
            self.ema_momentum = tf.where(skipped, 1.0, momentum)
        try:
            original(self, trainable_variables)
        finally:
            self.ema_momentum = momentum


@contextlib.contextmanager
def _stepping(scaler: Any, optimizer: Any) -> Iterator[None]:
    """A context around a step of an optimizer; the parts of a MultiOptimizer decide one by one."""
    stepping = [optimizer, *parts(optimizer)]
    for each in stepping:
        _scalers.setdefault(id(each), []).append(scaler)
        if _own_decay(each) is not None:  # it is called where the weights are updated
            object.__setattr__(each, "_apply_weight_decay", lambda variables: None)
    try:
        yield
    finally:
        for each in stepping:
            _scalers[id(each)].pop()
            if not _scalers[id(each)]:
                del _scalers[id(each)]
                vars(each).pop("_apply_weight_decay", None)


def _own_decay(optimizer: Any) -> Callable | None:
    """The method by which the class of an optimizer decays weights, unless it is Keras' usual."""
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    method = type(optimizer)._apply_weight_decay
    return None if method is TFOptimizer._apply_weight_decay else method


def _around(optimizer: Any) -> Any:
    """The LossScaleOptimizer whose step this optimizer takes; None without one."""
    return next(iter(_scalers.get(id(optimizer), ())), None)


def _exchanges(optimizer: Any) -> bool:
    """Whether grace_tf exchanges the gradients of this optimizer, which may change them."""
    if isinstance(optimizer, Wrapped):
        return True
    context = tf.distribute.get_replica_context()
    return context is not None and compresses(context.strategy)


def _step(optimizer: Any, scaler: Any, grads: Any, variables: Any, rate: Any) -> None:
    """Exchanges the gradients, and updates the weights if the aggregates are finite."""
    pairs = list(zip(grads, map(plain, variables)))
    totals = optimizer._all_reduce_sum_gradients(pairs)
    finite = all_finite([total for total, _ in totals if total is not None])
    tf.__internal__.distribute.interim.maybe_merge_call(
        lambda *given: _update_if(optimizer, variables, *given),
        optimizer._distribution_strategy,
        *(finite, totals, rate),
    )
    # Keras adds 1 to the counter of steps after this.
    scale, counter = plain(scaler.dynamic_scale), plain(scaler.step_counter)
    scale.assign(tf.where(finite, scale, scale * 0.5))
    counter.assign(tf.where(finite, counter, _SKIPPED))


def _update_if(optimizer, variables, strategy, finite, totals, rate) -> None:
    """Updates the weights and slots of all replicas, which have the same aggregates."""

    def decay(variable):
        amount = tf.cast(optimizer.weight_decay, variable.dtype)
        variable.assign_sub(variable * amount * tf.cast(optimizer.learning_rate, variable.dtype))

    def update():
        own_decay = _own_decay(optimizer)
        if own_decay is not None:
            own_decay(optimizer, variables)
        elif optimizer.weight_decay is not None:
            for _, variable in totals:
                if optimizer._use_weight_decay(variable):
                    strategy.extended.update(variable, decay, group=False)
        optimizer._distributed_tf_update_step(strategy, totals, rate)
        return tf.constant(True)

    here = strategy.experimental_local_results(finite)[0]
    tf.cond(here, update, lambda: tf.constant(False))
