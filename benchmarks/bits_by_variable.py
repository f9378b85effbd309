"""What it would save to choose the bits of `eden` by variable, as L-GreCo (arXiv:2210.17357) does.

    python -m benchmarks.bits_by_variable --json benchmarks/results/bits-by-variable.jsonl

Four trainings of the suite run alone and uncompressed.  At some steps the error of one gradient is
measured for each variable and number of bits.  Then bits are chosen by variable so that the error
of the whole gradient is at most that of four bits everywhere: all begin with two bits, and as long
as the error is too large the variable gets more bits whose error falls most for its bytes.

A line has the bytes, as a share of those of four bits everywhere; the largest error of one
variable, as a share of its own; and the error of the bits that the measurement before has chosen,
over that of four bits everywhere.
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
Lost = np.ndarray


def lost(gradients: Sequence[np.ndarray]) -> Lost:
    """`[variables, len(BITS)]`, of one compression each."""
    found = np.zeros([len(gradients), len(BITS)])
    for column, bits in enumerate(BITS):
        workers = Workers(1, f"eden:bits={bits}", memory="none")
        for row, gradient in enumerate(gradients):
            got = workers([[gradient]])[0][0].numpy()
            found[row, column] = np.sum((gradient - got).astype(np.float64) ** 2)
    return found


def chosen(losses: Lost, sizes: np.ndarray, most: float) -> np.ndarray:
    """By variable, the place in `BITS`; the whole loses `most` at most."""
    places = np.zeros(len(sizes), int)
    each = np.arange(len(sizes))
    while losses[each, places].sum() > most:
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


def measured(name: str, steps: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of one training, at each of the steps."""
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
        losses, each = lost(gradients), np.arange(len(sizes))
        most = losses[:, BITS.index(EQUAL)].sum()
        places = chosen(losses, sizes, most)
        rows.append(
            {
                "training": name,
                "step": step,
                "bytes": float(sizes @ np.array(BITS)[places] / (EQUAL * sizes.sum())),
                "error": float(losses[each, places].sum() / norms.sum()),
                "error of equal bits": float(most / norms.sum()),
                "worst": float(np.max(losses[each, places] / np.maximum(norms, 1e-300))),
                "before": None if before is None else float(losses[each, before].sum() / most),
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
            found += measured(name, args.steps)
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
