"""`EpochMeans`: gives plain processes the same logs and statistics at the end of each epoch.

Each process computes metrics, and BatchNormalization's moving statistics, from its own rows.  A
callback that decides by metrics, such as EarlyStopping, could decide differently on each worker.
`fit` calls EpochMeans before the user's callbacks, so all of them get the means over workers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.aggregation.already_aggregated import aggregators_of
from grace_tf.aggregation.consistency.plan_handshake import digest_of_variables
from grace_tf.keras.classes import Wrapped
from grace_tf.keras.optimizer_info import values_of
from grace_tf.keras.optimizers import innermost, parts
from grace_tf.line import collective_keys
from grace_tf.line.inputs import plain
from grace_tf.transports.world.current_workers import several

_PIECE = 8192  # float64 values in each collective, since TensorFlow ties a key to one size
# Where a worker is: the end of an epoch, the beginning and the end of its validation.
_EPOCH, _BEFORE_VALIDATION, _VALIDATED = range(3)

_means: Any = None  # the logs of the last epoch whose metrics were averaged


def averaged(logs: Any) -> bool:
    """Whether the metrics in these logs of an epoch's end are equal on every worker."""
    return logs is not None and logs is _means


class EpochMeans:
    """Replaces logs and statistics by their means over plain processes; else does nothing.

    Logs are those of an epoch's end, of the end of its validation and of `fit`'s end.  Statistics
    are the model's float variables that are not trained, without the weights of frozen layers; they
    are averaged before the validation, so that all workers validate one model.

    Raises RuntimeError, on every worker, where some of them validate and others do not, where their
    metrics have other names, and where a worker is gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}  # the means of the last epoch
        self._validates = False  # in this epoch

    def on_epoch_begin(self, epoch, logs=None):
        self._validates = False

    def on_test_begin(self, logs=None):
        self._validates = True
        self._take(_BEFORE_VALIDATION, {}, _statistics(self.model))

    def on_test_end(self, logs=None):
        self._take(_VALIDATED, logs, ())

    def on_epoch_end(self, epoch, logs=None):
        global _means
        statistics = () if self._validates else _statistics(self.model)
        if self._take(_EPOCH, logs, statistics):
            _means, self._last = logs, dict(logs or {})

    def on_train_end(self, logs=None):
        for name in set(logs or ()).intersection(self._last):
            logs[name] = self._last[name]

    def _take(self, where: int, logs: Any, statistics: Sequence[Any]) -> bool:
        """Averages logs and statistics over workers.  Returns False if it averaged nothing."""
        connected = several()
        if connected is None or not _wanted(self.model):
            return False
        names = sorted(name for name, value in (logs or {}).items() if _is_number(value))
        if _same(connected, where, names, statistics):
            statistics = ()
        numbers = [np.float64([logs[name] for name in names])]
        numbers += [np.ravel(v.numpy()).astype(np.float64) for v in statistics]
        mean = _mean(connected, np.concatenate(numbers))
        for name, value in zip(names, mean):
            logs[name] = float(value)
        offset = len(names)
        for v in statistics:
            n = int(np.prod(v.shape))
            v.assign(np.reshape(mean[offset : offset + n], v.shape))
            offset += n
        return True


def _wanted(model: Any) -> bool:
    """Whether grace_tf reduces this model's gradients, and `average_logs` is True for all."""
    given = [innermost(each) for each in (getattr(model, "optimizer", None), *vars(model).values())]
    optimizers = [each for one in given for each in (one, *parts(one))]
    found = [each._settings() for each in optimizers if isinstance(each, Wrapped)]
    found += [each.settings for v in values_of(model)[0] for each in aggregators_of(v)]
    return bool(found) and all(settings.average_logs for settings in found)


def _statistics(model: Any) -> list[Any]:
    return [
        v
        for v in values_of(model)[1]
        if tf.as_dtype(v.dtype).is_floating and not getattr(v, "overwrite_with_gradient", False)
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) or (tf.is_tensor(value) and not value.shape)


def _mean(connected: Any, values: np.ndarray) -> np.ndarray:
    """The mean over workers of a float64 vector, whose length is the same on all workers."""
    if not values.size:
        return values
    pieces = np.pad(values, [0, -values.size % _PIECE]).reshape([-1, _PIECE])
    try:
        sums = [connected.sum([tf.constant(piece)], collective_keys.EPOCH)[0] for piece in pieces]
    except tf.errors.OpError as error:
        raise RuntimeError(connected.explain(error)) from error
    return tf.concat(sums, 0).numpy()[: values.size] / connected.size


def _same(connected: Any, where: int, names: Sequence[str], statistics: Sequence[Any]) -> bool:
    """Whether all workers have the same statistics, which then need not travel.

    Raises RuntimeError on every worker unless all are at the same place, with metrics of the same
    names.
    """
    digest = digest_of_variables([plain(v) for v in statistics])
    words = [where, len(names), zlib.crc32("\n".join(names).encode()), digest]
    table = connected.handshake(words, "the end of an epoch")
    where, counts, _, _ = table.T
    if (where != where[0]).any():
        validate = " and ".join(map(str, np.flatnonzero(where != _EPOCH)))
        others = " and ".join(map(str, np.flatnonzero(where == _EPOCH)))
        raise RuntimeError(
            f"The workers log different metrics, since worker {validate} validates after this "
            f"epoch and worker {others} does not; give validation data to all of them or none, or "
            "turn means over workers off by average_logs=False in grace_tf.wrap."
        )
    if (table[:, :3] != table[0, :3]).any():
        raise RuntimeError(
            f"The workers log different metrics: {', '.join(map(str, counts))} of them, "
            f"worker {connected.rank} {', '.join(names) or 'none'}; give all workers the same "
            "metrics, or turn means over workers off by average_logs=False in grace_tf.wrap."
        )
    return bool((table[:, 3] == table[0, 3]).all())
