"""What `wrap(optimizer, "none")` costs: whole steps beside those of the plain optimizer, in turn.

    python benchmarks/plain.py --engine alone
    python benchmarks/plain.py --engine mirrored
    python -m grace_tf run -np 2 benchmarks/plain.py --engine strategy
    python -m grace_tf run --horovod -np 2 benchmarks/plain.py --engine horovod

Under Horovod, whose own optimizer reduces nothing on Keras 3, a plain step is
`hvd.grouped_allreduce` and an update by hand, beside `Aggregator("none")` and the same update.  A
process group has no plain optimizer that reduces.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--engine", choices=["alone", "mirrored", "strategy", "horovod"], required=True)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--out")
args = parser.parse_args()

strategy = tf.distribute.get_strategy()
if args.engine == "mirrored":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
elif args.engine == "strategy":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs

import keras  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.cli.bench.machine import machine  # noqa: E402

rank, size = 0, strategy.num_replicas_in_sync
if args.engine == "strategy":
    rank = strategy.cluster_resolver.task_id
if args.engine == "horovod":
    import horovod.tensorflow as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()


def step_of(wrapped: bool):
    """A traced step of a model of its own, by a plain or a wrapped optimizer."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(args.width, "relu") for _ in range(args.layers)]
        model = keras.Sequential([keras.Input((args.width,)), *layers])
        optimizer = keras.optimizers.Adam(1e-5)
        if wrapped:
            optimizer = grace_tf.wrap(optimizer, "none")
        optimizer.build(model.trainable_variables)
    x = tf.random.stateless_normal([args.batch, args.width], [rank, 1])
    aggregate = grace_tf.Aggregator("none")

    def replica():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        variables = model.trainable_variables
        grads = tape.gradient(loss, variables)
        if args.engine != "horovod":
            optimizer.apply_gradients(zip(grads, variables))
            return
        grads = aggregate(grads, variables) if wrapped else hvd.grouped_allreduce(grads)
        for grad, variable in zip(grads, variables):
            variable.assign_sub(1e-5 * grad)

    return tf.function(lambda: strategy.run(replica), autograph=False)


def main() -> None:
    steps = {"plain": step_of(False), "none": step_of(True)}
    times = {name: [] for name in steps}
    for i in range(args.steps + 3):
        # In another order each time, since a step may leave work behind for the next.
        for name, step in sorted(steps.items(), reverse=i % 2 == 0):
            start = time.perf_counter()
            step()
            if i >= 3:
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(each) for name, each in times.items()}
    # The ratio within each turn, so that what slows the machine for a while falls on both.
    ratio = statistics.median(b / a for a, b in zip(times["plain"], times["none"]))
    if rank:
        return
    told = ", ".join(f"{name} {1000 * taken:.2f} ms" for name, taken in medians.items())
    print(f"{args.engine}, {size} workers: {told}, {100 * (ratio - 1):+.1f} %", flush=True)
    if args.out:
        with open(args.out, "a") as file:
            head = {"machine": machine(size, args.steps, "a stack of dense layers")}
            file.write(json.dumps({**head, **vars(args), **medians, "ratio": ratio}) + "\n")


main()
