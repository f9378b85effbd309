"""One worker of the benchmark: runs the cells of a launch one after the other.

Started by the runner, as `python -m grace_tf run -np N python -m benchmarks.suite.worker …`.
Worker 0 appends the record of each cell to the file of results as soon as the cell ends.

A training begins with the same weights in all arms and draws the same batches.  Its learning rate
rises for some steps and then falls by a cosine.  Worker 0 measures the metric, which the clock
leaves out: after every `every` steps of a test run, and at the end of a tuning run.  The clock runs
between the ends of steps, and from the begin of an epoch's first step; it leaves out the very first
step, which traces.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import os
import statistics
import time
from typing import Any

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--cells", required=True, help="a file with the cells of this launch")
parser.add_argument("--out", required=True, help="the file of results")
parser.add_argument("--timed-steps", type=int, default=10, help="of a round, after two others")
args = parser.parse_args()

from benchmarks.suite.plan import Cell, cell_of  # noqa: E402

with open(args.cells, encoding="utf-8") as given:
    CELLS = [cell_of(record) for record in json.load(given)]
ENGINE, WORKERS = CELLS[0].engine, CELLS[0].workers

import tensorflow as tf  # noqa: E402

THREADS = max(1, (os.cpu_count() or 1) // WORKERS)
tf.config.threading.set_intra_op_parallelism_threads(THREADS)
strategy = tf.distribute.get_strategy()
if ENGINE == "strategy":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs

import keras  # noqa: E402
import numpy as np  # noqa: E402

import grace_tf  # noqa: E402
from benchmarks.suite.arms import ALL, ALONE, PEERS  # noqa: E402
from benchmarks.suite.optimizers import plain  # noqa: E402
from benchmarks.suite.plan import TUNING_SEEDS  # noqa: E402
from benchmarks.suite.results import Results, append  # noqa: E402
from benchmarks.suite.tasks.outline import OUTLINES  # noqa: E402
from grace_tf.aggregation import kept_memory  # noqa: E402
from grace_tf.cli.bench.machine import machine  # noqa: E402
from grace_tf.keras import aggregator_of  # noqa: E402

if ENGINE == "horovod":
    import horovod.tensorflow as hvd

    hvd.init()
if ENGINE == "strategy":
    RANK = strategy.cluster_resolver.task_id
else:
    RANK = grace_tf.init(timeout=300).rank

HERE = machine(WORKERS, 1, "of trainings") | {"keras": keras.__version__}
UNTIMED = 2  # steps at the begin of each round
WARM_UP = 20  # steps in which the learning rate rises from 0, a tenth of shorter trainings
HELD: list[grace_tf.Aggregator] = []  # each counts only as long as it lives


class Clock(keras.callbacks.Callback):
    """The seconds of each step, and the metric after each epoch.

    Attributes:
      steps: the seconds of each.
      curve: [step, seconds of the steps so far but the first, metric], of worker 0 alone.
    """

    def __init__(self, task: Any = None, part: str = "") -> None:
        super().__init__()
        self._task, self._part = task, part
        self.steps: list[float] = []
        self.curve: list[tuple[int, float, float | None]] = []

    def on_epoch_begin(self, epoch, logs=None):
        self._first = True

    def on_train_batch_begin(self, batch, logs=None):
        if self._first:
            self._begun, self._first = time.perf_counter(), False

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self.steps.append(now - self._begun)
        self._begun = now

    def on_epoch_end(self, epoch, logs=None):
        if self._task and RANK == 0:
            found = finite(self._task.metric(self.model, self._part))
            self.curve.append((len(self.steps), round(sum(self.steps[1:]), 4), found))


def finite(number: float) -> float | None:
    """The number, or None for one that JSON does not have."""
    return round(float(number), 6) if math.isfinite(number) else None


def task_of(cell: Cell) -> Any:
    outline = OUTLINES[cell.task]
    return importlib.import_module(f"benchmarks.suite.tasks.{outline.module}").Task(
        outline, cell.seed
    )


def optimizer_of(cell: Cell, steps: int) -> Any:
    """The optimizer of an arm, ready for several workers."""
    arm, outline = ALL[cell.arm], OUTLINES[cell.task]
    kind = arm.optimizer(outline.optimizer)
    rate = cell.rate or arm.rates(outline.optimizer)[0]
    if arm.name == ALONE.name:
        rate = 0.0  # so that weights stay equal, as grace_tf demands at the end of each epoch
    rising = max(1, min(WARM_UP, steps // 10))
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - rising, warmup_target=rate, warmup_steps=rising
    )
    made = plain(kind, schedule)
    if cell.arm in PEERS:
        fp16 = cell.arm.endswith("fp16")
        compression = hvd.Compression.fp16 if fp16 else hvd.Compression.none
        return hvd.DistributedOptimizer(made, compression=compression)
    if arm.method is None:
        return made
    return grace_tf.wrap(made, cell.method or arm.schedule(steps))


def compiled(cell: Cell, task: Any, steps: int) -> keras.Model:
    keras.utils.set_random_seed(cell.seed)
    with strategy.scope():
        model = task.build()
        model.compile(optimizer_of(cell, steps), task.losses(), jit_compile=False)
    if cell.arm == ALONE.name:
        # Between workers a plain optimizer is refused unless an Aggregator reduces its gradients;
        # this one does so once, and never in a step, since nothing is to be exchanged there.
        variables = model.trainable_variables
        HELD.append(grace_tf.Aggregator("none"))
        HELD[-1]([tf.zeros(v.shape) for v in variables], variables)
    return model


def dataset(cell: Cell, task: Any) -> tf.data.Dataset:
    """This worker's batches without end."""

    def batches():
        return task.batches(RANK, WORKERS)

    x, y = next(batches())
    # A strategy deals out a dataset's batches in pieces, one to each worker, so each worker's own
    # batch is so many times as large as the piece that it takes of it.
    if ENGINE == "strategy":

        def batches():
            own = task.batches(RANK, WORKERS)
            while several := [*itertools.islice(own, WORKERS)]:
                yield tuple(np.concatenate(each) for each in zip(*several))

    signature = tuple(tf.TensorSpec((None, *each.shape[1:]), each.dtype) for each in (x, y))
    made = tf.data.Dataset.from_generator(batches, output_signature=signature)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # There is nothing to tune, and with the tuner `fit` may end up to a minute late: it waits until
    # the tuner's thread wakes.
    options.autotune.enabled = False
    return made.with_options(options)


def bytes_of(model: keras.Model, cell: Cell) -> dict[str, int | None]:
    """Bytes that a worker hands to collectives and sends in a step; None where nothing counts."""
    if ALL[cell.arm].method is None:
        return {"bytes": None, "sent": None}
    metrics = aggregator_of(model.optimizer).metrics()
    return {name: int(metrics[name]) for name in ("bytes", "sent")}


def trained(cell: Cell) -> dict[str, Any]:
    """One training: its curve, the last metric, seconds and bytes."""
    task, outline = task_of(cell), OUTLINES[cell.task]
    tunes = cell.seed in TUNING_SEEDS
    part = "validation" if tunes else "test"
    model, clock = compiled(cell, task, cell.steps), Clock(task, part)
    # A tuning run needs only the metric at its end.  Each measurement takes time, and the other
    # worker waits for it.
    every = cell.steps if tunes else min(outline.every, cell.steps)
    model.fit(
        dataset(cell, task),
        epochs=cell.steps // every,
        steps_per_epoch=every,
        callbacks=[clock],
        shuffle=False,
        verbose=0,
    )
    found = {"curve": clock.curve, "data": task.data, **bytes_of(model, cell)}
    found["first"] = round(clock.steps[0], 4)  # the seconds of the step that traces
    if cell.arm == "auto":
        found["choice"] = grace_tf.explain(model.optimizer).as_dict()["choice"]
    if RANK == 0:
        found |= {"metric": clock.curve[-1][2], "seconds": clock.curve[-1][1]}
    return found


def timed() -> None:
    """The rounds of all cells in turn, so that what disturbs one arm disturbs the others alike."""
    models: dict[tuple[str, str], Any] = {}
    task = task_of(CELLS[0])
    count = UNTIMED + args.timed_steps
    # Every round's steps come from one stream: the data do not matter for the time.
    data = dataset(CELLS[0], task)
    for cell in CELLS:
        key = cell.arm, cell.method
        if key not in models:
            models[key] = compiled(cell, task, 1_000_000)
            models[key].fit(data, steps_per_epoch=UNTIMED, shuffle=False, verbose=0)
    for cell in CELLS:  # once all are traced, so that no tracing disturbs a measurement
        model, clock = models[cell.arm, cell.method], Clock()
        model.fit(data, steps_per_epoch=count, callbacks=[clock], shuffle=False, verbose=0)
        middle = statistics.median(clock.steps[UNTIMED:])
        write(cell, {"ms": round(1000 * middle, 3), **bytes_of(model, cell)})


def write(cell: Cell, found: dict[str, Any]) -> None:
    if RANK == 0:
        versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
        machine_of = {name: HERE[name] for name in ("cpu", "isa", "date") if name in HERE}
        append(args.out, {**cell.record(), **found, **versions, **machine_of})


def main() -> None:
    kept_memory.keep_beside_generators()  # also for the arms without grace_tf
    if RANK == 0 and HERE not in Results(args.out).machines:
        append(args.out, HERE)
    if CELLS[0].kind == "time":
        timed()
        return
    for cell in CELLS:
        keras.backend.clear_session()
        write(cell, trained(cell))


if __name__ == "__main__":
    main()
