"""Every method trains the same model under one budget of steps: accuracy, bytes, effect of memory.

    python benchmarks/training.py --out benchmarks/results/training.jsonl

Four workers in one process train a small CNN on scikit-learn's handwritten digits.  Each method
runs with the memory of its recipe and, where that keeps something, without.  Learning rate and
momentum of each are those that do best on validation images, or those that `--at` names; what
counts is the accuracy on test images that nothing was chosen by, over three seeds, which draw
images, weights and batches.  Every run is one line of the file.  Runs whose line is there are not
repeated: a stopped comparison goes on where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from grace_tf.cli.bench.machine import machine
from grace_tf.cli.tables import print_table, progress
from grace_tf.core import registry
from grace_tf.core.specs import spec_of
from grace_tf.line.settings import settings
from grace_tf.testing import Workers

WORKERS, BATCH = 4, 32  # images per worker and step
MIN_ELEMENTS = 256  # all but the small biases and the output layer's travel compressed
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
MOMENTA = (0.0, 0.9)
TUNED_WITH = 100  # the seed of the runs that choose; no test run has it

# Sparse methods keep more than by default: in so few steps 1 % would not touch every weight.
SPARSE = ("adaq", "dgc", "gtopk", "qsparse", "stc", "topk")
SPECS = {
    "chunktopk": "chunktopk:ratio=0.05,chunk=64",
    "countsketch": "countsketch:ratio=0.02,rows=3",
    "randomk": "randomk:ratio=0.1",
    **{name: f"{name}:ratio=0.05" for name in SPARSE},
}


def images(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Training, validation and test images with their labels; each seed draws its own."""
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16.0).astype(np.float32).reshape(-1, 8, 8, 1), y.astype(np.int32)
    x, x_test, y, y_test = train_test_split(x, y, test_size=360, random_state=seed, stratify=y)
    x, x_own, y, y_own = train_test_split(x, y, test_size=360, random_state=seed, stratify=y)
    return {"train": (x, y), "validation": (x_own, y_own), "test": (x_test, y_test)}


def build() -> keras.Model:
    """Two convolutions and two dense layers, 85 thousand weights."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


class Training:
    """Trains with one method and memory; one graph serves all its runs."""

    def __init__(self, method: str, memory: str) -> None:
        self.model = build()
        self.variables = self.model.trainable_variables
        self.velocities = [tf.Variable(tf.zeros(v.shape)) for v in self.variables]
        paths = [v.path if hasattr(v, "path") else v.name for v in self.variables]
        self.workers = Workers(
            WORKERS, method, memory=memory, paths=paths, min_elements=MIN_ELEMENTS
        )
        self.first = None  # the state before the first step
        self._step = tf.function(self.step, autograph=False)

    def step(self, x: tf.Tensor, y: tf.Tensor, rate: tf.Tensor, momentum: tf.Tensor) -> None:
        """One step of all workers: x and y have a row for each."""
        variables = [getattr(v, "value", v) for v in self.variables]
        grads = []
        for worker in range(WORKERS):
            with tf.GradientTape() as tape:
                outputs = self.model(x[worker], training=True)
                loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y[worker], outputs)
                loss = tf.reduce_mean(loss)
            grads.append(tape.gradient(loss, variables))
        (means, *_) = self.workers.step(grads)
        for variable, velocity, mean in zip(self.variables, self.velocities, means):
            velocity.assign(momentum * velocity - rate * mean)
            variable.assign_add(velocity)

    def start(self, seed: int) -> None:
        """The same first weights for every method, and the state before the first step."""
        draw = np.random.default_rng(seed)
        for variable, velocity in zip(self.variables, self.velocities):
            fan_in = int(np.prod(variable.shape[:-1]))
            scale = np.sqrt(2 / fan_in) if len(variable.shape) > 1 else 0.0
            variable.assign((scale * draw.standard_normal(variable.shape)).astype(np.float32))
            velocity.assign(tf.zeros_like(velocity))
        if self.first is None:
            self.workers.prepare([tf.zeros(v.shape) for v in self.variables])
            self.first = self.workers.state.arrays()
        self.workers.state.restore(self.first)

    def run(self, rate: float, momentum: float, seed: int, steps: int) -> dict[str, float]:
        """The accuracies of one run; the learning rate falls by a cosine."""
        self.start(seed)
        parts = images(seed)
        x, y = parts.pop("train")
        draw = np.random.default_rng(seed)
        for number in range(steps):
            chosen = draw.choice(len(x), [WORKERS, BATCH], replace=False)
            now = rate * 0.5 * (1 + np.cos(np.pi * number / steps))
            self._step(x[chosen], y[chosen], tf.constant(now, tf.float32), tf.constant(momentum))
        return {name: self.accuracy(*part) for name, part in parts.items()}

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean(np.argmax(self.model(x, training=False), -1) == y))


class Results:
    """The lines of the file, and which runs they are of."""

    def __init__(self, path: str, steps: int) -> None:
        self._path, self._steps = Path(path), steps
        self.runs: dict[Any, dict[str, Any]] = {}
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            record = json.loads(line)
            if record["kind"] == "run" and record["steps"] == steps:
                self.runs[self._key(**record)] = record
        if not self._path.exists():
            self._append(machine(WORKERS, 1, "handwritten digits, CNN of 85 thousand weights"))

    def _key(self, method, memory, rate, momentum, seed, **rest):
        return method, memory, rate, momentum, seed

    def _append(self, record: dict[str, Any]) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def of(self, training: Training, method, memory, rate, momentum, seed) -> dict[str, Any]:
        """The record of a run: read from the file, or made by running it where it is not there."""
        key = (method, memory, rate, momentum, seed)
        if key not in self.runs:
            accuracies = training.run(rate, momentum, seed, self._steps)
            record = dict(zip(("method", "memory", "rate", "momentum", "seed"), key))
            record |= {"kind": "run", "steps": self._steps, **accuracies}
            record["bytes_per_step"] = training.workers.bytes_per_step
            self.runs[key] = record
            self._append(record)
        return self.runs[key]


def pairs(methods: list[str]) -> list[tuple[str, str]]:
    """(method, memory): each with the memory of its recipe, and without one."""
    found = []
    for method in methods:
        own = spec_of(settings(method).routes[0][2])
        found += [(method, memory) for memory in dict.fromkeys((own, "none"))]
    return found


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each method, memory, and rate and momentum."""
    results = Results(options.out, options.steps)
    tuned = [] if options.at else list(itertools.product(RATES, MOMENTA))
    wanted, count = pairs(options.methods), len(options.at or [0])
    rows = []
    with progress("training", len(wanted) * (len(tuned) + count * len(options.seeds))) as shown:
        for method, memory in wanted:
            training, chosen, best = Training(method, memory), options.at, -1.0
            for rate, momentum in tuned:
                seen = results.of(training, method, memory, rate, momentum, TUNED_WITH)
                if seen["validation"] > best:
                    chosen, best = [(rate, momentum)], seen["validation"]
                shown.advance(f"{method} with {memory}: choosing")
            for at in chosen:
                runs = []
                for seed in options.seeds:
                    runs.append(results.of(training, method, memory, *at, seed))
                    shown.advance(f"{method} with {memory}: {100 * runs[-1]['test']:.1f} %")
                rows.append(row(method, memory, at, runs))
    return rows


def row(method: str, memory: str, at: tuple[float, float], runs: list[dict]) -> dict[str, Any]:
    """What the table says of one method with one memory."""
    accuracies = [100 * run["test"] for run in runs]
    return {
        "method": method,
        "memory": memory,
        "accuracy": statistics.mean(accuracies),
        "spread": max(accuracies) - min(accuracies),
        "bytes": runs[0]["bytes_per_step"],
        "rate": at[0],
        "momentum": at[1],
    }


def report(rows: list[dict[str, Any]], steps: int) -> None:
    columns = ["method", "memory", "test accuracy", "spread", "bytes a step", "rate", "momentum"]
    cells = [
        [
            row["method"],
            row["memory"],
            f"{row['accuracy']:.2f} %",
            f"{row['spread']:.2f}",
            f"{row['bytes']:,}",
            f"{row['rate']:g}",
            f"{row['momentum']:g}",
        ]
        for row in rows
    ]
    print_table(f"Handwritten digits, {WORKERS} workers, {steps} steps", columns, cells)


def _rate_and_momentum(text: str) -> tuple[float, float]:
    rate, momentum = text.split(",")
    return float(rate), float(momentum)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = sorted(registry.available(), key=lambda name: (name != "none", name))
    every = [SPECS.get(name, name) for name in names]
    parser.add_argument("--methods", nargs="+", default=every, metavar="SPEC", help="only these")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the test runs")
    parser.add_argument(
        "--at",
        type=_rate_and_momentum,
        nargs="+",
        metavar="RATE,MOMENTUM",
        help="all methods with each of these, instead of each with what validation images choose",
    )
    parser.add_argument("--out", default="training.jsonl", help="a line for each run")
    options = parser.parse_args()
    rows = compare(options)
    report(rows, options.steps)


if __name__ == "__main__":
    main()
