"""The training of faults.py: one worker of several, which may have a fault.

    python benchmarks/faulty.py group|strategy|horovod      reads jobs, one line of JSON each

TensorFlow is imported once; each job is a process that is forked off before TensorFlow's runtime
starts, and ends as any other Python program.  A job holds `rank`, `environment`, `folder`,
`timeout` and `fault`: None, or its kind, its place, after how many steps, `late` (after the
callbacks that save) and `delay` (seconds in the step).  Out go lines of JSON: which process is
which worker, and with which code it has ended when.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import pathlib
import select
import signal
import sys
import threading
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.keras import aggregator_of

ENGINE = sys.argv[1]
if ENGINE == "horovod":
    import horovod.tensorflow as hvd

EPOCHS, STEPS = 2, 4
TOTAL = EPOCHS * STEPS


def serve() -> dict[str, Any] | None:
    """In a forked process the job, in the first one None when no more jobs come."""
    left, alive = b"", set()
    while True:
        if select.select([0], [], [], 0.05)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, left = (left + data).split(b"\n")
            for line in lines:
                job = json.loads(line)
                pid = os.fork()
                if not pid:
                    return job
                alive.add(pid)
                say(rank=job["rank"], pid=pid)
        while alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            alive.discard(pid)
            say(pid=pid, code=os.waitstatus_to_exitcode(status), at=time.time())
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    return None


def say(**told: Any) -> None:
    print(json.dumps(told), flush=True)


def begin(job: dict[str, Any]) -> Any:
    """Joins the other workers; the strategy, or None."""
    for number, name in enumerate((os.devnull, f"stdout-{job['rank']}", f"stderr-{job['rank']}")):
        path = os.path.join(job["folder"], name)
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(job["environment"])
    faulthandler.register(signal.SIGUSR1)  # for what hangs
    if ENGINE == "strategy":
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=job["timeout"])
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    if ENGINE == "horovod":
        hvd.init()
    grace_tf.init(timeout=job["timeout"])
    return None


class ByStep(keras.Model):
    """Takes the data of step n in step n, so that a resumed run sees the same data."""

    def __init__(self, rank: int, workers: int):
        super().__init__()
        self.rank = rank
        hidden, last = keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(4)
        self.net = keras.Sequential([keras.Input((8,)), hidden, last])
        draw = np.random.default_rng(3)
        self.x = tf.constant(draw.normal(size=[2 * TOTAL, workers, 8, 8]), tf.float32)
        self.y = tf.tanh(self.x @ tf.constant(draw.normal(size=[8, 4]), tf.float32))

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
        self.told = pathlib.Path(job["folder"], "fault")

    def here(self, place: str) -> None:
        if place != self.place or int(self.model.optimizer.iterations.numpy()) < self.steps:
            return
        if place != "in a step":
            self.happen()
        elif not self.told.exists():
            self.told.touch()
            threading.Timer(self.delay, self.happen).start()

    def happen(self) -> None:
        self.told.write_text(repr(time.time()))
        if self.kind == "raise":
            raise ValueError("boom")
        os.kill(os.getpid(), getattr(signal, self.kind))

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


class End(keras.callbacks.Callback):
    """Ends the training after TOTAL steps, also where an epoch was begun anew, and says what is."""

    def on_train_begin(self, logs=None):
        self.look()  # all of it may have been restored; Keras trains a step more all the same

    def on_train_batch_end(self, batch, logs=None):
        self.look()

    def look(self) -> None:
        steps = int(self.model.optimizer.iterations.numpy())
        self.model.stop_training = steps >= TOTAL
        if steps == TOTAL:
            self.end = digests(self.model)

    def on_train_end(self, logs=None):
        say(**self.end)


def digests(model: keras.Model) -> dict[str, str]:
    """Of the weights, of the optimizer's variables and of this worker's residuals."""
    own = model.optimizer.variables
    own = own() if callable(own) else own
    state = aggregator_of(model.optimizer).state.arrays()
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


def train(job: dict[str, Any]) -> None:
    """The worker's whole program."""
    strategy = begin(job) or tf.distribute.get_strategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = ByStep(job["rank"], job["workers"])
        model.build((None, 8))
        adam = keras.optimizers.Adam(0.01)
        model.compile(grace_tf.wrap(adam, "topk:ratio=0.1", min_elements=1), "mse")
    saved = os.path.join(job["folder"], "backup")
    callbacks = [
        keras.callbacks.BackupAndRestore(saved, save_freq=1, delete_checkpoint=False),
        End(),
    ]
    if job["fault"] is not None:
        callbacks.insert(2 if job["fault"]["late"] else 0, Fault(job))
    rows = tf.zeros([8 * job["workers"], 8]), tf.zeros([8 * job["workers"], 4])
    data = tf.data.Dataset.from_tensors(rows).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = data.with_options(options)
    model.fit(
        data,
        epochs=EPOCHS,
        steps_per_epoch=STEPS,
        validation_data=data,
        validation_steps=2,
        verbose=0,
        callbacks=callbacks,
    )


if __name__ == "__main__":
    given = serve()
    if given is not None:
        train(given)
