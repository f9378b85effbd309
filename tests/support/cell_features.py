"""What the cells of the matrix train, and what they print: a function a feature.

Each takes the engine and a method and returns facts, which cell_checks.py compares: among workers,
among engines, and with what NumPy makes of them.
"""

from __future__ import annotations

import os
import pathlib

import numpy as np
import tensorflow as tf
from cell_engine import (
    EPOCHS,
    MIXED,
    RATE,
    ROWS,
    STEPS,
    digests,
    model,
    optimizer,
    told,
    values,
    wrapped,
)
from models import KERAS_3, loss_scaled, replicas_of, scale_of
from tensorflow.python.ops import control_flow_util
from this_keras import keras

from grace_tf.keras import aggregator_of, own_path


class EachStep(keras.callbacks.Callback):
    """The weights after each step."""

    def __init__(self):
        super().__init__()
        self.weights, self.shas = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.shas.append(digests(self.model)[0])
        self.weights.append([np.array(w) for w in values(self.model.trainable_variables)])


def fit(engine, method):
    made = engine.compiled(lambda: optimizer(method), built=False)
    history = engine.fit(made, engine.batches())
    facts = {**told(made, history), "weights": values(made.trainable_variables)}
    return {**facts, "known": known_bits(engine, method)}


class Product(keras.layers.Layer):
    """The sum of x · w, whose gradient is x; lists whether XLA compiles it."""

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=shape[1:], initializer="zeros")
        self.compiled = []

    def call(self, x):
        graph = tf.compat.v1.get_default_graph()
        self.compiled.append(control_flow_util.GraphOrParentsInXlaContext(graph))
        return tf.reduce_sum(x * self.w, list(range(1, len(x.shape))))[:, None]


# Methods without matrix products, which processors round differently.  These methods give the same
# bits on every machine.
EXACT = {".*qsgd/.*": "qsgd", ".*topk/.*": "topk:ratio=0.1", ".*eden/.*": "eden"}


def known_bits(engine, method):
    """The digests of the weights after a training with exact gradients."""
    return digests(exactly_trained(engine, method))


def xla(engine, method):
    """The training of `known_bits` again; here XLA compiles its forward and backward passes."""
    if not KERAS_3 and engine.strategy is not None:
        # The exchange of `none` is Keras' own there, and Keras 2 has XLA compile it, which only
        # XLA for GPUs can.
        method = "mixed"
    made = exactly_trained(engine, method, jit_compile=True)
    compiled = [layer.compiled[-1] for layer in made.layers if isinstance(layer, Product)]
    return {**told(made), "compiled": compiled}


def exactly_trained(engine, method, **keywords):
    def sgd():
        return wrapped(
            keras.optimizers.SGD(0.5, momentum=0.5), EXACT if method == "mixed" else method
        )

    names = [pattern[2:-3] for pattern in EXACT]
    return trained_on_known_gradients(engine, sgd, names, **keywords)


def trained_on_known_gradients(engine, sgd, names, **keywords):
    """A trained model that has one variable for each name; its gradients are exactly its inputs.

    Half of a gradient is exact too, and so is its product with a rate that is a power of two.
    """

    def make():
        x = keras.Input((6, 4))
        return keras.Model(x, keras.layers.Add()([Product(name=name)(x) for name in names]))

    made = engine.compiled(sgd, make, loss=lambda wanted, given: given[:, 0], **keywords)
    draws = np.random.default_rng(7).normal(size=[STEPS, engine.workers, 1, 6, 4])
    batches = [[(x, x[:, 0, :1]) for x in step] for step in draws.astype(np.float32)]
    engine.fit(made, batches, epochs=1)
    return made


def validation(engine, method):
    """`evaluate` and `predict` too, on the rows of two batches."""
    made = engine.compiled(lambda: optimizer(method), metrics=["mae"])
    held_out = engine.batches(2, seed=5)
    x, y = engine.share(held_out)
    size = len(x) // 2
    history = engine.fit(made, engine.batches(), validation_data=(x, y), validation_batch_size=size)
    evaluated = made.evaluate(x, y, batch_size=size, verbose=0)
    predicted = made.predict(x, batch_size=size, verbose=0)
    a, b, c, d, e, f = (np.array(w, np.float64) for w in values(made.trainable_variables))
    wanted = np.tanh(np.tanh(x @ a + b) @ c + d) @ e + f
    return {
        **told(made, history),
        "evaluated": evaluated,
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
    made = engine.compiled(lambda: loss_scaled(optimizer(method), initial_scale=scale), built=False)
    batches = engine.batches()
    batches.insert(2, [(x, y) for x, y in batches[0]])
    x, y = batches[2][-1]
    batches[2][-1] = (x, y + np.float32(3e38))
    engine.fit(made, batches, epochs=1)
    outer, inner = made.optimizer, made.optimizer.inner_optimizer
    return {
        "shas": digests(made),
        "scales": [scale, scale_of(outer)],
        "step": aggregator_of(inner).state.step,
    }


def overflow(engine, method):
    """As float16 a gradient of worker 1 (alone: 0) overflows in the third step, and no other does.

    `without`: how the training ends that has no such step.
    """

    def train(batches):
        made = engine.compiled(lambda: loss_scaled(inner(), initial_scale=scale), built=False)
        engine.fit(made, batches, epochs=1)
        return made

    def inner():
        halves = {**MIXED, ".*qsgd/.*": "fp16"} if method == "mixed" else method
        sgd = keras.optimizers.SGD(RATE, momentum=0.9, weight_decay=0.1)
        return wrapped(sgd, halves)

    scale = 2.0**15
    batches = engine.batches()
    without = train(batches)
    if method == "mixed":  # `none` sends what fits
        batches.insert(2, [(x, y) for x, y in batches[0]])
        x, y = batches[2][-1]
        batches[2][-1] = (x, y + np.float32(1e8))
    made = train(batches)
    outer = made.optimizer
    return {
        "shas": digests(made),
        "without": digests(without),
        "scales": [scale, scale_of(outer)],
        "iterations": int(outer.iterations.numpy()),
        "step": aggregator_of(outer).state.step,
    }


def accumulation(engine, method):
    """Two steps make one; for `none` also what one step of both batches does, else known ones."""
    seen = EachStep()
    made = engine.compiled(lambda: optimizer(method, gradient_accumulation_steps=2), built=False)
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
    else:
        facts["known"] = known_micro_batches(engine)
    return facts


def known_micro_batches(engine):
    """A step of `variance` over two micro-batches with the gradients (2, 2, 1) and (2, -1, 3).

    Those of worker w are multiplied by w + 1.
    """

    def sgd():
        plain = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        return wrapped(plain, "variance:alpha=1.5,capacity=1.0")

    def make():
        return keras.Sequential([keras.Input((3,)), Product()])

    made = engine.compiled(sgd, make, loss=lambda wanted, given: given[:, 0])
    batches = []
    for gradient in ([2, 2, 1], [2, -1, 3]):
        rows = [np.float32([gradient]) * (w + 1) for w in range(engine.workers)]
        batches.append([(row, row[:, :1]) for row in rows])
    engine.fit(made, batches, epochs=1)
    arrays = aggregator_of(made.optimizer).state.arrays()
    rows = {
        leaf: arrays[name].tolist()
        for name in arrays
        for leaf in "rvs"
        if name.endswith(f"/{leaf}")
    }
    return {**rows, "step": values(made.trainable_variables)[0]}


def steps_per_execution(engine, method):
    """An epoch of four steps in one execution; for `none` in two, of which the last has one."""
    count = STEPS - 1 if method == "none" else STEPS
    made = engine.compiled(lambda: optimizer(method), steps_per_execution=count)
    return told(made, engine.fit(made, engine.batches()))


def ema(engine, method):
    """At its end Keras' `fit` gives a model the averages."""
    seen, momentum = EachStep(), 0.75
    made = engine.compiled(
        lambda: optimizer(method, use_ema=True, ema_momentum=momentum), built=False
    )
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
    if method != "plain":
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

    made = engine.compiled(sgd, make, loss=lambda wanted, given: given[:, 0])
    rows = [np.float32([[3.0, 4.0]]) * factor for factor in (1, 0.1, 0.1)[: engine.workers]]
    engine.fit(made, [[(row, row[:, :1]) for row in rows]], epochs=1)
    arrays = aggregator_of(made.optimizer).state.arrays()
    residuals = [arrays[name].tolist() for name in sorted(arrays) if "residual" in name]
    return {"steps": values(made.trainable_variables), "residuals": residuals}


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
    made = engine.compiled(lambda: optimizer(method), built=False)
    engine.fit(made, engine.batches(), epochs=EPOCHS // 2)
    half = digests(made)
    path = own_path(os.path.join(engine.folder, f"{method}.keras"), engine.rank)
    made.save(path)
    with engine.scope():
        loaded = keras.models.load_model(path)
    engine.fit(loaded, engine.batches(), epochs=EPOCHS // 2)
    return {**told(loaded), "half": half}


def callbacks(engine, method):
    """Tests two callbacks: a LearningRateScheduler that halves the rate in each epoch, and a
    ModelCheckpoint to which all workers give the same path."""
    made = engine.compiled(lambda: optimizer(method))
    path = pathlib.Path(engine.folder) / f"of_{method}" / "end.weights.h5"
    path.parent.mkdir(exist_ok=True)
    used = [
        keras.callbacks.LearningRateScheduler(lambda epoch: RATE / 2**epoch),
        keras.callbacks.ModelCheckpoint(str(path), save_weights_only=True),
    ]
    history = engine.fit(made, engine.batches(), used)
    other = engine.compiled(lambda: optimizer(method))
    other.load_weights(own_path(str(path), engine.rank))
    return {
        **told(made, history),
        "saved": digests(other),
        "files": sorted(str(p.relative_to(path.parent)) for p in path.parent.rglob("*.h5")),
        "rates": history.history["learning_rate" if KERAS_3 else "lr"],
    }


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
    "overflow": overflow,
    "accumulation": accumulation,
    "xla": xla,
    "steps_per_execution": steps_per_execution,
    "ema": ema,
    "clipping": clipping,
    "decay": decay,
    "resume": resume,
    "callbacks": callbacks,
    "uneven": uneven,
}
