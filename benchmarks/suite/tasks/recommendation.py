"""Recommendation: NeuMF on MovieLens 100K, and an embedding of a million words.

NeuMF (He et al. 2017, arXiv:1708.05031): the latest film of each user is the test.  HR@10 is the
share of users for whom it is among the ten best of itself and 99 films that the user has not rated.
The film before it is for choosing the learning rate.  All others are trained on, each beside four
films that the user has not rated.

In the other task, word i of a million has a probability in proportion to 1 / i (Zipf's law).
Each word has a random score for each of ten classes, and a document's class is that of the largest
sum.  The model adds up the words' rows of a table of 1,000,000 × 64, whose gradient is sparse.
"""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np

from benchmarks.suite.tasks import sources
from benchmarks.suite.tasks.outline import Outline

FACTORS, NEGATIVES, AMONG, BEST = 64, 4, 100, 10
WORDS, COLUMNS, LENGTH, CLASSES, TOLD_BY = 1_000_000, 64, 20, 10, 4000


class _Films:
    """NeuMF and the ratings."""

    data = "MovieLens 100K of recbole"

    def __init__(self, outline: Outline, seed: int) -> None:
        self._outline, self._seed = outline, seed
        table = sources.ratings(sources.ratings_file())
        self._users, self._films = (int(table[:, c].max()) + 1 for c in (0, 1))
        self._seen = np.zeros((self._users, self._films), bool)
        self._seen[table[:, 0], table[:, 1]] = True
        # By user, and of each user by time; films of one moment by their number.
        table = table[np.lexsort((table[:, 1], table[:, 2], table[:, 0]))]
        ends = np.searchsorted(table[:, 0], np.arange(self._users), side="right")
        at = {"test": ends - 1, "validation": ends - 2}
        self._parts = {name: self._candidates(table[rows, :2], name) for name, rows in at.items()}
        self._train = np.delete(table[:, :2], np.concatenate([*at.values()]), axis=0)

    def _candidates(self, latest: np.ndarray, part: str) -> np.ndarray:
        """Pairs [user, 100, 2]: the right film first, then films that the user has not rated."""
        draw = np.random.default_rng([99, part == "test"])  # the same for all runs
        films = np.empty((len(latest), AMONG), np.int64)
        for row, (user, film) in zip(films, latest):
            row[0] = film
            row[1:] = draw.choice(np.flatnonzero(~self._seen[user]), AMONG - 1, replace=False)
        users = np.repeat(latest[:, :1], AMONG, axis=1)
        return np.stack([users, films], -1).astype(np.int32)

    def build(self) -> keras.Model:
        """The product of two vectors of 64 factors beside three dense layers on two others."""
        layers = keras.layers
        pairs = keras.Input((2,), dtype="int32")
        user, film = pairs[:, 0], pairs[:, 1]
        product = layers.Multiply()(
            [
                layers.Embedding(self._users, FACTORS)(user),
                layers.Embedding(self._films, FACTORS)(film),
            ]
        )
        x = layers.Concatenate()(
            [
                layers.Embedding(self._users, FACTORS)(user),
                layers.Embedding(self._films, FACTORS)(film),
            ]
        )
        for width in (128, 64, 32):
            x = layers.Dense(width, activation="relu")(x)
        return keras.Model(pairs, layers.Dense(1)(layers.Concatenate()([product, x])))

    def losses(self) -> keras.losses.Loss:
        return keras.losses.BinaryCrossentropy(from_logits=True)

    def batches(self, rank: int, workers: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """This worker's share of pairs that all draw alike, a fifth of them rated."""
        draw = np.random.default_rng([self._seed, 1])
        while True:
            pairs = self._train[draw.integers(0, len(self._train), self._outline.batch)].copy()
            other = np.arange(len(pairs)) % (1 + NEGATIVES) != 0
            films = draw.integers(0, self._films, len(pairs))
            for _ in range(20):  # draws anew what the user has rated; what is left is hardly any
                again = self._seen[pairs[:, 0], films]
                films[again] = draw.integers(0, self._films, again.sum())
            pairs[other, 1] = films[other]
            own = slice(rank, None, workers)
            yield pairs[own].astype(np.int32), (~other)[own, None].astype(np.float32)

    def metric(self, model: keras.Model, part: str) -> float:
        """HR@10: the share of users whose own film is among the ten best.  Equals count against."""
        pairs = self._parts[part]
        flat = pairs.reshape(-1, 2)
        answers = [np.asarray(model(x, training=False)) for x in np.array_split(flat, 8)]
        scores = np.concatenate(answers).reshape(pairs.shape[:2])
        return float(np.mean((scores[:, 1:] >= scores[:, :1]).sum(1) < BEST))


class _Documents:
    """A sum of rows of a large table."""

    data = "drawn"

    def __init__(self, outline: Outline, seed: int) -> None:
        self._outline, self._seed = outline, seed
        self._scores = np.random.default_rng(99).standard_normal((WORDS, CLASSES), np.float32)
        self._sums = np.cumsum(1 / np.arange(1, WORDS + 1))
        self._parts = {
            name: self._documents(np.random.default_rng([seed, number]), TOLD_BY)
            for number, name in ((2, "validation"), (3, "test"))
        }

    def _documents(self, draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(words [count, 20], classes [count]), int32."""
        drawn = draw.random((count, LENGTH)) * self._sums[-1]
        words = np.searchsorted(self._sums, drawn, side="right").clip(max=WORDS - 1)
        return words.astype(np.int32), self._scores[words].sum(1).argmax(1).astype(np.int32)

    def build(self) -> keras.Model:
        layers = keras.layers
        words = keras.Input((LENGTH,), dtype="int32")
        rows = layers.Embedding(WORDS, COLUMNS)(words)
        mean = layers.GlobalAveragePooling1D()(rows)
        return keras.Model(words, layers.Dense(CLASSES)(mean))

    def losses(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def batches(self, rank: int, workers: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """This worker's share of documents that all draw alike; none is seen twice."""
        draw = np.random.default_rng([self._seed, 1])
        while True:
            words, classes = self._documents(draw, self._outline.batch)
            yield words[rank::workers], classes[rank::workers]

    def metric(self, model: keras.Model, part: str) -> float:
        """The share of right classes, in percent."""
        words, classes = self._parts[part]
        found = np.argmax(np.asarray(model(words, training=False)), -1)
        return 100 * float(np.mean(found == classes))


def Task(outline: Outline, seed: int) -> _Films | _Documents:
    return (_Films if outline.name == "neumf" else _Documents)(outline, seed)
