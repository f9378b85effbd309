"""How far what every method sends is from the gradient: the table of docs/fidelity.md.

    python benchmarks/fidelity.py --json benchmarks/results/fidelity.json --out docs/fidelity.md

For each method: bits an element, and the relative error ‖x − C(x)‖² / ‖x‖² of one compression of a
matrix of 1024 × 64 elements, the mean over draws, on four inputs: normal, Laplace, Student's t with
three degrees of freedom (heavy tails), and the gradient of a layer of that shape in the middle of
a training.  Beside it a bound of the expectation of that error, where one is known.
Then 50 steps of gradients that share a direction, g_t = s + n_t with both parts normal: the
relative error of the sum of all aggregates, with the memory of the method's recipe and without.

With --methods only these are measured, and the file's rows of all others stay, with bounds that are
computed anew.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from grace_tf.cli.bench.machine import machine
from grace_tf.cli.tables import markdown, print_table, progress
from grace_tf.core import registry
from grace_tf.core.specs import spec_of
from grace_tf.line.settings import settings
from grace_tf.testing import Workers

SHAPE = (1024, 64)
SPEC = tf.TensorSpec(SHAPE, tf.float32)
STEPS = 50
COLUMNS = ("method", "bits", "normal", "Laplace", "heavy tail", "a layer", "bound")
LONG_COLUMNS = ("memory", "50 steps with it", "without")


def layer_gradients(count: int) -> list[np.ndarray]:
    """Gradients of the dense layer of a small CNN on digits, some steps into training."""
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16.0).astype(np.float32).reshape(-1, 8, 8, 1), y.astype(np.int32)
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    kernel = next(v for v in model.trainable_variables if tuple(v.shape) == SHAPE)
    optimizer = keras.optimizers.SGD(0.05)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = []
    for step in range(20 + count):
        batch = slice(64 * (step % 20), 64 * (step % 20) + 64)
        with tf.GradientTape() as tape:
            now = loss(y[batch], model(x[batch], training=True))
        gradients = tape.gradient(now, [getattr(v, "value", v) for v in model.trainable_variables])
        if step >= 20:
            place = [id(v) for v in model.trainable_variables].index(id(kernel))
            found.append(gradients[place].numpy())
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return found


def inputs(draws: int) -> dict[str, list[np.ndarray]]:
    """The matrices of each distribution."""
    draw = np.random.default_rng(0)
    random: dict[str, Callable[[], np.ndarray]] = {
        "normal": lambda: draw.standard_normal(SHAPE),
        "Laplace": lambda: draw.laplace(size=SHAPE),
        "heavy tail": lambda: draw.standard_t(3, SHAPE),
    }
    made = {n: [f().astype(np.float32) for _ in range(draws)] for n, f in random.items()}
    return {**made, "a layer": layer_gradients(draws)}


def error(x: np.ndarray, got: np.ndarray, scaled: bool) -> float:
    """‖x − got‖² / ‖x‖²; what has another scale than x is `scaled` by the best factor before."""
    x, got = x.astype(np.float64), got.astype(np.float64)
    if scaled:
        got = got * np.vdot(x, got) / max(np.vdot(got, got), 1e-300)
    return float(np.sum((x - got) ** 2) / np.sum(x**2))


def single(method: str, matrices: list[np.ndarray]) -> float:
    """The mean error of one compression, each of another step, so that random methods draw anew."""
    workers = Workers(1, method, memory="none")
    consensus = registry.get(method).aggregates == "consensus"
    return statistics.mean(error(x, workers([[x]])[0][0].numpy(), consensus) for x in matrices)


def long(method: str, memory: str) -> float:
    """The error of the sum over the steps."""
    draw = np.random.default_rng(1)
    workers = Workers(1, method, memory=memory)
    scaled = registry.get(method).aggregates == "consensus"
    scaled |= registry.get_memory(memory).has_momentum
    shared = draw.standard_normal(SHAPE)
    wanted, got = np.zeros(SHAPE), np.zeros(SHAPE)
    for _ in range(STEPS):
        x = (shared + draw.standard_normal(SHAPE)).astype(np.float32)
        wanted += x
        got += workers([[x]])[0][0].numpy()
    return error(wanted, got, scaled)


def measure(methods: list[str], draws: int) -> list[dict[str, Any]]:
    """One row for each method."""
    rows, given = [], inputs(draws)
    with progress("fidelity", len(methods)) as shown:
        for method in methods:
            ((_, compressor, memory),) = settings(method).routes
            row = {"method": method, "memory": spec_of(memory)}
            row["bits"] = 8 * compressor.nbytes(SPEC) / SPEC.shape.num_elements()
            row["bound"] = compressor.relative_bound(SPEC)
            row["errors"] = {name: single(method, each) for name, each in given.items()}
            row["without"] = long(method, "none")
            row["with"] = long(method, row["memory"])
            rows.append(row)
            shown.advance(method)
    return rows


def cells(row: dict[str, Any], code: str = "") -> list[str]:
    """A row as the table has it."""
    errors = [f"{value:.2g}" for value in row["errors"].values()]
    bound = "-" if row["bound"] is None else f"{row['bound']:.3g}"
    kept = row["memory"] != "none"
    long_errors = [f"{row['with']:.2g}" if kept else "-", f"{row['without']:.2g}"]
    name = f"{code}{row['method']}{code}"
    return [name, f"{row['bits']:.3g}", *errors, bound, row["memory"], *long_errors]


def page(rows: list[dict[str, Any]]) -> str:
    """The page of the documentation."""
    text = __doc__.strip().split("\n\n")
    return "\n\n".join(
        [
            "# Fidelity of the methods",
            "Made by this command, which is also how to make it anew:",
            text[1],
            text[2],
            "Read: 0 is perfect, 1 is the error of sending nothing, and smaller is better.",
            "A consensus, and a memory whose aggregate is a momentum, have another scale than the "
            "gradient: their errors are those at the best scale.  An error above 1 means that the "
            "method's noise is larger than its input: unbiased methods of few bits rely on the "
            "mean over workers and steps.",
            markdown([*COLUMNS, *LONG_COLUMNS], [cells(row, "`") for row in rows]),
        ]
    )


def merged(path: str, rows: list[dict[str, Any]], order: list[str]) -> list[dict[str, Any]]:
    """The rows, and those of other methods that the file has, in this order of methods."""
    file = Path(path)
    old = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    found = {row["method"]: row for row in [*old, *rows]}
    kept = [found[method] for method in dict.fromkeys(order) if method in found]
    return [{**row, "bound": registry.get(row["method"]).relative_bound(SPEC)} for row in kept]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [spec for entry in registry.entries() for spec in (entry.name, *entry.examples)]
    parser.add_argument("--methods", nargs="+", default=every, metavar="SPEC", help="only these")
    parser.add_argument("--draws", type=int, default=8, help="matrices of each distribution")
    parser.add_argument("--out", help="the page of the documentation")
    parser.add_argument("--json", help="the numbers")
    options = parser.parse_args()
    if options.out and not options.json and options.methods != every:
        parser.error("--out of some methods needs --json, which has the others")
    rows = measure(options.methods, options.draws)
    print_table("Fidelity", [*COLUMNS, *LONG_COLUMNS], [cells(row) for row in rows])
    if options.json:
        rows = merged(options.json, rows, [*every, *options.methods])
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(page(rows) + "\n")
    if options.json:
        here = machine(1, options.draws, "1024 x 64")
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": here, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
