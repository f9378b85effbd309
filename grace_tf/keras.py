"""The door of Keras: `wrap` an optimizer, and the callback that keeps plain processes alike.

`wrap` swaps the class of the user's own object for a subclass (keras_classes.py) that overrides the
one method in which gradients cross workers; everything else stays Keras' own.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from grace_tf import group, keras_repairs
from grace_tf.aggregator import Aggregator, aggregated
from grace_tf.keras_classes import Wrapped, attach, bases, detach, wrapped_class
from grace_tf.keras_repairs import KERAS_3
from grace_tf.plan import collective_key, settings
from grace_tf.surroundings import compresses, refuse_parameter_servers


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
      exchange: "auto" or "gather", which are the same for now: every worker gets every payload.
      min_elements: smaller variables travel dense.
      exclude: patterns of variables that travel dense.
      bucket_bytes: bytes of gradient that are communicated together; never changes a result.
      seed: of all random draws, 0 … 2^32 − 1; the same on every worker.  Optimizers of one program
        draw the same noise for the same seed: give each its own where it must be independent.

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
    ours = replicas > 1 and compresses(context.strategy)
    if not ours and not isinstance(optimizer, Wrapped):
        return finite
    bad = 1.0 - tf.cast(finite, tf.float32)
    if replicas > 1:
        return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(bad)), 0.0)
    connected = _several()
    if connected is None:
        return finite
    return tf.equal(connected.sum([bad[None]], collective_key("finite"))[0][0], 0.0)


def _several() -> Any:
    """The process group, where it has more workers than this one; else None."""
    connected = group.current()
    return None if connected is None or connected.size == 1 else connected


def _guard(own):
    """Raises where a plain optimizer would not reduce gradients at all, or reduce them twice."""

    def guarded(self, grads_and_vars):
        grads_and_vars = list(grads_and_vars)
        if not isinstance(self, Wrapped):
            _check_plain(self, [v for g, v in grads_and_vars if g is not None])
        return own(self, grads_and_vars)

    return guarded


def _check_plain(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raises RuntimeError for variables whose gradients a plain optimizer must not reduce so."""
    connected = _several()
    if connected is not None and not all(map(aggregated, variables)):
        raise RuntimeError(
            f"This process is worker {connected.rank} of {connected.size}, but its "
            f"{type(optimizer).__name__} is not wrapped, so gradients would not be reduced: wrap "
            "it with grace_tf.wrap() on every worker, or aggregate them with grace_tf.Aggregator."
        )
    context = tf.distribute.get_replica_context()
    replicas = 1 if context is None else context.num_replicas_in_sync
    if replicas > 1 and any(map(aggregated, variables)):
        raise RuntimeError(
            "These gradients were reduced by a grace_tf.Aggregator already, and "
            f"{type(optimizer).__name__} would reduce them once more: use grace_tf.wrap(optimizer) "
            f"under a strategy instead{'' if KERAS_3 else f', or {_own_reduction_off(optimizer)}'}."
        )


def _own_reduction_off(optimizer: Any) -> str:
    """How a Keras 2 optimizer is told that gradients are reduced already."""
    legacy = isinstance(optimizer, keras.optimizers.legacy.Optimizer)
    off = "experimental_aggregate_gradients=False" if legacy else "skip_gradients_aggregation=True"
    return f"apply_gradients(..., {off})"


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
        if _several() is None:
            return
        if not self.model.built:
            raise ValueError(
                f"grace_tf.keras.Callback broadcasts the model at the start, but {self.model.name} "
                "has no variables yet: call model.build(input_shape) before fit."
            )
        optimizer = self.model.optimizer
        own = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        seen: dict[int, Any] = {id(v): v for v in [*self.model.variables, *own]}
        group.broadcast(list(seen.values()), self._root)

    def on_epoch_end(self, epoch, logs=None):
        connected = _several()
        if connected is None:
            return
        names = sorted(k for k, v in (logs or {}).items() if isinstance(v, (int, float, np.number)))
        _check_same_logs(connected, names)
        statistics = [
            v for v in self.model.non_trainable_variables if tf.as_dtype(v.dtype).is_floating
        ]
        numbers = [np.float64([logs[name] for name in names])]
        numbers += [np.ravel(v.numpy()).astype(np.float64) for v in statistics]
        flat = np.concatenate(numbers)
        if not flat.size:
            return
        key = collective_key("epoch", flat.size)
        try:
            mean = connected.sum([tf.constant(flat)], key)[0].numpy() / connected.size
        except tf.errors.OpError as error:
            raise RuntimeError(connected.explain(error)) from error
        for name, value in zip(names, mean):
            logs[name] = float(value)
        offset = len(names)
        for v in statistics:
            n = int(np.prod(v.shape))
            v.assign(np.reshape(mean[offset : offset + n], v.shape))
            offset += n


def _check_same_logs(connected: Any, names: Sequence[str]) -> None:
    """Raises RuntimeError on every worker where not all have logged metrics of these names."""
    words = [len(names), zlib.crc32("\n".join(names).encode())]
    counts = connected.handshake(words, "the end of an epoch")
    if (counts != counts[0]).any():
        raise RuntimeError(
            f"The workers log different metrics: {', '.join(map(str, counts[:, 0]))} of them, "
            f"worker {connected.rank} {', '.join(names) or 'none'}; give validation data to all of "
            "them or none."
        )


_install_guards()
keras_repairs.agree_on_finite(_agree)
keras_repairs.no_xla_between_processes(lambda: _several() is not None)
