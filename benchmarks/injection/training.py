"""The small training of one worker of several, and the faults that come in it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import threading
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from grace_tf.keras import aggregator_of
from grace_tf.keras.classes import Wrapped
from grace_tf.keras.optimizers import innermost
from grace_tf.line.inputs import local, plain
from injection import differences, memory
from injection.kinds import KINDS

TOTAL = 8
EPOCHS, STEPS = 2, 4
EPOCHS_OF_CALLBACKS, STEPS_OF_CALLBACKS = 4, 2  # where callbacks look at what an epoch gives
ROWS, FEATURES, OUTPUTS = 8, 8, 4
_ATTACK = 20.0  # seconds that worker 0 waits for strangers in mid-training


def injected(job: dict[str, Any]) -> None:
    """Tells that the fault comes now."""
    pathlib.Path(job["folder"], "fault").write_text(repr(time.time()))


class ByStep(keras.Model):
    """Takes the data of step n in step n, so that a resumed run sees the same data."""

    def __init__(self, rank: int, workers: int, how: differences.How):
        super().__init__()
        self.rank = rank
        self.net = keras.Sequential([keras.Input((FEATURES,)), *differences.layers(how, OUTPUTS)])
        draw = np.random.default_rng(3)
        self.x = tf.constant(draw.normal(size=[2 * TOTAL, workers, ROWS, FEATURES]), tf.float32)
        self.truth = tf.constant(draw.normal(size=[FEATURES, OUTPUTS]), tf.float32)
        self.y = tf.tanh(self.x @ self.truth)

    def call(self, inputs):
        return self.net(inputs)

    def train_step(self, batch):
        step = tf.cast(tf.convert_to_tensor(self.optimizer.iterations), tf.int32)
        return super().train_step((self.x[step, self.rank], self.y[step, self.rank]))


class Fault(keras.callbacks.Callback):
    """The fault of this worker, at its place once its number of steps is done."""

    def __init__(self, job: dict[str, Any]):
        super().__init__()
        self.kind, self.place = job["fault"]["kind"], job["fault"]["place"]
        self.steps, self.delay = job["fault"]["steps"], job["fault"]["delay"]
        self.draw = np.random.default_rng(job["fault"]["seed"])
        self.job = job
        self.happened = False

    def here(self, place: str) -> None:
        if place != self.place or self.happened:
            return
        if int(self.model.optimizer.iterations.numpy()) < self.steps:
            return
        self.happened = True
        if place != "in a step":
            self.happen()
        else:
            threading.Timer(self.delay, self.happen).start()

    def happen(self) -> None:
        if KINDS[self.kind].family == "memory":
            memory.write_hold(self.job)
        injected(self.job)
        if self.kind == "raise":
            raise ValueError("boom")
        if self.kind in ("SIGKILL", "killed while it is shared"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "SIGSTOP":
            os.kill(os.getpid(), signal.SIGSTOP)
        CHANGES[self.kind](self.model, self.draw)

    def on_train_begin(self, logs=None):
        self.here("training begins")

    def on_epoch_begin(self, epoch, logs=None):
        self.here("epoch begins")

    def on_train_batch_begin(self, batch, logs=None):
        self.here("step begins")
        self.here("in a step")

    def on_train_batch_end(self, batch, logs=None):
        self.here("step ends")

    def on_test_batch_end(self, batch, logs=None):
        self.here("validation")

    def on_epoch_end(self, epoch, logs=None):
        self.here("epoch ends")

    def on_train_end(self, logs=None):
        self.here("training ends")


def set_rate(model: keras.Model, draw: np.random.Generator) -> None:
    held = local(plain(model.optimizer.learning_rate))
    held.assign(held * draw.uniform(0.3, 0.9))


def draw_anew(model: keras.Model, draw: np.random.Generator) -> None:
    for variable in model.trainable_variables:
        held = local(plain(variable))
        held.assign(draw.normal(size=held.shape).astype(np.float32))


def permute(model: keras.Model, draw: np.random.Generator) -> None:
    """Two rows of a matrix change places."""
    matrices = [v for v in model.trainable_variables if len(v.shape) == 2]
    held = local(plain(matrices[draw.integers(len(matrices))]))
    rows, (one, two) = held.numpy(), draw.choice(held.shape[0], 2, replace=False)
    rows[[one, two]] = rows[[two, one]]
    held.assign(rows)


def flip(model: keras.Model, draw: np.random.Generator) -> None:
    """A bit of a weight; not one so low that a later step may round it off."""
    held = local(plain(model.trainable_variables[0]))
    values = held.numpy()
    at = draw.integers(values.size)
    values.reshape(-1)[at : at + 1].view(np.int32)[:] ^= 1 << int(draw.integers(18, 31))
    held.assign(values)


def stop(model: keras.Model, draw: np.random.Generator) -> None:
    model.stop_training = True


# What one worker changes in mid-training.
CHANGES = {
    "learning rate midway": set_rate,
    "weights drawn anew": draw_anew,
    "rows permuted": permute,
    "a bit of a weight": flip,
    "stop_training": stop,
    "weights after the last epoch": draw_anew,
    "weights as training ends": draw_anew,
    "rate after the last epoch": set_rate,
}


class End(keras.callbacks.Callback):
    """Ends the training after TOTAL steps, also where an epoch was begun anew."""

    first: int | None = None  # the step from which training has gone on
    began = False  # whether there was a step

    def on_train_begin(self, logs=None):
        self.look()  # Keras takes one more step even where all steps were restored

    def on_train_batch_begin(self, batch, logs=None):
        self.began = True
        if self.first is None:
            self.first = int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch, logs=None):
        self.look()

    def look(self) -> None:
        steps = int(self.model.optimizer.iterations.numpy())
        if steps >= TOTAL:
            self.model.stop_training = True
        if steps == TOTAL:
            self.first = TOTAL if self.first is None else self.first
            self.end = digests(self.model)

    def on_train_end(self, logs=None):
        if not self.began:
            self.end = digests(self.model)


class Mark(keras.callbacks.Callback):
    """On worker 0, creates the file `training` before the third step.

    The file tells the strangers to connect.  If the fault's phase is "training", the step waits for
    their file `attacked`, at most `_ATTACK` seconds.
    """

    def __init__(self, job: dict[str, Any]):
        super().__init__()
        self.folder, self.fault, self.rank = pathlib.Path(job["folder"]), job["fault"], job["rank"]

    def on_train_batch_begin(self, batch, logs=None):
        steps = int(self.model.optimizer.iterations.numpy())
        if steps == 2 and self.rank == 0:
            (self.folder / "training").touch()
            until = time.time() + _ATTACK
            waits = self.fault["phase"] == "training"
            while waits and time.time() < until and not (self.folder / "attacked").exists():
                time.sleep(0.005)


def digests(model: keras.Model) -> dict[str, str]:
    """The digests of the weights, the optimizer's variables and this worker's residuals."""
    own = model.optimizer.variables
    own = own() if callable(own) else own
    wrapped = isinstance(innermost(model.optimizer), Wrapped)
    state = aggregator_of(model.optimizer).state.arrays() if wrapped else {}
    kept = [rows for name, rows in sorted(state.items()) if not name.startswith("grace")]
    return {
        "weights": digest([v.numpy() for v in model.trainable_variables]),
        "optimizer": digest([v.numpy() for v in own]),
        "residuals": digest(kept),
    }


def digest(arrays: list[np.ndarray]) -> str:
    told = hashlib.sha256()
    for array in arrays:
        told.update(np.ascontiguousarray(array).tobytes())
    return told.hexdigest()[:12]


def train(job: dict[str, Any], strategy: tf.distribute.Strategy) -> None:
    """The rest of the worker's program."""
    fault = job["fault"]
    mine = fault is not None and fault["worker"] == job["rank"]
    shares = fault is not None and KINDS[fault["kind"]].family == "memory"
    how = differences.How(fault["kind"] if mine else "", fault["seed"] if fault else 0, shares)
    if fault and fault.get("width"):  # all workers train another model
        how = differences.How("width", 0)
    if how.kind in KINDS and KINDS[how.kind].family == "differs" and how.kind not in CHANGES:
        injected(job)  # as the model is made, which may end all; `fit` tells it once more
    keras.utils.set_random_seed(2 if how.kind == "first weights" else 1)
    with contextlib.ExitStack() as held:
        held.enter_context(strategy.scope())
        differences.begin(how)
        model = ByStep(job["rank"], job["workers"], how)
        model.build((None, FEATURES))
        differences.compile_model(model, how)
    fit(model, job, how, mine)


def fit(model: keras.Model, job: dict[str, Any], how: differences.How, mine: bool) -> None:
    """Trains, and says with what it has ended."""
    fault = job["fault"]
    family = KINDS[fault["kind"]].family if fault else ""
    callbacks: list[Any] = [End()]
    if fault is None or family in ("lost", "backup"):
        saved = os.path.join(job["folder"], "backup")
        kept = keras.callbacks.BackupAndRestore(saved, save_freq=1, delete_checkpoint=False)
        callbacks.insert(0, kept)
    if family == "callback":
        callbacks += differences.callbacks(fault["kind"])
    if family == "strangers":
        callbacks.append(Mark(job))
    if mine and (family in ("lost", "memory") or fault["kind"] in CHANGES):
        callbacks.insert(len(callbacks) if fault["late"] else 0, Fault(job))
    elif mine and family in ("differs", "callback", "backup"):
        injected(job)
    epochs, steps = EPOCHS, STEPS
    if family == "callback":
        epochs, steps = EPOCHS_OF_CALLBACKS, STEPS_OF_CALLBACKS
    given: dict[str, Any] = dict(verbose=0, shuffle=False, callbacks=callbacks)
    if family == "callback" or (fault and fault["place"] == "validation"):
        given.update(validation_data=_own_rows(model, mine), validation_steps=2)
    counted = fault is not None and fault["kind"] in ("fewer batches", "batch size")
    data = _data(how, steps if counted else 0)
    if not counted:
        given["steps_per_epoch"] = steps
    if fault and fault["kind"].startswith("recompiled"):
        model.fit(data, epochs=1, **given)
        if mine:
            injected(job)
            differences.compile_again(model, how)
        model.fit(data, epochs=epochs, initial_epoch=1, **given)
    else:
        model.fit(data, epochs=epochs, **given)
    (end,) = [each for each in callbacks if isinstance(each, End)]
    told = {"first": end.first, **(end.__dict__.get("end") or digests(model))}
    if family in ("callback", "differs"):  # other callbacks come later, and may stop it earlier
        told = {**told, **digests(model)}
    print(json.dumps(told), flush=True)


def _data(how: differences.How, steps: int) -> tf.data.Dataset:
    """As many batches as steps, or without end; `ByStep` replaces their rows by its own."""
    if not steps:
        return _as_it_is(tf.data.Dataset.from_tensors(_zeros(ROWS)).repeat())
    rows = ROWS * steps
    if how.kind == "fewer batches":
        rows -= ROWS
    size = 2 * ROWS if how.kind == "batch size" else ROWS
    return _as_it_is(tf.data.Dataset.from_tensor_slices(_zeros(rows)).batch(size))


def _zeros(rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.zeros([rows, FEATURES]), tf.zeros([rows, OUTPUTS])


def _own_rows(model: ByStep, mine: bool) -> tf.data.Dataset:
    """This worker's own validation data: on one worker the loss rises as the others' falls."""
    draw = np.random.default_rng(100 + model.rank)
    x = tf.constant(draw.normal(size=[2 * ROWS, FEATURES]), tf.float32)
    y = (-20.0 if mine else 1.0) * tf.tanh(x @ model.truth)
    return _as_it_is(tf.data.Dataset.from_tensor_slices((x, y)).batch(ROWS))


def _as_it_is(data: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return data.with_options(options)
