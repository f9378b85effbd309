"""Trains a small transformer on characters: Adam, 1-bit Adam, 0/1 Adam, their loss and bytes.

    python -m grace_tf run -np 2 examples/transformer.py      # two worker processes
    python examples/transformer.py                            # one process, which exchanges nothing

The text is Python's own: the source of some modules of its standard library.  The last tenth is
held out, and the loss on it, in bits a character, is what counts.  All optimizers start from the
same weights, see the same batches and take the same number of steps.  `grace_tf.keras.OneBitAdam`
sends whole gradients for a quarter of the steps and signs of its momentum afterwards, gathered or
in two hops, which from three workers on send less.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.cli.describe import bytes_text
from grace_tf.cli.tables import print_table

MODULES = "argparse ast copy datetime difflib doctest inspect pdb pickle tarfile typing zipfile"
LENGTH, BATCH = 64, 16  # characters of a window; windows per worker and step
WIDTH, LAYERS, HEADS = 96, 2, 4
RATE = 3e-3
TWO_HOPS = "1-bit adam, two hops"
MIN_ELEMENTS = 256  # so that all but the smallest biases travel as signs


def characters(text: str | None = None) -> tuple[np.ndarray, np.ndarray, int]:
    """(characters to train on, those held out, the number of different ones), int32.

    Of Python's own source where no text is given.
    """
    if text is None:
        paths = [Path(importlib.util.find_spec(name).origin) for name in MODULES.split()]
        text = "".join(path.read_text(encoding="utf-8") for path in paths)
    known = sorted(set(text) & {chr(i) for i in range(128)})
    numbers = {character: i for i, character in enumerate(known)}
    coded = np.array([numbers[c] for c in text if c in numbers], np.int32)
    end = len(coded) * 9 // 10
    return coded[:end], coded[end:], len(known)


def windows(coded: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Characters from these places on, and for each of them the next one."""
    found = coded[starts[:, None] + np.arange(LENGTH + 1)]
    return found[:, :-1], found[:, 1:]


def batches(coded: np.ndarray, steps: int, seed: int) -> tf.data.Dataset:
    """This worker's windows, drawn at random, in batches."""
    draw = np.random.default_rng([seed, grace_tf.rank()])
    starts = draw.integers(0, len(coded) - LENGTH - 1, steps * BATCH)
    return tf.data.Dataset.from_tensor_slices(windows(coded, starts)).batch(BATCH)


@keras.utils.register_keras_serializable("examples")
class Characters(keras.layers.Layer):
    """A vector for each character and one for each place; a matrix product, not a look-up.

    So its gradient is dense, and the bytes of all optimizers are of all weights.
    """

    def __init__(self, count: int, width: int = WIDTH, **keywords: Any):
        super().__init__(**keywords)
        self.count, self.width = count, width

    def build(self, shape):
        self.table = self.add_weight(shape=(self.count, self.width), name="table")
        self.places = self.add_weight(shape=(LENGTH, self.width), name="places")
        self.built = True

    def call(self, x):
        return tf.one_hot(x, self.count) @ tf.convert_to_tensor(self.table) + self.places


def build(count: int, width: int = WIDTH) -> keras.Model:
    """A transformer that foretells the character after each of a window.

    It has 240,000 weights at the width 96.
    """
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Characters(count, width)(inputs)
    for _ in range(LAYERS):
        seen = keras.layers.LayerNormalization()(x)
        attention = keras.layers.MultiHeadAttention(HEADS, width // HEADS)
        x = keras.layers.Add()([x, attention(seen, seen, use_causal_mask=True)])
        seen = keras.layers.LayerNormalization()(x)
        seen = keras.layers.Dense(4 * width, activation="gelu")(seen)
        x = keras.layers.Add()([x, keras.layers.Dense(width)(seen)])
    x = keras.layers.LayerNormalization()(x)
    return keras.Model(inputs, keras.layers.Dense(count)(x))


def optimizer(name: str, steps: int) -> Any:
    """The optimizer of this name, ready for several workers."""
    rate = keras.optimizers.schedules.CosineDecay(RATE, steps)
    if name == "adam":
        adam = keras.optimizers.Adam(rate)
        return grace_tf.wrap(adam, "none", min_elements=MIN_ELEMENTS)
    own = {"intervals": 16} if name == "0/1 adam" else {"freeze_step": max(1, steps // 4)}
    if name == TWO_HOPS:
        own["exchange"] = "two_hop"
    return grace_tf.keras.OneBitAdam(rate, min_elements=MIN_ELEMENTS, **own)


def train(name: str, steps: int, seed: int, text: int) -> dict[str, Any]:
    """One training run: the loss on held-out text, and the bytes of its last step.

    `bytes_per_step` is the payload; `sent` is what a worker sends for it; `dense_sent` is what it
    would send for all gradients as float32.
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    coded, held_out, count = characters()
    model = build(count)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer(name, steps), loss=loss)
    model.fit(batches(coded, steps, seed), epochs=1, shuffle=False, verbose=0)
    every = np.arange(0, min(len(held_out), text) - LENGTH - 1, LENGTH)
    bits = model.evaluate(*windows(held_out, every), batch_size=64, verbose=0) / math.log(2)
    size, aggregator = grace_tf.size(), grace_tf.keras.aggregator_of(model.optimizer)
    sent = round(sum(record.sent(size) for record in aggregator.handed))
    dense = sum(4 * math.prod(v.shape) for v in model.trainable_variables)
    found = {"optimizer": name, "workers": size, "steps": steps, "seed": seed}
    found |= {"bits": round(bits, 4), "bytes_per_step": aggregator.bytes_per_step}
    return {**found, "sent": sent, "dense_sent": round(dense * 2 * (size - 1) / size)}


def report(runs: list[dict[str, Any]]) -> None:
    """A row for each optimizer: the mean loss over the seeds, and what a late step sends."""
    rows = []
    for name in dict.fromkeys(run["optimizer"] for run in runs):
        mine = [run for run in runs if run["optimizer"] == name]
        bits = statistics.mean(run["bits"] for run in mine)
        sent, dense = mine[0]["sent"], mine[0]["dense_sent"]
        share = f"1/{dense / sent:.1f}" if sent else "–"  # alone it sends nothing
        rows.append([name, f"{bits:.3f}", bytes_text(sent), share])
    columns = ["optimizer", "bits a character", "a worker sends", "of fp32"]
    print_table(f"Characters, {grace_tf.size()} worker(s)", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = ["adam", "1-bit adam", "0/1 adam"]
    parser.add_argument("--optimizers", nargs="+", default=every, choices=[*every, TWO_HOPS])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="a run for each")
    parser.add_argument("--text", type=int, default=40_000, help="held-out characters to test on")
    parser.add_argument("--json", help="the numbers, one line a run")
    options = parser.parse_args()

    grace_tf.init()
    runs = []
    for seed in options.seeds:
        for name in options.optimizers:
            runs.append(train(name, options.steps, seed, options.text))
            if grace_tf.rank() == 0:
                print(json.dumps(runs[-1]), flush=True)
    if grace_tf.rank() == 0:
        report(runs)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(run) + "\n" for run in runs)


if __name__ == "__main__":
    main()
