"""What the cells of the matrix train, and what they tell: a function a feature.

Each takes the engine and a method and returns facts, which test_cells.py compares: among workers,
among engines, and with what NumPy makes of them.  Worker w of N gets the same rows everywhere.

The methods are `none`, which the engine reduces itself; `mixed`, one model whose layers are called
by the method that compresses them, so that a training serves for all; and `plain`, unwrapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from models import KERAS_3, data, loss_scaled, replicas_of

import grace_tf
from grace_tf.keras import aggregator_of, own_path

ROWS = 12  # of a worker and step; a worker alone has those of two
STEPS, EPOCHS = 4, 2
RATE = 0.1
MIXED = {
    ".*qsgd/.*": "qsgd",
    ".*topk/.*": "topk:ratio=0.1",
    ".*powersgd/.*": "powersgd:rank=1",
}
PLAIN = ("fit", "batchnorm", "clipping", "decay")  # where Keras itself serves all strategies


def dense(name, units, activation, seed):
    kernel = keras.initializers.GlorotUniform(seed=seed)
    return keras.layers.Dense(units, activation, kernel_initializer=kernel, name=name)


def model():
    """Three layers on 8 inputs, each called by its method, with the same weights every time."""
    layers = [dense("qsgd", 16, "tanh", 1), dense("topk", 12, "tanh", 2)]
    return keras.Sequential([keras.Input((8,)), *layers, dense("powersgd", 4, None, 3)])


class Engine:
    """The workers that train together, and this process' place among them."""

    def __init__(self, strategy, rank, workers):
        self.strategy, self.rank, self.workers = strategy, rank, workers
        self.rows = ROWS * (2 if workers == 1 else 1)
        self._model = None

    def methods(self, cell):
        between = self.workers > 1 and self.strategy is None
        return ("none", "mixed", "plain") if cell in PLAIN and not between else ("none", "mixed")

    def scope(self):
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def compiled(self, optimizer, make=model, **keywords):
        with self.scope():
            self._model = made = make()
            self._before = digests(made)
            made.compile(optimizer(), keywords.pop("loss", "mse"), **keywords)
        return made

    def untouched(self):
        """Whether the last model is as it was made."""
        return {"untouched": self._model is None or digests(self._model) == self._before}

    def fit(self, made, batches, callbacks=(), epochs=EPOCHS, **keywords):
        """Trains on `batches`: of each step the rows of each worker."""
        x, y = self.share(batches)
        size = len(batches[0][0][0]) * (1 if self.strategy is None else self.workers)
        callbacks = [grace_tf.keras.Callback(), *callbacks]
        return made.fit(
            x,
            y,
            batch_size=size,
            epochs=epochs,
            callbacks=callbacks,
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
    method = MIXED if method == "mixed" else method
    return grace_tf.wrap(sgd, method, min_elements=1, seed=4)


def digest(variables, replica):
    told = hashlib.sha256()
    for rows in map(replicas_of, variables):
        told.update(rows[replica if len(rows) > 1 else 0].tobytes())
    return told.hexdigest()[:12]


def digests(made):
    """Of the trained weights, on each replica of this process."""
    count = max(len(replicas_of(v)) for v in made.trainable_variables)
    return [digest(made.trainable_variables, i) for i in range(count)]


def values(variables):
    return [replicas_of(v)[0].tolist() for v in variables]


def told(made, history=None):
    facts = {"shas": digests(made)}
    if history is not None:
        facts["logs"] = history.history
    if hasattr(made.optimizer, "_grace"):
        facts["step"] = aggregator_of(made.optimizer).state.step
    return facts


class EachStep(keras.callbacks.Callback):
    """The weights after each step."""

    def __init__(self):
        super().__init__()
        self.weights, self.shas = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.shas.append(digests(self.model)[0])
        self.weights.append([np.array(w) for w in values(self.model.trainable_variables)])


def fit(engine, method):
    made = engine.compiled(lambda: optimizer(method))
    history = engine.fit(made, engine.batches())
    return {**told(made, history), "weights": values(made.trainable_variables)}


def validation(engine, method):
    """`evaluate` and `predict` too, on the rows of two batches."""
    made = engine.compiled(lambda: optimizer(method), metrics=["mae"])
    held_out = engine.batches(2, seed=5)
    x, y = engine.share(held_out)
    size = len(x) // 2
    history = engine.fit(made, engine.batches(), validation_data=(x, y), validation_batch_size=size)
    evaluated = made.evaluate(x, y, batch_size=size, verbose=0)
    predicted = made.predict(x, batch_size=size, verbose=0)
    everything = [pair for step in held_out for pair in step]
    x, y = (np.concatenate(arrays) for arrays in zip(*everything))
    weights = [np.array(w, np.float64) for w in values(made.trainable_variables)]
    wanted = np.tanh(np.tanh(x @ weights[0] + weights[1]) @ weights[2] + weights[3])
    wanted = wanted @ weights[4] + weights[5]
    return {
        **told(made, history),
        "evaluated": [float(number) for number in evaluated],
        "predicted": predicted.tolist(),
        "computed": [np.square(wanted - y).mean(), np.abs(wanted - y).mean()],
        "wanted": wanted.tolist(),
    }


def normalised(synchronized):
    def make():
        first, second, third = model().layers
        keywords = {"synchronized": True} if synchronized else {}
        norm = keras.layers.BatchNormalization(momentum=0.5, name="norm", **keywords)
        return keras.Sequential([keras.Input((8,)), first, second, norm, third])

    return make


def batchnorm(engine, method, synchronized=False):
    made = engine.compiled(lambda: optimizer(method), normalised(synchronized))
    history = engine.fit(made, engine.batches())
    statistics = made.non_trainable_variables
    return {
        **told(made, history),
        "weights": values(made.trainable_variables),
        "statistics": [[row.tolist() for row in replicas_of(v)] for v in statistics],
        "read": [v.numpy().tolist() for v in statistics],
    }


def syncbn(engine, method):
    return batchnorm(engine, method, synchronized=True)


def lossscale(engine, method):
    """Worker 1 (alone: 0) overflows in the third of five steps."""
    scale = 2.0**15
    made = engine.compiled(lambda: loss_scaled(optimizer(method), initial_scale=scale))
    batches = engine.batches()
    batches.insert(2, [(x, y) for x, y in batches[0]])
    x, y = batches[2][-1]
    batches[2][-1] = (x, y + np.float32(3e38))
    engine.fit(made, batches, epochs=1)
    outer, inner = made.optimizer, made.optimizer.inner_optimizer
    now = outer.dynamic_scale if KERAS_3 else outer.loss_scale
    return {
        "shas": digests(made),
        "scales": [scale, float(now.numpy())],
        "step": aggregator_of(inner).state.step,
    }


def accumulation(engine, method):
    """Two steps make one; for `none` also what one step of both batches does."""
    seen = EachStep()
    made = engine.compiled(lambda: optimizer(method, gradient_accumulation_steps=2))
    before, batches = digests(made)[0], engine.batches()
    engine.fit(made, batches, [seen])
    facts = {**told(made), "before": before, "each": seen.shas}
    if method == "none":
        pairs = [
            [tuple(map(np.concatenate, zip(*two))) for two in zip(*batches[i : i + 2])]
            for i in range(0, STEPS, 2)
        ]
        other = engine.compiled(lambda: optimizer(method))
        engine.fit(other, pairs)
        facts["weights"] = values(made.trainable_variables)
        facts["at once"] = values(other.trainable_variables)
    return facts


def steps_per_execution(engine, method):
    made = engine.compiled(lambda: optimizer(method), steps_per_execution=STEPS)
    return told(made, engine.fit(made, engine.batches()))


def ema(engine, method):
    """At its end Keras' `fit` gives a model the averages."""
    seen, momentum = EachStep(), 0.75
    made = engine.compiled(lambda: optimizer(method, use_ema=True, ema_momentum=momentum))
    start = [np.array(w) for w in values(made.trainable_variables)]
    engine.fit(made, engine.batches(), [seen])
    average = seen.weights[0] if KERAS_3 else start  # Keras 3 forgets what was not trained
    for weights in seen.weights[1 if KERAS_3 else 0 :]:
        average = [momentum * a + (1 - momentum) * w for a, w in zip(average, weights)]
    ends = [np.array(w) for w in values(made.trainable_variables)]
    return {
        **told(made),
        "off": max(float(np.abs(e - a).max()) for e, a in zip(ends, average)),
        "from the last": max(float(np.abs(e - w).max()) for e, w in zip(ends, seen.weights[-1])),
        "each": seen.shas,
    }


def clipping(engine, method):
    """A whole fit, where each worker's own gradient is cut at one place; then known gradients."""
    # Keras 3 clips under a strategy what a loss divided by their number has for a gradient.
    divided = engine.workers if KERAS_3 and engine.strategy is not None else 1
    made = engine.compiled(lambda: optimizer(method, clipnorm=0.5 / divided))
    history = engine.fit(made, engine.batches())
    facts = told(made, history)
    for kind in ("clipnorm", "global_clipnorm", "clipvalue"):
        # One of two elements stays in the residual.
        known = "topk:ratio=0.5" if method == "mixed" else method
        facts[kind] = known_gradient(engine, known, kind)
    return facts


class TwoTables(keras.layers.Layer):
    """x · a + 2 x · b, whose gradients are x and 2 x."""

    def build(self, shape):
        self.a = self.add_weight(name="a", shape=(2,), initializer="zeros")
        self.b = self.add_weight(name="b", shape=(2,), initializer="zeros")

    def call(self, x):
        return tf.reduce_sum(x * self.a + 2 * x * self.b, -1, keepdims=True)


def known_gradient(engine, method, kind):
    """What a step of rate 1 leaves of the gradients (3, 4) and (6, 8), of worker 1 a tenth."""

    def sgd():
        return wrapped(keras.optimizers.SGD(1.0, **{kind: 1.0}), method)

    def make():
        return keras.Sequential([keras.Input((2,)), TwoTables()])

    made = engine.compiled(sgd, make, loss=lambda wanted, given: tf.reduce_mean(given))
    rows = [np.float32([[3.0, 4.0]]) * factor for factor in (1, 0.1, 0.1)[: engine.workers]]
    engine.fit(made, [[(row, row[:, :1]) for row in rows]], epochs=1)
    facts = {"steps": values(made.trainable_variables)}
    if method != "plain":
        arrays = aggregator_of(made.optimizer).state.arrays()
        facts["residuals"] = [
            arrays[name].tolist() for name in sorted(arrays) if "residual" in name
        ]
    return facts


def decay(engine, method):
    """The first kernel has no gradient, since x is zero, and shrinks by decay alone."""
    made = engine.compiled(lambda: optimizer(method, weight_decay=0.5))
    start = made.trainable_variables[0].numpy()
    batches = [[(np.zeros_like(x), y) for x, y in step] for step in engine.batches()]
    engine.fit(made, batches)
    wanted = start
    for _ in range(STEPS * EPOCHS):
        wanted = wanted - wanted * np.float32(0.5) * np.float32(RATE)
    ends = replicas_of(made.trainable_variables[0])[0]
    ratio = ends / start
    return {**told(made), "off": float(np.abs(ends / wanted - 1).max()), "left": float(ratio.max())}


def resume(engine, method):
    """Half of the steps, a file, and a model that is loaded from it."""
    with tempfile.TemporaryDirectory() as folder:
        made = engine.compiled(lambda: optimizer(method))
        engine.fit(made, engine.batches(), epochs=EPOCHS // 2)
        half = digests(made)
        path = own_path(os.path.join(folder, "half.keras"), engine.rank)
        made.save(path)
        with engine.scope():
            loaded = keras.models.load_model(path)
    engine.fit(loaded, engine.batches(), epochs=EPOCHS // 2)
    return {**told(loaded), "half": half}


def callbacks(engine, method):
    """The rate halves with each epoch; ModelCheckpoint is given one path by all workers."""
    with tempfile.TemporaryDirectory() as folder:
        made = engine.compiled(lambda: optimizer(method))
        path = os.path.join(folder, "end.weights.h5")
        used = [
            keras.callbacks.LearningRateScheduler(lambda epoch: RATE / 2**epoch),
            keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
        ]
        history = engine.fit(made, engine.batches(), used)
        files = sorted(str(p.relative_to(folder)) for p in pathlib.Path(folder).rglob("*.h5"))
        other = engine.compiled(lambda: optimizer(method))
        other.optimizer.build(other.trainable_variables)
        other.load_weights(own_path(path, engine.rank))
        facts = {**told(made, history), "saved": digests(other), "files": files}
    return {**facts, "rates": facts["logs"]["learning_rate" if KERAS_3 else "lr"]}


def uneven(engine, method):
    """The last batch has a third of the rows; how they are dealt out is the strategy's matter."""
    made = engine.compiled(lambda: optimizer(method))
    batches = engine.batches()
    batches[-1] = [(x[: ROWS // 3], y[: ROWS // 3]) for x, y in batches[-1]]
    return told(made, engine.fit(made, batches))


CELLS = {
    "fit": fit,
    "validation": validation,
    "batchnorm": batchnorm,
    "syncbn": syncbn,
    "lossscale": lossscale,
    "accumulation": accumulation,
    "steps_per_execution": steps_per_execution,
    "ema": ema,
    "clipping": clipping,
    "decay": decay,
    "resume": resume,
    "callbacks": callbacks,
    "uneven": uneven,
}
