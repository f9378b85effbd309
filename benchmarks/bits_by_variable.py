"""How many bytes it would save to choose the bits of `eden` for each variable.

    python -m benchmarks.bits_by_variable --json benchmarks/results/bits-by-variable.jsonl

L-GreCo (arXiv:2210.17357) chooses so.  Four models of the suite train alone and uncompressed, with
a constant rate.  At some steps the error of one gradient is measured for each variable and number
of bits.  Then bits are chosen so that the error of the whole gradient is at most that of four bits
everywhere: all variables begin with two bits, and while the error is too large, one variable gets
one more bit, the one whose error falls most for each added byte.

A line has: the bytes of the codes, divided by those of four bits everywhere; the largest relative
error of a variable; and the error of the bits that the previous measurement chose, divided by the
error of four bits everywhere.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.suite.tasks.outline import OUTLINES
from grace_tf.cli.bench.machine import machine
from grace_tf.cli.tables import print_table, progress
from grace_tf.testing import Workers

BITS = (2, 3, 4, 5, 6, 7, 8)
EQUAL = 4  # bits everywhere, which the choice is compared with
LEAST = 1024  # elements; smaller variables are not compressed
TASKS = ("vision", "batchnorm", "transformer", "lstm")
COLUMNS = ("training", "step", "bytes", "error", "worst variable", "choice before: error", "bits")

# By variable: the squared norm of what each of `BITS` loses.
Losses = np.ndarray


def losses_of(gradients: Sequence[np.ndarray]) -> Losses:
    """`[variables, len(BITS)]`, of one compression each."""
    found = np.zeros([len(gradients), len(BITS)])
    for column, bits in enumerate(BITS):
        workers = Workers(1, f"eden:bits={bits}", memory="none")
        for row, gradient in enumerate(gradients):
            got = workers([[gradient]])[0][0].numpy()
            found[row, column] = np.sum((gradient - got).astype(np.float64) ** 2)
    return found


def choose(losses: Losses, sizes: np.ndarray, allowed: float) -> np.ndarray:
    """The index into `BITS` for each variable; the losses of all add up to `allowed` at most."""
    places = np.zeros(len(sizes), int)
    each = np.arange(len(sizes))
    while losses[each, places].sum() > allowed:
        more = np.minimum(places + 1, len(BITS) - 1)
        gain = (losses[each, places] - losses[each, more]) / sizes
        places[np.argmax(np.where(more > places, gain, -1.0))] += 1
    return places


def gradients_of(model: keras.Model, batch: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
    """Of the variables that are compressed."""
    x, y = batch
    variables = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    found = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, variables)]
    return [g for g in found if g.size >= LEAST]


def measure(name: str, steps: Sequence[int]) -> list[dict[str, Any]]:
    """Trains one model and measures it at each of these steps. Returns one row for each step."""
    outline = OUTLINES[name]
    task = importlib.import_module(f"benchmarks.suite.tasks.{outline.module}").Task(outline, 1)
    keras.utils.set_random_seed(1)
    model = task.build()
    adam, sgd = keras.optimizers.Adam, keras.optimizers.SGD
    made = adam(0.001) if outline.optimizer == "adam" else sgd(0.03, momentum=0.9)
    model.compile(made, task.losses(), jit_compile=False)
    batches, done, rows = task.batches(0, 2), 0, []
    before: np.ndarray | None = None
    for step in steps:
        while done < step:
            model.train_on_batch(*next(batches))
            done += 1
        gradients = gradients_of(model, next(batches))
        sizes = np.array([g.size for g in gradients])
        norms = np.array([np.sum(g.astype(np.float64) ** 2) for g in gradients])
        losses, each = losses_of(gradients), np.arange(len(sizes))
        allowed = losses[:, BITS.index(EQUAL)].sum()
        places = choose(losses, sizes, allowed)
        rows.append(
            {
                "training": name,
                "step": step,
                "bytes": float(sizes @ np.array(BITS)[places] / (EQUAL * sizes.sum())),
                "error": float(losses[each, places].sum() / norms.sum()),
                "error of equal bits": float(allowed / norms.sum()),
                "worst": float(np.max(losses[each, places] / np.maximum(norms, 1e-300))),
                "before": None if before is None else float(losses[each, before].sum() / allowed),
                "bits": [BITS[place] for place in places],
                "elements": sizes.tolist(),
            }
        )
        before = places
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], choices=TASKS)
    parser.add_argument("--steps", nargs="+", type=int, default=[0, 60, 200], help="in order")
    parser.add_argument("--json", help="a file, a line for each measurement")
    args = parser.parse_args()
    found = []
    with progress("bits by variable", len(args.tasks)) as shown:
        for name in args.tasks:
            found += measure(name, args.steps)
            shown.advance(name)
    print_table(
        "Bits of eden by variable",
        COLUMNS,
        [
            [
                *(row["training"], str(row["step"]), f"{row['bytes']:.2f}"),
                *(f"{row['error']:.4f}", f"{row['worst']:.3f}"),
                "" if row["before"] is None else f"{row['before']:.2f} ×",
                " ".join(map(str, row["bits"])),
            ]
            for row in found
        ],
    )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            for row in [machine(1, 1, "of trainings"), *found]:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
