"""What is left of XLA's speed where the exchange is outside of what XLA compiles.

    python benchmarks/xla.py --out benchmarks/results/xla.json

For a plain optimizer Keras lets XLA compile the whole step.  For a wrapped one XLA compiles the
forward and backward pass, and the exchange and the update follow.  Equal models train in one
process: with a plain SGD and with a wrapped one of each method, each with XLA and without it.  They
take `--steps` steps in turn.  The lines give the medians over turns, in seconds of the clock and in
seconds of the processor, which other programs on the machine disturb less:

    step      of a step with XLA, and of one without
    xla       the time with XLA divided by the time without it
    lost      what the method adds to a step with XLA, less what it adds to a step without XLA, as a
              share of the plain step with XLA: what the split costs
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.cli.bench.machine import machine

METHODS = ["none", "bf16", "qsgd", "topk:ratio=0.01", "powersgd:rank=4"]
WIDTH, LAYERS = 512, 8


def build() -> keras.Model:
    """Eight dense layers, which have 2.1 million weights in total.

    Between them lie normalisations, activations and dropouts.  XLA computes these in one loop.
    """
    layers: list[keras.Layer] = [keras.Input((WIDTH,))]
    for _ in range(LAYERS):
        layers += [keras.layers.Dense(WIDTH), keras.layers.LayerNormalization()]
        layers += [keras.layers.Activation("gelu"), keras.layers.Dropout(0.1)]
    return keras.Sequential([*layers, keras.layers.Dense(10)])


class Trained:
    """A model that trains `steps` steps at a time; its optimizer is plain where `spec` is empty."""

    def __init__(self, spec: str, jit_compile: bool, steps: int, batch: int) -> None:
        keras.utils.set_random_seed(1)
        self._model = build()
        optimizer = keras.optimizers.SGD(0.01)
        if spec:
            optimizer = grace_tf.wrap(optimizer, spec)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._model.compile(optimizer, loss, jit_compile=jit_compile)
        draw = np.random.default_rng(0)
        x = draw.normal(size=[batch, WIDTH]).astype(np.float32)
        self._data = tf.data.Dataset.from_tensors((x, draw.integers(0, 10, [batch])))
        self._data, self._steps = self._data.cache().repeat(steps), steps

    def turn(self) -> tuple[float, float]:
        """The seconds of a step, and those of the processor."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._model.fit(self._data, verbose=0)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return wall / self._steps, cpu / self._steps


def measure(methods: list[str], steps: int, batch: int, turns: int) -> list[dict]:
    kinds = [(method, jit) for method in ("", *methods) for jit in (True, False)]
    arms = {kind: Trained(*kind, steps, batch) for kind in kinds}
    for arm in arms.values():
        arm.turn()  # traces and compiles
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for number in range(turns):
        for kind in kinds if number % 2 else reversed(kinds):
            found[kind].append(arms[kind].turn())
    return [row(method, found) for method in ("", *methods)]


def row(method: str, found: dict[tuple[str, bool], list[tuple[float, float]]]) -> dict:
    """The medians of one method."""
    told: dict = {"method": method or "plain"}
    for field, unit in enumerate(("seconds", "cpu")):
        own_xla, own, plain_xla, plain = (
            [turn[field] for turn in found[kind]]
            for kind in ((method, True), (method, False), ("", True), ("", False))
        )
        of_turns = list(zip(own_xla, own, plain_xla, plain))
        told[unit] = {
            "step_xla": statistics.median(own_xla),
            "step": statistics.median(own),
            "xla": statistics.median(a / b for a, b, _, _ in of_turns),
            "lost": statistics.median(((a - c) - (b - d)) / c for a, b, c, d in of_turns),
        }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--turns", type=int, default=11, help="of each model")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--out")
    args = parser.parse_args()
    rows = measure(args.methods, args.steps, args.batch, args.turns)
    for row in rows:
        print(json.dumps(row), flush=True)
    if args.out:
        model = f"{LAYERS} dense layers of {WIDTH}, batch {args.batch}"
        told = {"machine": machine(1, args.steps * args.turns, model), "rows": rows}
        with open(args.out, "w") as file:
            json.dump(told, file, indent=1)


if __name__ == "__main__":
    main()
