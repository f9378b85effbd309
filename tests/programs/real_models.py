"""The models that people train, each by a function of its own, compressed and without any seed.

real_models.py KIND METHOD KIND METHOD …   as one of several processes; a line of JSON for each pair

`train(kind, method, strategy)` does the same in this process: alone, or under a strategy.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from real_training import (
    CLASSES,
    LENGTH,
    WORDS,
    Engine,
    Trained,
    crossentropy,
    fit,
    mean,
    pictures,
    sentences,
)
from this_keras import keras

import grace_tf

METHODS = ("qsgd", "topk:ratio=0.1", "powersgd", "signsgd")
# Tracing one of keras.applications takes most of a minute: there one run has all four, by stages.
STAGES = {
    "(conv[12]_|block[12]).*": METHODS[0],
    "(conv3_|block3).*": METHODS[1],
    "(conv4_|block[45]).*": METHODS[2],
    "(conv5_|block[67]).*": METHODS[3],
}

layers = keras.layers


# A Transformer that classifies text


class Positions(layers.Layer):
    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(WORDS, 32)
        self.places = layers.Embedding(LENGTH, 32)

    def call(self, x):
        return self.words(x) + self.places(tf.range(LENGTH))


class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads=2, key_dim=16)
        self.dense = keras.Sequential([layers.Dense(64, "relu"), layers.Dense(32)])
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.dropouts = [layers.Dropout(0.1), layers.Dropout(0.1)]

    def call(self, x, training=None):
        y = self.dropouts[0](self.attention(x, x), training=training)
        x = self.norms[0](x + y)
        y = self.dropouts[1](self.dense(x), training=training)
        return self.norms[1](x + y)


def transformer(engine: Engine) -> Trained:
    with engine.scope():
        words = layers.Input((LENGTH,), dtype="int32")
        x = Block()(Positions()(words))
        x = layers.GlobalAveragePooling1D()(x)
        x = layers.Dense(CLASSES)(layers.Dropout(0.1)(layers.Dense(40, "relu")(x)))
        model = keras.Model(words, x)
        model.compile(engine.adam(), crossentropy(), metrics=["accuracy"])
    return fit(engine, model, engine.batches(*sentences()), epochs=15)


def lstm(engine: Engine) -> Trained:
    with engine.scope():  # no Input: the variables are made inside the first traced step
        model = keras.Sequential(
            [layers.Embedding(WORDS, 32, mask_zero=True), layers.LSTM(32), layers.Dense(CLASSES)]
        )
        model.compile(engine.adam(), crossentropy(), metrics=["accuracy"])
    return fit(engine, model, engine.batches(*sentences()))


# A GAN: two lazily built networks, two optimizers, a train_step of its own


class Adversaries(keras.Model):
    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def compile(self, generator_optimizer, discriminator_optimizer):
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer

    def call(self, pictures):
        # Keras 3 builds a model by a call under a strategy; the generator stays without variables.
        return self.discriminator(pictures)

    def judged(self, pictures, real: bool):
        logits = self.discriminator(pictures, training=True)
        target = tf.fill(tf.shape(logits), float(real))
        return mean(tf.nn.sigmoid_cross_entropy_with_logits(target, logits))

    def train_step(self, data):
        pictures, _ = data
        noise = tf.random.normal([tf.shape(pictures)[0], 16])
        with tf.GradientTape() as tape:
            made = self.generator(noise, training=True)
            loss = self.judged(pictures, True) + self.judged(made, False)
        weights = self.discriminator.trainable_variables
        grads = tape.gradient(loss, weights)
        self.discriminator_optimizer.apply_gradients(zip(grads, weights))
        with tf.GradientTape() as tape:
            fooled = self.judged(self.generator(noise, training=True), True)
        weights = self.generator.trainable_variables
        grads = tape.gradient(fooled, weights)
        self.generator_optimizer.apply_gradients(zip(grads, weights))
        return {"told_apart": loss, "fooled": fooled}


def gan(engine: Engine) -> Trained:
    with engine.scope():
        generator = keras.Sequential(
            [layers.Dense(64, "relu"), layers.Dense(8 * 8 * 3), layers.Reshape((8, 8, 3))]
        )
        discriminator = keras.Sequential(
            [
                layers.Conv2D(16, 3, activation="relu"),
                layers.Flatten(),
                layers.Dense(32),
                layers.Dense(1),
            ]
        )
        model = Adversaries(generator, discriminator)
        model.compile(engine.adam(1e-3), engine.adam(1e-3))
    data, parts = engine.batches(*pictures()), [generator, discriminator]
    return fit(engine, model, data, epochs=2, loss="told_apart", parts=parts)


# A subclassed model with a train_step of its own


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(40, "relu")
        self.out = layers.Dense(CLASSES)

    def call(self, x):
        return self.out(self.hidden(tf.reshape(x, [-1, 8 * 8 * 3])))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, self(x, training=True))
            loss = mean(losses)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        return {"crossentropy": loss}


def own_step(engine: Engine) -> Trained:
    with engine.scope():
        model = Own()
        model.compile(engine.adam())
    return fit(engine, model, engine.batches(*pictures()), loss="crossentropy")


# Transfer learning


def transfer(engine: Engine) -> Trained:
    """The head is trained on a frozen base; then the base too, under a new optimizer."""
    data = engine.batches(*pictures())
    with engine.scope():
        pixels = layers.Input((8, 8, 3))
        x = layers.BatchNormalization()(layers.Conv2D(16, 3)(pixels))
        x = layers.Conv2D(32, 3, strides=2)(layers.Activation("relu")(x))
        base = keras.Model(pixels, layers.Flatten()(x))
        base.trainable = False
        seen = layers.Input((8, 8, 3))
        x = layers.Dense(32, "relu")(base(seen, training=False))
        model = keras.Model(seen, layers.Dense(CLASSES)(x))
        model.compile(engine.adam(), crossentropy())
    frozen = [v.numpy() for v in base.weights]
    head = fit(engine, model, data, epochs=3)
    if engine.strategy is not None or grace_tf.rank() == 0:  # the others took worker 0's
        assert all(map(np.array_equal, frozen, [v.numpy() for v in base.weights]))
    with engine.scope():
        base.trainable = True
        model.compile(engine.adam(1e-3), crossentropy())
    whole = fit(engine, model, data, epochs=3)
    return Trained(head.shas + whole.shas, head.losses + whole.losses, model.optimizer)


# keras.applications


def application(make: Callable[..., Any]) -> Callable[[Engine], Trained]:
    def run(engine: Engine) -> Trained:
        with engine.scope():
            model = make(weights=None, input_shape=(32, 32, 3), classes=CLASSES)
            model.compile(engine.adam(1e-3), "sparse_categorical_crossentropy")
        x, y = pictures(8, side=32)
        return fit(engine, model, engine.batches(x, y, rows=2), epochs=1)

    return run


# Settings of compile()


def small(engine: Engine, adam: dict[str, float] | None = None, **keywords: Any) -> Trained:
    with engine.scope():
        model = keras.Sequential(
            [
                layers.Conv2D(16, 3),
                layers.BatchNormalization(),
                layers.Flatten(),
                layers.Dense(CLASSES),
                layers.Activation("linear", dtype="float32"),
            ]
        )
        model.compile(engine.adam(**adam or {}), crossentropy(), **keywords)
    trained = fit(engine, model, engine.batches(*pictures()))
    kernel = model.layers[0].trainable_variables[0]
    assert tf.as_dtype(kernel.dtype).name == model.layers[0].variable_dtype
    return trained


def under_policy(policy: str, **keywords: Any) -> Callable[[Engine], Trained]:
    """The small model under a global policy: mixed, or with variables of fewer bits too."""

    def run(engine: Engine) -> Trained:
        keras.mixed_precision.set_global_policy(policy)
        try:
            trained = small(engine, **keywords)
        finally:
            keras.mixed_precision.set_global_policy("float32")
        scaled = "LossScale" in type(trained.optimizer).__name__
        assert scaled == (policy == "mixed_float16")
        return trained

    return run


KINDS: dict[str, Callable[[Engine], Trained]] = {
    "transformer": transformer,
    "lstm": lstm,
    "gan": gan,
    "own_step": own_step,
    "transfer": transfer,
    "float16": under_policy("mixed_float16"),
    "bfloat16": under_policy("mixed_bfloat16"),
    # In float16 Adam's own epsilon is 0, as are most squares of gradients; in bfloat16 0.999 is 1.
    "float16_variables": under_policy("float16", adam={"epsilon": 1e-3}),
    "bfloat16_variables": under_policy("bfloat16", adam={"beta_2": 0.97}),
    "steps_per_execution": lambda engine: small(engine, steps_per_execution=2),
    "jit_compile": lambda engine: small(engine, jit_compile=True),
    "resnet50": application(keras.applications.ResNet50),
    "efficientnet": application(keras.applications.EfficientNetB0),
}


def compressor(method: str) -> Any:
    """What `wrap` takes: a method, or `stages` for all of them by parts of the model."""
    return STAGES if method == "stages" else method


def train(kind: str, method: str, strategy: Any = None) -> dict[str, Any]:
    """Trains a model of this kind and says what it ended with."""
    begun = time.monotonic()
    engine = Engine(compressor(method), strategy)
    trained = KINDS[kind](engine)
    keras.backend.clear_session()
    return {
        "kind": kind,
        "method": method,
        "shas": trained.shas,
        "steps": [aggregator.state.step for aggregator in engine.aggregators],
        "losses": [float(loss) for loss in trained.losses],
        "seconds": round(time.monotonic() - begun, 1),
    }


if __name__ == "__main__":
    worker = grace_tf.init().rank
    for kind, method in zip(sys.argv[1::2], sys.argv[2::2]):
        print(json.dumps({"worker": worker, **train(kind, method)}), flush=True)
