"""The door of Keras: `wrap` an optimizer, and the callback that keeps plain processes alike.

`wrap` swaps the class of the user's own object for a subclass (keras_classes.py) that overrides the
one method in which gradients cross workers; everything else stays Keras' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from grace_tf import group, keras_repairs
from grace_tf.aggregator import Aggregator, called, other_door, refuse_parameter_servers
from grace_tf.keras_classes import Wrapped, attach, bases, detach, wrapped_class
from grace_tf.keras_repairs import KERAS_3
from grace_tf.plan import collective_key, settings


def wrap(
    optimizer: Any,
    compressor: Any = "qsgd",
    *,
    memory: Any = "auto",
    granularity: str = "auto",
    exchange: str = "auto",
    min_elements: int = 1024,
    exclude: str | Sequence[str] = (),
    bucket_bytes: int = 25 << 20,
    seed: int = 0,
    **hyperparameters: Any,
) -> Any:
    """Makes the gradients of a Keras optimizer travel compressed; returns the same object.

        model.compile(optimizer=grace_tf.wrap(keras.optimizers.Adam(1e-3), "qsgd"), ...)

    Slots, learning rate, schedules and callables stay as they are; `unwrap` undoes it.  A model
    that has trained already must be compiled again, since Keras keeps its traced step.

    Args:
      optimizer: any Keras 3 or Keras 2 (new or legacy) optimizer, built or not; of a
        LossScaleOptimizer the inner optimizer is wrapped.
      compressor: an instance, a name with `hyperparameters`, a spec such as "topk:ratio=0.01", or
        a mapping from patterns (`re.fullmatch` on a variable's path) to these, the first counts.
      memory: "auto" (what the method's paper uses), "none", "residual" or an instance.
      granularity: "auto" and "variable" compress per variable; "model" all gradients as one vector.
      exchange: "auto" or "gather".
      min_elements: smaller variables travel dense.
      exclude: patterns of variables that travel dense.
      bucket_bytes: bytes of gradient that are communicated together; never changes a result.
      seed: of all random draws, 0 … 2^32 − 1; the same on every worker.

    Raises ValueError or TypeError for what is unknown, out of range, already wrapped or cannot be
    served.
    """
    keywords = dict(granularity=granularity, exchange=exchange, min_elements=min_elements)
    keywords.update(memory=memory, exclude=exclude, bucket_bytes=bucket_bytes, seed=seed)
    aggregator = Aggregator(settings(compressor, **keywords, **hyperparameters))
    inner = _innermost(optimizer)
    if isinstance(inner, Wrapped):
        raise ValueError(
            f"This {type(inner).__name__} is wrapped already; grace_tf.unwrap() it first."
        )
    if tf.distribute.has_strategy():
        refuse_parameter_servers(tf.distribute.get_strategy())
    inner.__class__ = wrapped_class(type(inner))
    attach(inner, aggregator)
    keras_repairs.fit_on_several_workers()
    return optimizer


def unwrap(optimizer: Any) -> Any:
    """Undoes `wrap`: the same object, its own class again, compression state gone.

    Raises ValueError for an optimizer that is not wrapped.
    """
    detach(_wrapped(optimizer))
    return optimizer


def aggregator_of(optimizer: Any) -> Aggregator:
    """The aggregator of a wrapped optimizer: its state, and `bytes_per_step`."""
    return _wrapped(optimizer)._grace


def _wrapped(optimizer: Any) -> Any:
    inner = _innermost(optimizer)
    if not isinstance(inner, Wrapped):
        raise ValueError(f"This {type(inner).__name__} is not wrapped.")
    return inner


def _innermost(optimizer: Any) -> Any:
    while "LossScaleOptimizer" in type(optimizer).__name__ and hasattr(
        optimizer, "inner_optimizer"
    ):
        optimizer = optimizer.inner_optimizer
    if not isinstance(optimizer, bases()):
        raise TypeError(f"wrap() takes a Keras optimizer, not {optimizer!r}.")
    return optimizer


def _agree(optimizer: Any, finite: tf.Tensor) -> tf.Tensor:
    """What all workers answer together to whether a step is finite, where a door reduces."""
    context = tf.distribute.get_replica_context()
    replicas = 1 if context is None else context.num_replicas_in_sync
    ours = (
        replicas > 1 and getattr(context.strategy.extended, "_cross_device_ops", None) in other_door
    )
    if not ours and not isinstance(optimizer, Wrapped):
        return finite
    bad = 1.0 - tf.cast(finite, tf.float32)
    if replicas > 1:
        return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(bad)), 0.0)
    connected = group.current()
    if connected is None or connected.size == 1:
        return finite
    return tf.equal(connected.sum([bad[None]], collective_key("finite"))[0][0], 0.0)


def _guard(own):
    """Raises where an optimizer that is not wrapped would update one worker of a group alone."""

    def guarded(self, grads_and_vars):
        connected = group.current()
        alone = connected is None or connected.size == 1
        if not alone and not called and not isinstance(self, Wrapped):
            raise RuntimeError(
                f"This process is worker {connected.rank} of {connected.size}, but its "
                f"{type(self).__name__} is not wrapped, so gradients would not be reduced: wrap it "
                "with grace_tf.wrap() on every worker, or aggregate them with grace_tf.Aggregator."
            )
        return own(self, grads_and_vars)

    return guarded


def _install_guards() -> None:
    if KERAS_3:
        from keras.src.backend.tensorflow.optimizer import TFOptimizer

        TFOptimizer._all_reduce_sum_gradients = _guard(TFOptimizer._all_reduce_sum_gradients)
        return
    new, legacy = keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer
    new.aggregate_gradients = _guard(new.aggregate_gradients)
    legacy._aggregate_gradients = _guard(legacy._aggregate_gradients)


class Callback(keras.callbacks.Callback):
    """Keeps the plain processes of a group alike around `fit`; does nothing elsewhere.

    Before the first step worker `root`'s model and optimizer go to every worker.  After every epoch
    the logged metrics and the float statistics of the model that are not trained (BatchNorm's
    moving averages) become their means over workers.  Put it first, so that later callbacks see the
    means.  The model must be built before `fit` where its variables are to be broadcast.
    """

    def __init__(self, root: int = 0):
        super().__init__()
        self._root = root

    def on_train_begin(self, logs=None):
        if self._group() is None:
            return
        optimizer = self.model.optimizer
        own = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        seen: dict[int, Any] = {id(v): v for v in [*self.model.variables, *own]}
        group.broadcast(list(seen.values()), self._root)

    def on_epoch_end(self, epoch, logs=None):
        connected = self._group()
        if connected is None:
            return
        names = sorted(k for k, v in (logs or {}).items() if isinstance(v, (int, float, np.number)))
        statistics = [
            v for v in self.model.non_trainable_variables if tf.as_dtype(v.dtype).is_floating
        ]
        numbers = [np.float64([logs[name] for name in names])]
        numbers += [np.ravel(v.numpy()).astype(np.float64) for v in statistics]
        flat = np.concatenate(numbers)
        if not flat.size:
            return
        key = collective_key("epoch", flat.size)
        mean = connected.sum([tf.constant(flat)], key)[0].numpy() / connected.size
        for name, value in zip(names, mean):
            logs[name] = float(value)
        offset = len(names)
        for v in statistics:
            n = int(np.prod(v.shape))
            v.assign(np.reshape(mean[offset : offset + n], v.shape))
            offset += n

    @staticmethod
    def _group():
        connected = group.current()
        return None if connected is None or connected.size == 1 else connected


_install_guards()
keras_repairs.agree_on_finite(_agree)
