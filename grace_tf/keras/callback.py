"""`Callback`: gives plain processes equal models before `fit` and mean metrics after each epoch."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from grace_tf.keras.first_step import without_own_gradients
from grace_tf.line import collective_keys
from grace_tf.transports.world import world
from grace_tf.transports.world.current_workers import several

_PIECE = 8192  # float64 values in each collective, since TensorFlow ties a key to one size

_means: Any = None  # the logs of the last epoch whose metrics were averaged


def averaged(logs: Any) -> bool:
    """Whether the metrics in these logs of an epoch's end are equal on every worker."""
    return logs is not None and logs is _means


class Callback(keras.callbacks.Callback):
    """Keeps the models of plain processes equal around `fit`; does nothing elsewhere.

    Before the first step it copies worker `root`'s model and optimizer to every worker, except for
    gradients that the optimizer accumulates.  After every epoch it replaces the logged metrics, and
    the model's float statistics that are not trained (BatchNorm's moving averages), by their means
    over workers.  Put it first, so that later callbacks see the means.  A model that is built by
    its first step takes worker `root`'s values in that step.

    Args:
      root: the rank of the worker whose values count, the same on every worker.

    Raises RuntimeError in `fit`, on every worker, where models or logged metrics differ in more
    than values, or a worker is gone.
    """

    def __init__(self, root: int = 0):
        super().__init__()
        self._root = root

    def on_train_begin(self, logs=None):
        if several() is None:
            return
        self.model._grace_root = self._root
        if not self.model.built:
            return  # the first step builds the model, and then compares its variables
        optimizer = self.model.optimizer
        variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        variables = without_own_gradients(optimizer, variables)
        seen: dict[int, Any] = {id(v): v for v in [*self.model.variables, *variables]}
        world.broadcast(list(seen.values()), self._root)

    def on_epoch_end(self, epoch, logs=None):
        connected = several()
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
        mean = _mean(connected, flat)
        for name, value in zip(names, mean):
            logs[name] = float(value)
        _remember(logs)
        offset = len(names)
        for v in statistics:
            n = int(np.prod(v.shape))
            v.assign(np.reshape(mean[offset : offset + n], v.shape))
            offset += n


def _mean(connected: Any, values: np.ndarray) -> np.ndarray:
    """The mean over workers of a float64 vector, whose length is the same on all workers."""
    pieces = np.pad(values, [0, -values.size % _PIECE]).reshape([-1, _PIECE])
    try:
        sums = [connected.sum([tf.constant(piece)], collective_keys.EPOCH)[0] for piece in pieces]
    except tf.errors.OpError as error:
        raise RuntimeError(connected.explain(error)) from error
    return tf.concat(sums, 0).numpy()[: values.size] / connected.size


def _remember(logs: Any) -> None:
    global _means
    _means = logs


def _check_same_logs(connected: Any, names: Sequence[str]) -> None:
    """Raises RuntimeError on every worker unless all have logged metrics of these names."""
    words = [len(names), zlib.crc32("\n".join(names).encode())]
    counts = connected.handshake(words, "the end of an epoch")
    if (counts != counts[0]).any():
        raise RuntimeError(
            f"The workers log different metrics: {', '.join(map(str, counts[:, 0]))} of them, "
            f"worker {connected.rank} {', '.join(names) or 'none'}; give validation data to all of "
            "them or none."
        )
