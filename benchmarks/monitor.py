"""What `grace_tf.keras.Monitor` costs a training, and whether its bytes are those on the network.

    python benchmarks/monitor.py --out alone.json
    python -m grace_tf run -np 2 --link 1gbit benchmarks/monitor.py --hidden 6000 --out link.json

Three equal models train with one method.  The first has no Monitor, the second measures one step
of each `--every`, and the third measures every step.  Each trains `--every` steps in turn.  For
each turn the seconds are divided by those of the first model, and so are the processor's seconds,
which other programs on the machine disturb less; the medians are reported.  The cost of one
measured step in 100 may be smaller than the noise between turns.  It follows from the third model:
a hundredth of its additional time.

Behind a link of `--link` the interface's own count (/proc/self/net/dev, sent) over all turns of the
second model is compared with `Aggregator.metrics()["sent"]`, which Monitor shows as `grace_bytes`,
and `explain` as "bytes that a worker sends".  The count has in it what Monitor itself sends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from link import sent_bytes

import grace_tf
from grace_tf.cli.bench.machine import machine
from grace_tf.keras import Monitor

METHODS = ["none", "bf16", "qsgd", "topk:ratio=0.01", "powersgd:rank=4", "signsgd"]


def build(hidden: int) -> keras.Model:
    """A CNN for images of 28 × 28.  Each unit of its hidden layer adds 1611 weights."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(hidden, "relu"),
            keras.layers.Dense(10),
        ]
    )


class Trained:
    """A model that trains `steps` steps at a time, with these callbacks."""

    def __init__(
        self, spec: str, given: argparse.Namespace, callbacks: list[keras.callbacks.Callback]
    ) -> None:
        keras.utils.set_random_seed(1)
        self._model, self._callbacks = build(given.hidden), callbacks
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.optimizer = grace_tf.wrap(keras.optimizers.SGD(0.01), spec)
        self._model.compile(self.optimizer, loss, jit_compile=False)
        draw = np.random.default_rng(grace_tf.rank())
        x = draw.normal(size=[given.batch, 28, 28, 1]).astype(np.float32)
        y = draw.integers(0, 10, [given.batch])
        self._data = tf.data.Dataset.from_tensors((x, y)).cache().repeat(given.every)

    def turn(self) -> tuple[float, float, int]:
        """Seconds, the processor's seconds of this process, and bytes of the interface."""
        grace_tf.barrier()
        sent, cpu, wall = sent_bytes()[0], time.process_time(), time.perf_counter()
        self._model.fit(self._data, verbose=0, callbacks=list(self._callbacks))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        grace_tf.barrier()
        return wall, cpu, sent_bytes()[0] - sent


def measure(spec: str, given: argparse.Namespace) -> dict:
    every = given.every
    arms = [Trained(spec, given, each) for each in ([], [Monitor(every)], [Monitor(1)])]
    for arm in arms:
        arm.turn()  # traces
    found: list[list[tuple[float, float, int]]] = [[] for _ in arms]
    for number in range(given.turns):
        for place in (0, 1, 2) if number % 2 else (2, 1, 0):
            found[place].append(arms[place].turn())
    plain, sometimes, always = found

    def ratio(turns_of: list[tuple[float, float, int]], field: int) -> float:
        return statistics.median(own[field] / p[field] for own, p in zip(turns_of, plain))

    optimizer = arms[1].optimizer
    metrics = grace_tf.keras.aggregator_of(optimizer).metrics()
    row = {
        "method": spec,
        "seconds_ratio": ratio(sometimes, 0),
        "cpu_ratio": ratio(sometimes, 1),
        "every_step_seconds_ratio": ratio(always, 0),
        "every_step_cpu_ratio": ratio(always, 1),
        "seconds_of_a_step": statistics.median(p[0] for p in plain) / every,
        "cpu_seconds_of_a_step": statistics.median(p[1] for p in plain) / every,
        "metrics": metrics,
        "explained_sent": grace_tf.explain(optimizer).as_dict()["step"]["sent"],
    }
    if grace_tf.size() > 1 and sent_bytes()[1] != "lo":
        plain_sent, sent = (statistics.mean(t[2] for t in each) / every for each in found[:2])
        row.update(plain_interface=plain_sent, interface=sent, over=sent / metrics["sent"] - 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=100, help="as for Monitor")
    parser.add_argument("--turns", type=int, default=10, help="of each model")
    parser.add_argument("--batch", type=int, default=64, help="images a step and worker")
    parser.add_argument("--hidden", type=int, default=1000, help="units of the hidden layer")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--label", default="", help="what the link is, for the record")
    parser.add_argument("--out")
    args = parser.parse_args()
    group = grace_tf.init(timeout=300)
    rows = []
    for spec in args.methods:
        rows.append(measure(spec, args))
        if group.rank == 0:
            print(json.dumps(rows[-1]), flush=True)
    if group.rank == 0 and args.out:
        model = f"CNN with a hidden layer of {args.hidden}, batch {args.batch}"
        here = machine(group.size, args.every * args.turns, model)
        told = {"machine": here, "link": args.label, "every": args.every, "rows": rows}
        with open(args.out, "w") as file:
            json.dump(told, file, indent=1)


if __name__ == "__main__":
    main()
