"""An engine of the matrix: which workers train together, and what each of them trains.

Worker w of N gets the same rows under every engine.  The methods are `none`, which a strategy
reduces itself; `mixed`, one model whose layers are called by the method that compresses them, so
that one training serves for all; and `plain`, not wrapped.
"""

from __future__ import annotations

import contextlib

import numpy as np
from digests import digest
from models import data, on_replica, replicas_of
from this_keras import keras

import grace_tf
from grace_tf.keras import aggregator_of

ROWS = 12  # of a worker and step; a worker alone has those of two
STEPS, EPOCHS = 4, 2
RATE = 0.1
MIXED = {
    ".*qsgd/.*": "qsgd",
    ".*topk/.*": "topk:ratio=0.1",
    ".*powersgd/.*": "powersgd:rank=1",
}
# The cells in which a strategy serves a plain optimizer too, in every version.
PLAIN = ("fit", "batchnorm", "syncbn", "clipping", "decay")


def dense(name, units, activation, seed):
    kernel = keras.initializers.GlorotUniform(seed=seed)
    return keras.layers.Dense(units, activation, kernel_initializer=kernel, name=name)


def model():
    """Three layers on 8 inputs, each called by its method, with the same weights every time."""
    layers = [dense("qsgd", 16, "tanh", 1), dense("topk", 12, "tanh", 2)]
    return keras.Sequential([keras.Input((8,)), *layers, dense("powersgd", 4, None, 3)])


class Engine:
    """Which workers train together, and which of them this process is.

    `folder` is one for all of them.
    """

    def __init__(self, strategy, rank, workers, folder=None):
        self.strategy, self.rank, self.workers, self.folder = strategy, rank, workers, folder
        self.rows = ROWS * (2 if workers == 1 else 1)
        self._model = None

    def methods(self, cell):
        reduces = self.workers == 1 or (self.workers == 2 and self.strategy is not None)
        return ("none", "mixed", "plain") if cell in PLAIN and reduces else ("none", "mixed")

    def scope(self):
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def compiled(self, optimizer, make=model, built=True, **keywords):
        """The model that `make()` returns, compiled with the optimizer that `optimizer()` returns.

        With `built=True` the optimizer's variables exist before `fit`, so TensorFlow traces the
        step once instead of twice.  Cells that test how `fit` creates these variables pass
        `built=False`.
        """
        with self.scope():
            self._model = made = make()
            self._before = digests(made)
            made.compile(optimizer(), keywords.pop("loss", "mse"), **keywords)
            if built:
                made.optimizer.build(made.trainable_variables)
        return made

    def untouched(self):
        """Whether the last model is as it was made."""
        return {"untouched": self._model is None or digests(self._model) == self._before}

    def fit(self, made, batches, callbacks=(), epochs=EPOCHS, **keywords):
        """Trains on `batches`: of each step the rows of each worker."""
        x, y = self.share(batches)
        size = len(batches[0][0][0]) * (1 if self.strategy is None else self.workers)
        return made.fit(
            x,
            y,
            batch_size=size,
            epochs=epochs,
            callbacks=list(callbacks),
            shuffle=False,
            verbose=0,
            **keywords,
        )

    def share(self, batches):
        """(x, y): everything under a strategy, which deals it out, else this worker's rows."""
        mine = slice(None) if self.strategy is not None else slice(self.rank, self.rank + 1)
        pairs = [pair for step in batches for pair in step[mine]]
        return tuple(np.concatenate(arrays) for arrays in zip(*pairs))

    def batches(self, steps=STEPS, seed=0):
        """Of each step the (x, y) of each worker."""
        x, y = data(steps, self.workers * self.rows, seed)
        shape = [steps, self.workers, self.rows, -1]
        return [list(zip(*of)) for of in zip(x.reshape(shape), y.reshape(shape))]


def optimizer(method, **keywords):
    """SGD with momentum; unwrapped for `plain`."""
    sgd = keras.optimizers.SGD(RATE, momentum=0.9, **keywords)
    return wrapped(sgd, method)


def wrapped(sgd, method):
    if method == "plain":
        return sgd
    method = MIXED if method == "mixed" else method  # or a mapping of a cell's own
    return grace_tf.wrap(sgd, method, min_elements=1, seed=4)


def digests(made):
    """Of the trained weights, on each replica of this process."""
    count = max(len(replicas_of(v)) for v in made.trainable_variables)
    return [digest(on_replica(made.trainable_variables, i)) for i in range(count)]


def values(variables):
    return [replicas_of(v)[0].tolist() for v in variables]


def told(made, history=None):
    facts = {"shas": digests(made)}
    if history is not None:
        facts["logs"] = history.history
    if hasattr(made.optimizer, "_grace"):
        facts["step"] = aggregator_of(made.optimizer).state.step
    return facts
