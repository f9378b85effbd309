"""The door of Keras: `wrap` an optimizer, and the callback that keeps plain processes alike.

An optimizer's gradients cross workers in exactly one method of every Keras generation; `wrap` swaps the
class of the user's own object for a subclass that overrides it.  In come (gradient, variable)
pairs, out go the aggregated ones; everything else stays Keras' own.
"""

from __future__ import annotations

import json
import os
from typing import Any, Sequence

import keras
import numpy as np
import tensorflow as tf

from grace_tf import group, keras_repairs
from grace_tf.aggregator import Aggregator, called, is_parameter_server
from grace_tf.keras_repairs import KERAS_3
from grace_tf.plan import collective_key, settings

_PACKAGE = "grace_tf"
_FILE = "grace.npz"


class _Wrapped:
    """What every wrapped optimizer has: an aggregator, and its settings in the config."""

    _grace: Aggregator | None = None

    def _aggregated(self, grads_and_vars, host):
        grads_and_vars = list(grads_and_vars)
        if self._grace is None:
            raise ValueError(f"A bare {type(self).__name__} compresses nothing; make it with grace_tf.wrap().")
        variables = [v for _, v in grads_and_vars]

        def by_host(grads):
            present = [v for g, v in grads_and_vars if g is not None]
            return [g for g, _ in host(list(zip(grads, present)))]

        totals = self._grace.aggregate([g for g, _ in grads_and_vars], variables, by_host)
        return list(zip(totals, variables))

    def get_config(self):
        config = super().get_config()
        # Text, since Keras 2 turns dictionaries that it tracks into objects of its own.
        return {**config, "grace": json.dumps(self._grace.settings.config())}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        wanted = json.loads(config.pop("grace"))
        optimizer = super().from_config(config, custom_objects=custom_objects)
        _attach(optimizer, Aggregator(settings(**wanted)))
        return optimizer

    # A file of its own beside Keras' variables, so that plain and wrapped optimizers load each other's.

    def save_assets(self, path):
        np.savez(os.path.join(path, _FILE), **self._grace.state.arrays())

    def load_assets(self, path):
        file = os.path.join(path, _FILE) if path else ""
        if os.path.exists(file):
            with np.load(file) as arrays:
                self._grace.state.restore(dict(arrays))


class _Keras3(_Wrapped):
    def build(self, variables):
        super().build(variables)
        self._grace.join(variables)  # here the variables still have their paths

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return self._aggregated(grads_and_vars, super()._all_reduce_sum_gradients)


class _Keras2(_Wrapped):
    def build(self, var_list):
        self._grace.join(var_list)
        super().build(var_list)

    def aggregate_gradients(self, grads_and_vars):
        return self._aggregated(grads_and_vars, super().aggregate_gradients)


class _Legacy(_Wrapped):
    def _aggregate_gradients(self, grads_and_vars):
        return self._aggregated(grads_and_vars, super()._aggregate_gradients)


_classes: dict[type, type] = {}


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

    Slots, learning rate, schedules and callables stay as they are; `unwrap` undoes it.

    Args:
      optimizer: any Keras 3 or Keras 2 (new or legacy) optimizer, built or not; of a LossScaleOptimizer the
        inner optimizer is wrapped.
      compressor: an instance, a name with `hyperparameters`, a spec such as "topk:ratio=0.01", or a mapping from
        patterns (`re.fullmatch` on a variable's path) to these; first match wins, no match means none.
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
    wanted = settings(
        compressor,
        memory=memory,
        granularity=granularity,
        exchange=exchange,
        min_elements=min_elements,
        exclude=exclude,
        bucket_bytes=bucket_bytes,
        seed=seed,
        **hyperparameters,
    )
    inner = _innermost(optimizer)
    if isinstance(inner, _Wrapped):
        raise ValueError(f"This {type(inner).__name__} is wrapped already; grace_tf.unwrap() it first.")
    if tf.distribute.has_strategy() and is_parameter_server(tf.distribute.get_strategy()):
        raise ValueError(
            "ParameterServerStrategy updates asynchronously: there is no all-reduce to compress; use MirroredStrategy, "
            "MultiWorkerMirroredStrategy or one process per worker (grace_tf.init)."
        )
    aggregator = Aggregator(wanted)
    inner.__class__ = _wrapped_class(type(inner))
    _attach(inner, aggregator)
    return optimizer


def unwrap(optimizer: Any) -> Any:
    """Undoes `wrap`: the same object, its own class again, compression state gone.

    Raises ValueError for an optimizer that is not wrapped.
    """
    inner = _innermost(optimizer)
    if not isinstance(inner, _Wrapped):
        raise ValueError(f"This {type(inner).__name__} is not wrapped.")
    plain = next(base for base, wrapped in _classes.items() if wrapped is type(inner))
    del inner._grace
    inner.__class__ = plain
    return optimizer


def aggregator_of(optimizer: Any) -> Aggregator:
    """The aggregator of a wrapped optimizer: its state, and `bytes_per_step`."""
    inner = _innermost(optimizer)
    if not isinstance(inner, _Wrapped):
        raise ValueError(f"This {type(inner).__name__} is not wrapped.")
    return inner._grace


def _attach(optimizer: Any, aggregator: Aggregator) -> None:
    optimizer._grace = aggregator  # automatically tracked by all but legacy optimizers
    if isinstance(optimizer, _Legacy):
        optimizer._track_trackable(aggregator, "_grace", overwrite=True)
    if getattr(optimizer, "built", False):
        aggregator.join(getattr(optimizer, "_trainable_variables", ()))


def _innermost(optimizer: Any) -> Any:
    while "LossScaleOptimizer" in type(optimizer).__name__ and hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    if not isinstance(optimizer, _bases()):
        raise TypeError(f"wrap() takes a Keras optimizer, not {optimizer!r}.")
    return optimizer


def _bases() -> tuple[type, ...]:
    if KERAS_3:
        return (keras.optimizers.Optimizer,)
    return (keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer)


def _wrapped_class(base: type) -> type:
    """The registered subclass of an optimizer class: Grace + (Legacy | Tfa | nothing) + its name."""
    if base not in _classes:
        if KERAS_3:
            mixin, prefix = _Keras3, ""
        elif issubclass(base, keras.optimizers.legacy.Optimizer):
            tfa = base.__module__.startswith("tensorflow_addons")
            mixin, prefix = _Legacy, "Tfa" if tfa else "Legacy"
        else:
            mixin, prefix = _Keras2, ""
        name = f"Grace{prefix}{base.__name__}"
        cls = type(name, (mixin, base), {"__module__": __name__, "__doc__": base.__doc__})
        _classes[base] = keras.utils.register_keras_serializable(_PACKAGE, name)(cls)
    return _classes[base]


def _register_built_in() -> None:
    """So that load_model finds the classes of wrapped optimizers in a fresh process."""
    namespaces = [keras.optimizers] if KERAS_3 else [keras.optimizers, keras.optimizers.legacy]
    for namespace in namespaces:
        for name in dir(namespace):
            cls = getattr(namespace, name)
            if (
                isinstance(cls, type)
                and issubclass(cls, _bases())
                and cls not in _bases()
                and "LossScale" not in name
            ):
                _wrapped_class(cls)


def _agree(optimizer: Any, finite: tf.Tensor) -> tf.Tensor:
    """The common answer of all workers to whether a step is finite."""
    if not isinstance(optimizer, _Wrapped):
        return finite
    bad = 1.0 - tf.cast(finite, tf.float32)
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
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
        if not alone and not called and not isinstance(self, _Wrapped):
            raise RuntimeError(
                f"This process is worker {connected.rank} of {connected.size}, but its {type(self).__name__} is not "
                "wrapped, so gradients would not be reduced: wrap it with grace_tf.wrap() on every worker, or "
                "aggregate them with grace_tf.Aggregator."
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

    Before the first step worker `root`'s model and optimizer go to every worker.  After every epoch the
    logged metrics and the float statistics of the model that are not trained (BatchNorm's moving averages)
    become their means over workers.  Put it first, so that later callbacks see the means.  The model must be
    built before `fit` where its variables are to be broadcast.
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


_register_built_in()
_install_guards()
keras_repairs.agree_on_finite(_agree)
