"""What it costs that workers compare weights, and average logs, beside a step of ResNet-50.

    python -m grace_tf run -np 2 benchmarks/comparisons.py --engine group
    python benchmarks/comparisons.py --engine mirrored

A comparison is a part of every second exchange here, so exchanges with and without one are measured
in turn; their difference is stated as a fraction of `--check-every` whole training steps.  So is
the time that the end of an epoch takes longer than without means and comparisons.  On a device that
computes a step faster the fraction is larger by that much, so the times are printed too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import tensorflow as tf

import grace_tf

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--engine", choices=["group", "mirrored"], required=True)
parser.add_argument("--check-every", type=int, default=100)
parser.add_argument("--batch", type=int, default=8, help="of a worker")
parser.add_argument("--pixels", type=int, default=224)
parser.add_argument("--pairs", type=int, default=30)
parser.add_argument("--steps", type=int, default=5, help="whole training steps that are measured")
parser.add_argument("--out")
args = parser.parse_args()

strategy, rank, size = tf.distribute.get_strategy(), 0, 2
if args.engine == "mirrored":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
else:
    group = grace_tf.init()
    rank, size = group.rank, group.size

import keras  # noqa: E402

from grace_tf.cli.bench.machine import machine  # noqa: E402

FIRST = 16  # steps whose comparisons are more frequent, or that are traced


def measured(call, times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return seconds


def comparison(model) -> float:
    """Seconds by which an exchange with a comparison takes longer than one without."""
    variables = model.trainable_variables
    with strategy.scope():
        aggregate = grace_tf.Aggregator("none", variables, check_every=2)

    def replica():
        aggregate([tf.zeros(v.shape) for v in variables], variables)

    step = tf.function(lambda: strategy.run(replica), autograph=False)
    measured(step, FIRST + 1)
    # After the steps above an odd number is done, so a step without a comparison follows.
    pairs = [measured(step, 2) for _ in range(args.pairs)]
    return statistics.median(b - a for a, b in pairs)


class Moments(keras.callbacks.Callback):
    """When batches and epochs end, the latter after the means."""

    def __init__(self):
        super().__init__()
        self.batches, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(time.perf_counter())

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(time.perf_counter())


def training(model, compared: bool) -> tuple[float, float]:
    """Returns the seconds of a whole step, and those between an epoch's last step and its end."""
    check = {"check_every": args.check_every if compared else 0, "average_logs": compared}
    with strategy.scope():
        optimizer = grace_tf.wrap(keras.optimizers.SGD(1e-3), "none", **check)
    model.compile(optimizer, "sparse_categorical_crossentropy", steps_per_execution=1)
    replicas = strategy.num_replicas_in_sync
    rows = args.batch * replicas
    x = tf.random.stateless_normal([rows, args.pixels, args.pixels, 3], [rank, 1])
    data = tf.data.Dataset.from_tensors((x, tf.zeros([rows], tf.int32))).repeat(args.steps + 1)
    moments = Moments()
    model.fit(data, epochs=2, callbacks=[moments], verbose=0)
    ends, between = moments.batches, []
    for epoch in range(2):
        batches = ends[epoch * (args.steps + 1) :][: args.steps + 1]
        between += [b - a for a, b in zip(batches, batches[1:])]
    means = [
        end - ends[(epoch + 1) * (args.steps + 1) - 1] for epoch, end in enumerate(moments.epochs)
    ]
    return statistics.median(between), means[-1]


def main() -> None:
    with strategy.scope():
        model = keras.applications.ResNet50(weights=None, input_shape=[args.pixels, args.pixels, 3])
    _, alone = training(model, compared=False)
    step, means = training(model, compared=True)
    means -= alone
    compare = comparison(model)
    if rank:
        return
    of_steps = args.check_every * step
    for name, seconds in (("a comparison", compare), ("the end of an epoch", means)):
        print(
            f"{args.engine}, {size} workers, a step of {step:.2f} s: {name} takes "
            f"{1000 * seconds:.1f} ms, {seconds / of_steps:.3%} of {args.check_every} steps",
            flush=True,
        )
    if args.out:
        with open(args.out, "a") as file:
            head = {"machine": machine(size, args.pairs, "ResNet-50")}
            told = {"step": step, "comparison": compare, "end_of_epoch": means}
            given = {name: value for name, value in vars(args).items() if name != "out"}
            file.write(json.dumps({**head, **given, **told}) + "\n")


main()
