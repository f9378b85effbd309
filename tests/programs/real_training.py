"""How the real models of these tests are trained, on every engine: engines, data and digests."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from this_keras import keras

import grace_tf
from grace_tf.transports.world.current_workers import compresses

ROWS = 8  # of a worker's batch
WORDS, LENGTH, CLASSES = 50, 12, 4


@dataclasses.dataclass
class Engine:
    """Where and how a model is trained: what stands in for the three lines of a script."""

    compressor: Any
    strategy: Any = None
    aggregators: list[Any] = dataclasses.field(default_factory=list)

    def scope(self):
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def adam(self, rate: float = 0.01, **keywords: float) -> Any:
        """An optimizer; wrapped unless the strategy compresses by itself."""
        plain = keras.optimizers.Adam(rate, **keywords)
        if self.strategy is not None and compresses(self.strategy):
            self.aggregators.append(self.strategy.extended._cross_device_ops.aggregator)
            return plain
        wrapped = grace_tf.wrap(plain, self.compressor)
        self.aggregators.append(grace_tf.keras.aggregator_of(wrapped))
        return wrapped

    def batches(self, x: np.ndarray, y: np.ndarray, rows: int = ROWS) -> tf.data.Dataset:
        """This process' share, in batches of `rows` for each worker in it."""
        workers = 1 if self.strategy is None else self.strategy.num_replicas_in_sync
        dataset = tf.data.Dataset.from_tensor_slices((x, y))
        return grace_tf.shard(dataset).batch(rows * workers, drop_remainder=True)


@dataclasses.dataclass
class Trained:
    """What a training ended with: `shas[phase][replica]` are digests of the weights."""

    shas: list[list[str]]
    losses: list[float]
    optimizer: Any


def fit(
    engine: Engine,
    model: Any,
    data: tf.data.Dataset,
    epochs: int = 6,
    loss: str = "loss",
    parts: Sequence[Any] = (),
) -> Trained:
    """Trains a model by its metric `loss` and digests it, or the `parts` that it is made of."""
    history = model.fit(data, epochs=epochs, verbose=0).history
    return Trained([shas(parts or [model])], history[loss], model.optimizer)


def shas(models: Sequence[Any]) -> list[str]:
    """A digest for each replica of all weights but those of BatchNorm that no optimizer moves.

    BatchNorm's moving statistics are each worker's own under strategies, and in loops of one's own.
    """
    told: list[Any] = []
    for variable in (v for model in models for v in model.weights):
        if "moving_" in getattr(variable, "path", variable.name):
            continue
        plain = getattr(variable, "_value", variable)
        for i, component in enumerate(getattr(plain, "values", (plain,))):
            told += [hashlib.sha256()] if i == len(told) else []
            told[i].update(np.ascontiguousarray(component.numpy()).tobytes())
    return [one.hexdigest()[:16] for one in told]


def sentences(count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Words, and the class that a sentence's first word belongs to."""
    words = np.random.default_rng(1).integers(0, WORDS, size=[count, LENGTH])
    return words.astype(np.int32), (words[:, 0] % CLASSES).astype(np.int32)


def pictures(count: int = 64, side: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Noise, with the quarter brightened that the class says."""
    draw = np.random.default_rng(2)
    y = draw.integers(0, CLASSES, size=[count]).astype(np.int32)
    x = draw.normal(size=[count, side, side, 3]).astype(np.float32)
    half = side // 2
    for picture, label in zip(x, y):
        row, column = half * (label // 2), half * (label % 2)
        picture[row : row + half, column : column + half] += 0.5
    return x, y


def crossentropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def mean(per_example: tf.Tensor) -> tf.Tensor:
    """A loss of a custom step: under a strategy, whose optimizers add up, this replica's part."""
    return tf.reduce_mean(per_example) / tf.distribute.get_strategy().num_replicas_in_sync
