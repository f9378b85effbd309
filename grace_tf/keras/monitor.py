"""`Monitor`: shows in Keras' logs and in TensorBoard what compression does to a training."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

import tensorflow as tf

from grace_tf.aggregation.aggregator import Aggregator
from grace_tf.aggregation.measure.alarms import Alarms
from grace_tf.aggregation.measured import Metrics, largest, limits_of, metrics_of, shown_residuals
from grace_tf.core.hyperparameters import check_integer
from grace_tf.keras.callback import OfOneKeras
from grace_tf.keras.classes import reducing
from grace_tf.keras.files import summaries

_LOG = logging.getLogger("grace_tf")
_NAN = float("nan")


class Monitor(OfOneKeras):
    """Measures every `every`-th step of `fit` and adds what it finds to Keras' logs.

        model.fit(data, callbacks=[grace_tf.keras.Monitor(), keras.callbacks.CSVLogger("log.csv")])

    The progress bar, History and the callbacks behind it see, after each batch and epoch,
    `grace_bytes` (a worker sends in a step; alone: would hand over), `grace_ratio`, `grace_vnmse`,
    `grace_residual`, `grace_skipped`, `grace_exchange_ms` and `grace_exposed_ms`: the last that was
    measured, NaN before, and where there is nothing to measure.  They mean what
    `Aggregator.metrics` says.  Of an optimizer that deals variables out to others, bytes are added
    up and the largest of the other numbers is shown.

    Weights, state and random draws stay the same bits.  All workers need it alike, since a measured
    step sums one more buffer over them: see `Aggregator.measure`.  The model's step is traced anew.

    One warning is logged where the residual is larger than it can be and has grown in three samples
    one after the other, and one where the vNMSE of a method without a memory is above 1 and above
    what its paper bounds it by.

    Args:
      every: steps from one measured step to the next.
      log_dir: a folder for TensorBoard: the same numbers as scalars, and histograms of the
        residuals, at measured steps; None for none.  One worker of several with one folder writes.
      exact: whether whole gradients are summed over workers to measure, instead of a sketch.
      keras: the module `keras` or `tf_keras`, as for `Callback`.

    Raises ValueError or TypeError for a bad `every` or `exact`; ValueError in `fit` where the
    model's optimizer is not wrapped, TypeError where the model is of the other Keras.
    """

    _supports_tf_logs = True  # Keras 2 then leaves a batch's logs where they are

    def __init__(
        self,
        every: int = 100,
        log_dir: Any = None,
        exact: bool = False,
        keras: ModuleType | None = None,
    ) -> None:
        super().__init__()
        check_integer("Monitor", "every", every, 1)
        self.every, self.log_dir, self.exact = every, log_dir, exact
        self._steps, self._batch = 0, -1
        self._found: dict[str, float] = {}
        self._alarms = Alarms()
        self._written: tuple[int | None, ...] = ()  # the last samples that were written
        self._writer: Any = None

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if not self._aggregators():
            raise ValueError(
                "Monitor measures wrapped optimizers, and this model has none: give compile() "
                "grace_tf.wrap(optimizer)."
            )
        if any([each.measure(self.every, self.exact) for each in self._aggregators()]):
            model.train_function = model.train_tf_function = None  # Keras traces the step again

    def on_train_begin(self, logs=None):
        # The steps are counted here too, since reading the counter would wait for each step.
        self._steps = max(each.state.step for each in self._aggregators())

    def on_epoch_begin(self, epoch, logs=None):
        self._batch = -1

    def on_train_batch_end(self, batch, logs=None):
        ended = range(self._steps, self._steps + batch - self._batch)  # several in one execution
        if any(step % self.every < 2 for step in ended):  # it was measured, or has the times
            self._look()
        self._steps, self._batch = ended.stop, batch
        if logs is not None:
            logs.update(self._found)

    def on_epoch_end(self, epoch, logs=None):
        self._look()
        if logs is not None:
            logs.update(self._found)

    def on_train_end(self, logs=None):
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _aggregators(self) -> list[Aggregator]:
        """Those of the model's optimizers, and of a strategy's own reduction."""
        found = [each._grace for each in reducing(getattr(self.model, "optimizer", None))]
        strategy = getattr(self.model, "distribute_strategy", None)
        ops = getattr(getattr(strategy, "extended", None), "_cross_device_ops", None)
        given = getattr(ops, "aggregator", None)
        return found + [given] * isinstance(given, Aggregator)

    def _look(self) -> None:
        aggregators = self._aggregators()
        metrics = [metrics_of(each) for each in aggregators]
        self._found = _as_logs(metrics)
        samples = tuple(each.step for each in metrics)
        if samples == self._written or not any(step is not None for step in samples):
            return
        self._written = samples
        for number, (each, found) in enumerate(zip(aggregators, metrics)):
            for sentence in self._alarms.of(number, found, limits_of(each)):
                _LOG.warning("%s", sentence)
        if self.log_dir is not None:
            self._write(aggregators, max(step for step in samples if step is not None))

    def _write(self, aggregators: list[Aggregator], step: int) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self.log_dir))
        tensors = [
            (f"grace/residual/{variable}", residual)
            for each in aggregators
            for variable, residual in shown_residuals(each)
        ]
        scalars = {name.replace("_", "/", 1): value for name, value in self._found.items()}
        summaries.write(self._writer, step, scalars, tensors)


def _as_logs(metrics: list[Metrics]) -> dict[str, float]:
    """The numbers for Keras' logs: always the same names, since a CSVLogger needs them."""

    def last(name: str, factor: float = 1.0) -> float:
        value = largest(metrics, name)
        return _NAN if value is None else factor * float(value)

    uncompressed = sum((each.ratio or 0) * (each.sent or each.bytes) for each in metrics)
    sent = sum(each.sent or each.bytes for each in metrics)
    return {
        "grace_bytes": float(sent),
        "grace_ratio": uncompressed / sent if sent else _NAN,
        "grace_vnmse": last("vnmse"),
        "grace_residual": last("residual"),
        "grace_skipped": last("skipped"),
        "grace_exchange_ms": last("exchange", 1e3),
        "grace_exposed_ms": last("exposed", 1e3),
    }
