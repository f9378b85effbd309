"""Wraps Keras' `fit`, `evaluate` and `predict`.

The user's call goes on to Keras unchanged.  While it runs, `trained_model` returns the model being
trained: an optimizer does not know its model, which has variables that the optimizer never sees
(frozen layers, BatchNorm's statistics).  Between several workers the wrapper also checks that all
take equally many steps, puts two callbacks of its own before the user's, and replaces errors of
TensorFlow's collectives by one sentence.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.aggregation.choice import rest
from grace_tf.aggregation.consistency import initial_values, weight_drift
from grace_tf.keras import optimizer_info
from grace_tf.keras.classes import Wrapped, reducing
from grace_tf.keras.files import log_files
from grace_tf.keras.fit import configuration, rate_setters, steps
from grace_tf.keras.fit.epoch_means import EpochMeans
from grace_tf.keras.fit.stopping import stopped_by
from grace_tf.keras.fit.synchronised import refuse_unsynchronised
from grace_tf.keras.fit.traced_again import call_of, traced_again
from grace_tf.keras.flavours import Flavour, callback, flavour_of, is_a
from grace_tf.keras.optimizers import innermost
from grace_tf.keras.replacing import in_place_of
from grace_tf.transports.lifeline import lifeline
from grace_tf.transports.lifeline.lifeline import Lifeline, spans_processes
from grace_tf.transports.world import data_shards
from grace_tf.transports.world.current_workers import several, together

_LOG = logging.getLogger("grace_tf")
_said_who_deals = False

_models: list[Any] = []  # models being trained, the innermost last; all threads share it
_evaluating: list[Any] = []
# By model: the settings of the optimizer with which it trained last, None for a plain one.
_traced_for: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def trained_model() -> Any:
    """The model that `fit` or `train_on_batch` is training, or None."""
    return _models[-1] if _models else None


def _around(original: Callable, held: list[Any]) -> Callable:
    @functools.wraps(original)
    def around(self, *args, **kwargs):
        line = _line(self)
        try:
            with _within(held, self):
                if held is _models:
                    line = line or _connected(self, original, args, kwargs)
                    _forget_old_steps(self)
                    if line is not None and original.__name__ == "train_on_batch":
                        configuration.compare_batches(line, self)
                    if several() is not None:
                        refuse_unsynchronised(self)
                        optimizer_info.agree_before(self, several())
                outer = steps.now()
                if held is _models and outer is not None and several() is not None:
                    with outer.inside():
                        return _inside(original, self, *args, **kwargs)
                if line is None or original.__name__ != "fit" or outer is not None:
                    return original(self, *args, **kwargs)
                return _fit(line, original, self, *args, **kwargs)
        except Exception as error:
            sentence = None if line is None else _sentence(error)
            if sentence is None:
                raise
        # Outside the handler, so that TensorFlow's error is not part of the traceback.
        raise RuntimeError(sentence)

    return around


def _forget_old_steps(model: Any) -> None:
    """Makes Keras trace the step again where the optimizer was wrapped or unwrapped in between.

    Keras keeps a traced step until the next `compile`; a step that was traced with a plain
    optimizer would compress nothing.
    """
    optimizer = innermost(getattr(model, "optimizer", None))
    # Compared by identity: every `wrap` makes a new settings object, also where it is equal.
    wanted = optimizer._settings() if isinstance(optimizer, Wrapped) else None
    if wanted is not _traced_for.get(model):
        model.train_function = None
        if not flavour_of(model).is_3:
            model.train_tf_function = None
    _traced_for[model] = wanted


def _inside(original: Callable, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls Keras' `fit` or `train_on_batch` in a callback of another `fit` between workers."""
    call = inspect.signature(original).bind(model, *args, **kwargs)
    ours = [callback(EpochMeans, model)] * (original.__name__ == "fit")
    with _first(call.arguments, ours, model):
        return original(*call.args, **call.kwargs)


def _fit(line: Lifeline, original: Callable, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls Keras' `fit` between several workers: counts steps, compares weights by epoch."""
    call = inspect.signature(original).bind(model, *args, **kwargs)
    given = call.arguments
    if given.get("epochs", 1) <= given.get("initial_epoch", 0):
        return original(
            model, *args, **kwargs
        )  # evaluation only, which other workers need not join
    optimizer = innermost(model.optimizer)
    if several() is None and optimizer is not None and not isinstance(optimizer, Wrapped):
        lifeline.tell_plain(model.distribute_strategy, optimizer)
    with steps.Steps(line, _counted(given), _width(model), _planned(given)) as taken:
        configuration.compare(line, f"fit {taken.call}", model)
        if several() is not None:
            _look_at_data(taken, model.distribute_strategy, given.get("x"))
        logs = log_files.one_writer(line, taken.call, model, _callbacks(given))
        ours = [callback(_Epochs, model, line, taken), callback(EpochMeans, model)]
        with line.together(), logs, _first(given, ours, model):
            history = original(*call.args, **call.kwargs)
        # After the last callback, which may have changed something on one worker alone.
        _compare(line, taken, model, "end", "at the end of fit")
        taken.finish(stopped_by(model))
    return history


class _Epochs:
    """Tells `taken` where epochs begin and end, and compares the weights of all workers there."""

    def __init__(self, line: Lifeline, taken: steps.Steps) -> None:
        super().__init__()
        self._line, self._steps = line, taken

    def on_epoch_begin(self, epoch, logs=None):
        self._steps.begin_epoch(epoch)

    def on_test_begin(self, logs=None):
        # Told before the workers wait for each other, where one of them may be in another step.
        self._steps.end_epoch(stopped_by(self.model))

    def on_epoch_end(self, epoch, logs=None):
        _compare(self._line, self._steps, self.model, epoch, f"at the end of epoch {epoch + 1}")
        self._steps.end_epoch(stopped_by(self.model))


def _compare(line: Lifeline, taken: steps.Steps, model: Any, label: Any, when: str) -> None:
    """Compares the weights and the optimizers' settings of all workers, without waiting."""
    weights = optimizer_info.compared_weights(model)
    if weights:
        infos = [optimizer_info.info_of(each) for each in reducing(model.optimizer)]
        weight_drift.compare_in_fit(line, f"fit {taken.call}/{label}", when, weights, infos)


def _callbacks(given: dict[str, Any]) -> list[Any]:
    """The callbacks in the arguments of `fit`."""
    callbacks = given.get("callbacks")
    if is_a(callbacks, "callbacks.CallbackList"):
        return callbacks.callbacks
    return tf.nest.flatten([] if callbacks is None else callbacks)


@contextlib.contextmanager
def _first(given: dict[str, Any], ours: list[Any], model: Any) -> Iterator[None]:
    """Puts callbacks before those in the arguments of `fit`."""
    callbacks = given.get("callbacks")
    if not is_a(callbacks, "callbacks.CallbackList"):
        if ours:
            given["callbacks"] = [*ours, *rate_setters.looking(model, _callbacks(given))]
        yield
        return
    for each in ours:
        each.set_model(model)
    callbacks.callbacks[:0] = ours
    try:
        yield
    finally:
        callbacks.callbacks[:] = [each for each in callbacks.callbacks if each not in ours]


def _look_at_data(taken: steps.Steps, strategy: tf.distribute.Strategy, x: Any) -> None:
    """Warns where workers train on the same rows, or where their share is divided once more."""
    global _said_who_deals
    if not spans_processes(strategy):
        if isinstance(x, np.ndarray):
            taken.compare_data(x)
    elif data_shards.taken() and not _said_who_deals and not _as_it_is(x):
        _said_who_deals = True
        if several().rank == 0:
            _LOG.warning(
                "MultiWorkerMirroredStrategy deals out data itself, so each worker trains on a "
                "share of what grace_tf.shard gave it and the rest is lost: give fit the whole "
                "data on every worker, without grace_tf.shard."
            )


def _as_it_is(x: Any) -> bool:
    """Whether a strategy leaves each worker's data unchanged."""
    if isinstance(x, tf.distribute.DistributedDataset):
        return True
    policy = tf.data.experimental.AutoShardPolicy
    auto = isinstance(x, tf.data.Dataset) and x.options().experimental_distribute.auto_shard_policy
    return auto == policy.OFF


@contextlib.contextmanager
def _within(held: list[Any], model: Any):
    held.append(model)
    try:
        yield
    finally:
        # Removes its own entry: another thread may have added another model meanwhile.
        del held[max(i for i, each in enumerate(held) if each is model)]


def _line(model: Any) -> Lifeline | None:
    """The lifeline to the other workers that train this model, or None."""
    others = together(getattr(model, "distribute_strategy", None))
    return None if others is None else others.lifeline


def _connected(model: Any, original: Callable, args: Any, kwargs: Any) -> Lifeline | None:
    """The lifeline between workers that meet in this call of `fit` or `train_on_batch`, or None.

    Under Horovod workers that have not called `grace_tf.init()` would meet in the first step, and
    what is compared before it needs the lifeline.
    """
    connected = several()
    if connected is None or not reducing(getattr(model, "optimizer", None)):
        return None
    if original.__name__ == "fit":
        given = inspect.signature(original).bind(model, *args, **kwargs).arguments
        if given.get("epochs", 1) <= given.get("initial_epoch", 0):
            return None  # as in `_fit`
    connected.connect()
    return connected.lifeline


def _sentence(error: Exception) -> str | None:
    """The message for an error that another worker caused, or that contains our message; else None.

    Keras 2 puts `in user code:` and the lines of a traceback before the message of a traced step.
    """
    text = lifeline.sentence(error)
    if text is None and type(error) is RuntimeError and str(error).startswith("in user code:"):
        last = str(error).strip().splitlines()[-1].strip()
        text = last.removeprefix("RuntimeError: ") if last.startswith("RuntimeError: ") else None
    return text


def _counted(given: dict[str, Any]) -> bool:
    """Whether the number of batches of a call of `fit` is known before."""
    data = given.get("x")
    if given.get("steps_per_epoch") is not None or isinstance(data, np.ndarray):
        return True
    return isinstance(data, tf.data.Dataset) and int(data.cardinality()) >= 0


def _planned(given: dict[str, Any]) -> int | None:
    """The number of batches that a call of `fit` takes in all epochs, or None where unknown.

    A validation split takes some of them away.
    """
    data, count = given.get("x"), given.get("steps_per_epoch")
    if count is None and isinstance(data, np.ndarray):
        count = -(-len(data) // (given.get("batch_size") or 32))
    elif count is None and isinstance(data, tf.data.Dataset):
        count = int(data.cardinality())
    if count is None or count < 0:
        return None
    return int(count) * (given.get("epochs", 1) - given.get("initial_epoch", 0))


def _width(model: Any) -> int:
    width = getattr(model, "steps_per_execution", None) or getattr(model, "_steps_per_execution", 1)
    return int(width.numpy()) if isinstance(width, tf.Variable) else int(width or 1)


def _make_train_function(original: Callable, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes the function of Keras count the steps between workers."""
    made = original(self, *args, **kwargs)
    if steps.now() is None or getattr(self.train_function, "counts_steps", False):
        return made
    function = self.train_function

    def train_function(iterator):
        nonlocal function
        taken = steps.now()
        if taken is None:
            return function(iterator)
        taken.begin()
        try:
            again = traced_again(self, original)
            if again is not None:
                function, self.train_function = again, train_function
            logs = function(iterator)
        except (tf.errors.OutOfRangeError, StopIteration):
            taken.take_back()
            raise
        taken.end()
        return logs

    train_function.counts_steps = True
    train_function.is_split = getattr(function, "is_split", False)
    self.train_function = train_function
    return train_function


def _get_metrics_result(original: Callable, self: Any) -> Any:
    """Under a strategy the result is a collective at the end of an epoch."""
    taken = steps.now()
    if taken is not None and several() is None and not _evaluating and not tf.inside_function():
        taken.end_epoch(stopped_by(self))
    return original(self)


def _reset_metrics(original: Callable, self: Any) -> None:
    """Under a strategy Keras resets metrics by collectives, where an epoch begins."""
    taken = steps.now()
    if taken is None or several() is not None or _evaluating or tf.inside_function():
        return original(self)
    with taken.between_epochs():
        return original(self)


def install(keras: Flavour) -> None:
    """Wraps the methods of a Keras' Model."""
    rest.call_of = lambda tuner: call_of(trained_model(), tuner)
    initial_values.model_in_training = lambda: optimizer_info.values_of(trained_model())
    cls = keras.module.Model
    for held, names in (
        (_models, ("fit", "train_on_batch")),
        (_evaluating, ("evaluate", "predict", "test_on_batch")),
    ):
        for name in names:
            setattr(cls, name, _around(getattr(cls, name), held))
    in_place_of(cls, "get_metrics_result")(_get_metrics_result)
    in_place_of(cls, "reset_metrics")(_reset_metrics)
    in_place_of(cls, "make_train_function")(_make_train_function)
