"""Two workers with other validation data and the ordinary callbacks, by the README's lines alone.

callbacks.py FOLDER    the folder gets the files; prints a line of JSON
"""

import hashlib
import importlib.util
import json
import logging
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import grace_tf  # noqa: E402

group = grace_tf.init(timeout=60)

import models  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from this_keras import keras  # noqa: E402

FOLDER = sys.argv[1]
EPOCHS = 12
said: list = []


class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


class Own(keras.callbacks.Callback):
    """What this worker saw of its own rows, and what the callbacks after ours see."""

    def __init__(self):
        super().__init__()
        self.losses, self.seen, self.tested = [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self._loss = float(logs["loss"])
        self._moving = [v.numpy().tolist() for v in self.model.layers[1].non_trainable_variables]

    def on_test_end(self, logs=None):
        self.tested.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(self._loss)
        self.seen.append([logs["loss"], logs["val_loss"]])

    def on_train_end(self, logs=None):
        self.last = [logs["loss"], logs["val_loss"]]


class Summaries:
    """tf.summary, whose scalars need the package tensorboard."""

    def __getattr__(self, name):
        return getattr(tf.summary, name)

    def scalar(self, name, data, step=None):
        tf.summary.write(name, data, step)


def model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "tanh"),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(4),
        ]
    )


x, y = models.data(5)
train, validation = (x[: -models.ROWS], y[: -models.ROWS]), (x[-models.ROWS :], y[-models.ROWS :])
if group.rank == 1:
    # With these labels worker 1's validation loss grows while the model learns.  The loss of
    # worker 0 falls more slowly, so the mean of both losses is lowest after the first epoch.
    validation = (validation[0], -30 * validation[1])

logging.getLogger("grace_tf").addHandler(Said())
keras.utils.set_random_seed(1)
made = models.compiled(
    lambda: grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd", min_elements=1), make=model
)
own = Own()
board = keras.callbacks.TensorBoard(os.path.join(FOLDER, "board"))
if importlib.util.find_spec("tensorboard") is None:
    board._summary_module = Summaries()
    tf.compat.v2.summary.scalar = tf.summary.write  # what Keras 2 calls
stops = keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)
path = os.path.join(FOLDER, "logs", f"of{group.rank}.csv")
os.makedirs(os.path.dirname(path), exist_ok=True)
made.fit(
    *grace_tf.shard(train),
    batch_size=12,
    epochs=EPOCHS,
    validation_data=validation,
    verbose=0,
    callbacks=[
        own,
        stops,
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: float(rate) * 0.99),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1),
        keras.callbacks.ModelCheckpoint(
            os.path.join(FOLDER, "best.weights.h5"),
            "val_loss",
            save_best_only=True,
            save_weights_only=True,
        ),
        keras.callbacks.CSVLogger(os.path.join(FOLDER, "log.csv")),
        keras.callbacks.CSVLogger(path),
        board,
    ],
)
rate = made.optimizer.learning_rate
told = {
    "sha": models.sha(made),
    "losses": own.losses,
    "moving": own._moving,
    "seen": own.seen,
    "tested": own.tested,
    "last": own.last,
    "epochs": len(own.seen),
    "stopped": stops.stopped_epoch,
    "rate": float(np.array(rate)),
    "said": said,
    "history": made.history.history["val_loss"],
}
made.save_weights(os.path.join(FOLDER, f"end{group.rank}.weights.h5"))
first = pathlib.Path(FOLDER, "first.keras")
if group.rank == 0:
    made.save(first)
grace_tf.barrier()
told["first"] = [hashlib.sha256(first.read_bytes()).hexdigest()]
if group.rank == 1:
    made.save(first)
told["first"].append(hashlib.sha256(first.read_bytes()).hexdigest())
grace_tf.barrier()
made.save(os.path.join(FOLDER, "both.keras"))  # at the same time
print(json.dumps(told), flush=True)
