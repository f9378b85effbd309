"""Repairs of Keras 3 that training with several workers needs, each applied where needed.

Each takes the Keras that is to be repaired, and does nothing to another generation than Keras 3.
`APPLIED` lists what was repaired, for reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.keras.flavours import Flavour
from grace_tf.keras.replacing import in_place_of
from grace_tf.line.inputs import plain

APPLIED: dict[str, str] = {}


def agree_on_finite(keras: Flavour, agree: Callable[[Any, tf.Tensor], tf.Tensor]) -> None:
    """LossScaleOptimizer must skip a step on every worker or on none.

    Keras 3 computes `finite` from the gradients of one worker, which are not reduced yet (its
    comment says they are; optimizers/loss_scale_optimizer.py, checked in 3.15).  So the other
    workers would apply a non-finite step, or wait in a collective forever.
    `agree(inner_optimizer, finite)` gives the common answer.
    """
    if not keras.is_3 or "agree_on_finite" in APPLIED:
        return

    @in_place_of(keras.module.optimizers.LossScaleOptimizer, "check_finite")
    def check_finite(original, self, grads):
        return agree(self.inner_optimizer, original(self, grads))

    APPLIED["agree_on_finite"] = "LossScaleOptimizer.check_finite"


def name_the_variables_of_gradients(keras: Flavour) -> None:
    """Cross-device ops must learn which reductions are of gradients, and of which variables.

    Keras 3 reduces gradients by `ReplicaContext.all_reduce`, whose destinations are the values
    themselves (backend/tensorflow/optimizer.py, checked in 3.15); Keras 2 named the variables
    (optimizers/utils.py).  Only strategies whose cross-device ops compress are served so.
    """
    if not keras.is_3 or "name_the_variables_of_gradients" in APPLIED:
        return
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    from grace_tf.transports.world.current_workers import compresses

    @in_place_of(TFOptimizer, "_all_reduce_sum_gradients")
    def all_reduce_sum_gradients(original, self, grads_and_vars):
        grads_and_vars = list(grads_and_vars)
        context = tf.distribute.get_replica_context()
        present = [pair for pair in grads_and_vars if pair[0] is not None]
        if context is None or context.num_replicas_in_sync == 1 or not compresses(context.strategy):
            return original(self, grads_and_vars)
        reduced = iter(context.merge_call(_reduce_to_variables, args=(present,)))
        return [(g if g is None else next(reduced), v) for g, v in grads_and_vars]

    APPLIED["name_the_variables_of_gradients"] = "TFOptimizer._all_reduce_sum_gradients"


def no_xla_between_processes(keras: Flavour, fails: Callable[[Any], bool]) -> None:
    """`jit_compile="auto"` must not mean XLA where XLA cannot compile the step.

    Keras 3 resolves it to XLA wherever there is an accelerator and no strategy
    (trainers/trainer.py, `_resolve_auto_jit_compile`, checked in 3.15; the first Keras 3 had no
    such method), and XLA cannot compile collectives between processes.  An explicit True stays.

    Args:
      fails: whether a model has a step that XLA cannot compile.
    """
    name = "_resolve_auto_jit_compile"
    owner = next((base for base in keras.module.Model.__mro__ if name in vars(base)), None)
    if not keras.is_3 or owner is None or "no_xla_between_processes" in APPLIED:
        return

    @in_place_of(owner, name)
    def resolve_auto_jit_compile(original, self):
        return False if fails(self) else original(self)

    APPLIED["no_xla_between_processes"] = "Trainer._resolve_auto_jit_compile"


def decide_across_replicas(
    optimizer: Any, original: Callable, grads: Sequence[Any], variables: Sequence[Any]
) -> None:
    """Gradient accumulation and `ema_overwrite_frequency` must decide outside the replicas.

    Keras 3 decides by a condition inside each replica whether to reduce and to update; under a
    strategy that merges replicas this cannot be traced (optimizers/base_optimizer.py,
    `_backend_apply_gradients`, checked in 3.15).  `original(grads, variables)` is Keras' method,
    called where there is nothing to decide or only one replica.
    """
    context = tf.distribute.get_replica_context()
    steps = getattr(optimizer, "gradient_accumulation_steps", None)  # not in the first Keras 3
    overwrites = optimizer.use_ema and optimizer.ema_overwrite_frequency
    if context is None or context.num_replicas_in_sync == 1 or not (steps or overwrites):
        original(grads, variables)
        return
    APPLIED["decide_across_replicas"] = "_backend_apply_gradients of wrapped optimizers"
    if steps:
        accumulated = [
            optimizer._accumulated_gradients[optimizer._get_variable_index(v)] for v in variables
        ]

        def update(grads):
            _update(optimizer, [(g + a) / steps for g, a in zip(grads, accumulated)], variables)
            optimizer._backend_reset_gradient_accumulators()

        def accumulate(grads):
            optimizer._backend_increment_gradient_accumulators(grads, accumulated)

        _either(context, lambda: optimizer._iterations, steps, update, accumulate, list(grads))
    else:
        _update(optimizer, grads, variables)
    if optimizer.use_ema:
        optimizer._update_model_variables_moving_average(optimizer._trainable_variables)
    if overwrites:
        every = optimizer.ema_overwrite_frequency

        def overwrite(_):
            for variable, average in zip(
                optimizer._trainable_variables, optimizer._model_variables_moving_average
            ):
                variable.assign(average)

        _either(context, lambda: optimizer.iterations, every, overwrite, lambda _: None, [])


def _either(context, count, every, due, other, grads) -> None:
    """Calls `due` in every replica on each `every`-th step of a counter, `other` between them."""

    @tf.autograph.experimental.do_not_convert
    def decide(strategy, grads):
        def branch(function):
            strategy.extended.call_for_each_replica(function, args=(grads,))
            return tf.constant(True)

        tf.cond(
            tf.equal((plain(count()) + 1) % every, 0), lambda: branch(due), lambda: branch(other)
        )

    context.merge_call(decide, args=(grads,))


def _update(optimizer, grads, variables) -> None:
    grads = optimizer._clip_gradients(grads)
    optimizer._apply_weight_decay(variables)
    optimizer._backend_update_step(grads, variables, optimizer.learning_rate)


def fit_on_several_workers(keras: Flavour) -> None:
    """`fit` must run under MultiWorkerMirroredStrategy.

    Keras 3 reduces a whole batch at once, which the strategy does not take, and averages scalar
    metrics over an axis they do not have (keras-team/keras#20585, checked in 3.15).  Other
    strategies are served as before.
    """
    if not keras.is_3 or "fit_on_several_workers" in APPLIED:
        return
    from keras.src.backend.tensorflow import trainer

    @in_place_of(trainer.TensorFlowTrainer, "_maybe_symbolic_build")
    def maybe_symbolic_build(original, self, iterator=None, data_batch=None):
        strategy = self._distribute_strategy
        if iterator is None or not _spans_workers(strategy):
            original(self, iterator, data_batch)
            return
        for *_, batches in iterator:
            batch = next(batches)
            data_batch = tf.nest.map_structure(
                lambda v: strategy.experimental_local_results(v)[0], batch
            )
            break
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    @in_place_of(trainer, "reduce_per_replica")
    def reduce_per_replica(original, values, strategy, reduction):
        if reduction not in ("auto", "mean") or not _spans_workers(strategy):
            return original(values, strategy, reduction)
        return tf.nest.map_structure(lambda v: strategy.reduce("MEAN", v, axis=None), values)

    _take_several_steps_on_several_workers(trainer)
    APPLIED["fit_on_several_workers"] = (
        "_maybe_symbolic_build, reduce_per_replica and _make_function of the trainer"
    )


def _take_several_steps_on_several_workers(trainer: Any) -> None:
    """`steps_per_execution` must work under MultiWorkerMirroredStrategy.

    Keras 3 calls a traced step inside a traced loop (`TensorFlowTrainer._make_function`, checked in
    3.15), where TensorFlow feeds no key to the step's collectives.  Here the loop holds the step.
    """
    if not hasattr(trainer.TensorFlowTrainer, "_make_function"):
        return  # such a Keras makes its functions in other ways

    @in_place_of(trainer.TensorFlowTrainer, "_make_function")
    def make_function(original, self, step_function):
        made, strategy = original(self, step_function), self.distribute_strategy
        count = self.steps_per_execution
        if count == 1 or self.run_eagerly or not _spans_workers(strategy):
            return made

        def one_step(data):
            outputs = strategy.run(step_function, args=(data,))
            return trainer.reduce_per_replica(outputs, strategy, reduction="auto")

        @tf.autograph.experimental.do_not_convert
        def several_steps(iterator):
            def take(step, _, data):
                outputs = one_step(data.get_value())
                due = step + 1 < count
                return step + 1, outputs, tf.cond(due, iterator.get_next_as_optional, lambda: data)

            outputs = one_step(iterator.get_next())
            begin = [tf.constant(1), outputs, iterator.get_next_as_optional()]
            return tf.while_loop(
                lambda step, _, data: (step < count) & data.has_value(), take, begin
            )[1]

        traced = tf.function(several_steps, reduce_retracing=True)

        def function(iterator):
            several = isinstance(iterator, tf.distribute.DistributedIterator)
            return traced(iterator) if several else made(iterator)

        return function


def _spans_workers(strategy) -> bool:
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return several and strategy.extended._in_multi_worker_mode()


def _reduce_to_variables(strategy, grads_and_vars):
    return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, grads_and_vars)
