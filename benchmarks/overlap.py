"""How much of the exchange is hidden behind backward.

Runs as one of several workers (TF_CONFIG, or `python -m grace_tf run`), each on an interface of its
own, or under a strategy or Horovod:

    python benchmarks/overlap.py --engine group --method qsgd --out overlap.json

A stack of dense layers trains.  Its batch is chosen so that backward takes about as long as the
exchange of its gradients; nothing can be exchanged during forward.  Then these are timed in turn,
medians over `--steps` steps:

    forward    the loss
    compute    forward, backward and the update, with the worker's own gradients
    exchange   compress, communicate, decompress and the update, of gradients in memory
    last       the same of the bucket that backward comes to last, which nothing can hide
    loop       whole steps of a custom loop
    fit        whole steps of `fit`

"excess" is (step - last) / max(compute, forward + exchange): 1 where the exchange or backward is
hidden altogether, near 1.7 where nothing is.  Workers that share cores compute slower while they
exchange, so use a link on which waiting takes longer than compressing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--engine", choices=["group", "strategy", "horovod"], default="group")
parser.add_argument("--method", default="qsgd")
parser.add_argument("--layers", type=int, default=24)
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--bucket-bytes", type=int, default=4 << 20, help="as for wrap")
parser.add_argument("--steps", type=int, default=15)
parser.add_argument("--threads", type=int, default=1, help="for computing, in each worker")
parser.add_argument("--label", default="", help="what the link is, for the record")
parser.add_argument("--out")
args = parser.parse_args()

tf.config.threading.set_intra_op_parallelism_threads(args.threads)
strategy = tf.distribute.get_strategy()
if args.engine == "strategy":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs

import keras  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.cli.bench.machine import machine  # noqa: E402
from grace_tf.keras import aggregator_of  # noqa: E402

if args.engine == "horovod":
    import horovod.tensorflow as hvd

    hvd.init()
if args.engine == "strategy":
    rank, size = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
else:
    group = grace_tf.init(timeout=300)
    rank, size = group.rank, group.size

KEYWORDS = {"bucket_bytes": args.bucket_bytes}
RATE = 1e-6


def made():
    """The model, with a wrapped optimizer."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [
            keras.layers.Dense(args.width, "relu", use_bias=False) for _ in range(args.layers)
        ]
        model = keras.Sequential([keras.Input((args.width,)), *layers])
        optimizer = grace_tf.wrap(keras.optimizers.SGD(RATE), args.method, **KEYWORDS)
        model.compile(optimizer, "mse", jit_compile=False)
    return model


class Pieces:
    """The parts of a step as functions to be timed.  All workers call them alike."""

    def __init__(self, batch: int) -> None:
        self.model, self.batch = made(), batch
        self._variables = list(self.model.trainable_variables)
        self._x = tf.random.stateless_normal([batch, args.width], [rank, 1])
        self._grads = [
            tf.random.stateless_normal(v.shape, [rank, i]) / 100
            for i, v in enumerate(self._variables)
        ]
        last = max(1, args.bucket_bytes // (4 * args.width**2))
        self.forward = self._function(self._loss)
        self.compute = self._function(lambda: self._update(self._own(), self._variables))
        self.exchange = self._function(lambda: self._send(self._grads, self._variables))
        self.last = self._function(lambda: self._send(self._grads[:last], self._variables[:last]))
        self.loop = self._function(lambda: self._send(self._own(), self._variables))

    def _function(self, step):
        return tf.function(lambda: strategy.run(step), autograph=False)

    def _loss(self):
        return tf.reduce_mean(tf.square(self.model(self._x, training=True)))

    def _own(self):
        with tf.GradientTape() as tape:
            loss = self._loss()
        return tape.gradient(loss, self._variables)

    def _send(self, grads, variables):
        self.model.optimizer.apply_gradients(zip(grads, variables))

    def _update(self, grads, variables):
        for grad, variable in zip(grads, variables):
            variable.assign_sub(RATE * grad)


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turn(functions: dict) -> dict:
    """The median seconds of each, called in turn; each begins on all workers at once."""
    times = {name: [] for name in functions}
    for i in range(args.steps + 2):
        for name, function in functions.items():
            together()
            taken = seconds(function)
            if i >= 2:
                times[name].append(taken)
    return {name: statistics.median(each) for name, each in times.items()}


def together() -> None:
    """Returns when all workers have come."""
    if args.engine != "strategy":
        grace_tf.barrier()
        return
    alike(1.0)


@tf.function
def _summed(value):
    def replica():
        return tf.distribute.get_replica_context().all_reduce("sum", value)

    return strategy.experimental_local_results(strategy.run(replica))[0]


def alike(number: float) -> float:
    """Worker 0's number on all workers."""
    mine = tf.constant(number if rank == 0 else 0.0)
    if args.engine == "strategy":
        return float(_summed(mine))
    variable = tf.Variable(mine)
    grace_tf.broadcast([variable])
    return float(variable)


class Batches(keras.callbacks.Callback):
    """The seconds between the ends of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())

    @property
    def median(self) -> float:
        each = [b - a for a, b in zip(self.ends[2:], self.ends[3:])]
        return statistics.median(each)


def fitted(batch: int) -> float:
    """The median seconds of a step of `fit`."""
    model, batches = made(), Batches()
    x = tf.random.stateless_normal([batch, args.width], [rank, 1])
    data = tf.data.Dataset.from_tensors((x, tf.zeros_like(x))).repeat(args.steps + 4)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    model.fit(data.with_options(options), epochs=1, verbose=0, callbacks=[batches])
    return batches.median


def main() -> None:
    batch = 64
    for _ in range(2):  # the second guess begins near the right one
        pieces = Pieces(batch)
        first = in_turn(
            {name: getattr(pieces, name) for name in ("forward", "compute", "exchange")}
        )
        wanted = batch * first["exchange"] / (first["compute"] - first["forward"])
        batch = max(1, round(alike(wanted)))
    pieces = Pieces(batch)
    names = "forward", "compute", "exchange", "last", "loop"
    times = in_turn({name: getattr(pieces, name) for name in names})
    announced = aggregator_of(pieces.model.optimizer).bytes_per_step
    times["fit"] = fitted(batch)
    least = max(times["compute"], times["forward"] + times["exchange"])
    excess = {how: (times[how] - times["last"]) / least for how in ("loop", "fit")}
    if rank:
        return
    told = ", ".join(f"{name} {1000 * taken:.0f} ms" for name, taken in times.items())
    print(f"{args.engine} {args.method} batch {batch}: {told}", flush=True)
    for how, ratio in excess.items():
        print(f"{how}: {ratio:.2f} times the least, beside the last bucket", flush=True)
    if args.out:
        head = {"machine": machine(size, args.steps, "normal / 100"), "link": args.label}
        row = {**vars(args), "batch": batch, "announced": announced, **times, "excess": excess}
        with open(args.out, "a") as file:
            file.write(json.dumps({**head, **row}) + "\n")


main()
