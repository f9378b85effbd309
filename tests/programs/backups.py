"""A training that callbacks save, that may be killed, and that goes on; prints a JSON line a step.

backups.py FOLDER group|mwms|mirrored METHOD [KILL RANK]   trains 12 steps, three epochs of four.
With KILL, worker RANK is killed after so many steps, before its callbacks save anything; with
"end", after all other callbacks have ended the training.
"""

from __future__ import annotations

import glob
import json
import os
import pathlib
import signal
import sys
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

FOLDER, SURROUNDINGS, METHOD = sys.argv[1:4]
KILL, KILLED = sys.argv[4:] or ["0", "0"]

import replicas  # noqa: E402  (four virtual CPUs)
import tensorflow as tf  # noqa: E402

strategy = None
if SURROUNDINGS == "mwms":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs
elif SURROUNDINGS == "mirrored":
    strategy = replicas.mirrored(2)

import models  # noqa: E402
import numpy as np  # noqa: E402
from digests import digest  # noqa: E402
from this_keras import keras  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.keras import aggregator_of, own_path  # noqa: E402

EPOCHS, STEPS, SAVE_FREQ = 3, 4, 3
rank = 0
if SURROUNDINGS == "group":
    rank = grace_tf.init(timeout=60).rank
elif SURROUNDINGS == "mwms":
    rank = strategy.cluster_resolver.task_id


class ByStep(keras.Model):
    """Takes the data of step n in step n, so that a resumed run sees the same data."""

    def __init__(self):
        super().__init__()
        self.net = models.model()
        draw = np.random.default_rng(3)
        self.x = tf.constant(draw.normal(size=[64, 2, 8, 8]), tf.float32)
        self.y = tf.tanh(self.x @ tf.constant(draw.normal(size=[8, 4]), tf.float32))

    def call(self, inputs):
        return self.net(inputs)

    def train_step(self, batch):
        step = tf.cast(tf.convert_to_tensor(self.optimizer.iterations), tf.int32)
        worker = rank
        if strategy is not None:
            worker = tf.distribute.get_replica_context().replica_id_in_sync_group
        return super().train_step((self.x[step, worker], self.y[step, worker]))


class Tell(keras.callbacks.Callback):
    """Prints digests of the state after each step; kills its own process after step KILL."""

    def on_train_batch_end(self, batch, logs=None):
        say(**digests(self.model))
        if KILL == str(int(self.model.optimizer.iterations.numpy())):
            kill()


class KilledAtTheEnd(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        if KILL == "end":
            kill()


def kill():
    if rank == int(KILLED):
        if SURROUNDINGS == "group" and KILL != "end":
            until_worker_0_has_saved(int(KILL) // SAVE_FREQ)
        os.kill(os.getpid(), signal.SIGKILL)


def until_worker_0_has_saved(number, seconds=20):
    """Else worker 0 may learn that this worker is gone, and end, before it has saved."""
    whole = f"backup/{number}" if models.KERAS_3 else f"backup/**/ckpt-{number}.sha256"
    end = time.monotonic() + seconds
    # glob.glob passes over a folder that is renamed meanwhile; Path.glob raises an error.
    while not glob.glob(f"{FOLDER}/{whole}", recursive=True) and time.monotonic() < end:
        time.sleep(0.01)


def digests(model):
    state = aggregator_of(model.optimizer).state
    kept = sorted(
        (name, rows) for name, rows in state.arrays().items() if not name.startswith("grace")
    )
    weights = [models.replicas_of(v)[0] for v in model.trainable_variables]
    slots = [models.replicas_of(v)[0] for v in own_variables(model.optimizer)]
    return {
        "step": int(model.optimizer.iterations.numpy()),
        "weights": digest(weights),
        "slots": digest(slots),
        "workers": {w: digest(rows[i] for _, rows in kept) for i, w in enumerate(state.workers)},
    }


def own_variables(optimizer):
    return optimizer.variables() if callable(optimizer.variables) else optimizer.variables


def compiled():
    with models.scope(strategy):
        adam = keras.optimizers.Adam(0.01)
        model = ByStep()
        model.build((None, 8))
        model.compile(grace_tf.wrap(adam, METHOD, min_elements=1), "mse")
    return model


def say(**told):
    print(json.dumps(told), flush=True)


def check_files(model):
    """What the files of ModelCheckpoint hold, this worker's own and worker 0's."""
    say(written=sorted(str(p.relative_to(FOLDER)) for p in pathlib.Path(FOLDER).rglob("*.h5")))
    for name in ("all.weights.h5", "best.weights.h5"):
        for whose, path in (("own", own_path(f"{FOLDER}/{name}", rank)), ("0", f"{FOLDER}/{name}")):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model.load_weights(path)
            foreign = [str(w.message) for w in said if "residuals start" in str(w.message)]
            say(file=name, whose=whose, warned=foreign, **digests(model))


def main():
    model = compiled()
    saving = keras.callbacks.ModelCheckpoint
    callbacks = [
        Tell(),
        keras.callbacks.BackupAndRestore(f"{FOLDER}/backup", save_freq=SAVE_FREQ),
        saving(f"{FOLDER}/all.weights.h5", save_weights_only=True),
        saving(f"{FOLDER}/best.weights.h5", "loss", save_best_only=True, save_weights_only=True),
        KilledAtTheEnd(),
    ]
    dummy = tf.data.Dataset.from_tensors((tf.zeros([8, 8]), tf.zeros([8, 4]))).repeat()
    say(begin=True)
    model.fit(dummy, epochs=EPOCHS, steps_per_epoch=STEPS, verbose=0, callbacks=callbacks)
    if SURROUNDINGS == "group":
        grace_tf.barrier()  # all files are written
        check_files(model)
    say(end=True, left=os.path.exists(own_path(f"{FOLDER}/backup", rank)))


main()
