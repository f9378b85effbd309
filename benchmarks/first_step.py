"""How long the first step takes with many variables, beside that of the plain optimizer.

    python benchmarks/first_step.py --out benchmarks/results/first-step.jsonl

The first step is traced, optimised by TensorFlow, compared between workers and run.  Every
measurement has processes of its own, each on one core: the plain optimizer, the wrapped one alone,
and the wrapped one in two workers.  They come in turn, and a ratio is of one turn, so that what
slows the machine for a while falls on both.  In front of a measurement a step of a few variables
loads what the first step of a process loads anyhow.

`seconds` include waiting; `cpu` is the processor time of worker 0, which other work on the machine
hardly changes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

METHODS = "none", "qsgd", "topk", "powersgd"

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--methods", nargs="+", default=list(METHODS))
parser.add_argument("--variables", type=int, default=1000)
parser.add_argument("--shape", type=int, nargs="+", default=[64, 32])
parser.add_argument("--repeats", type=int, default=3)
parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], choices=[1, 2])
parser.add_argument("--out")
parser.add_argument("--measure", help=argparse.SUPPRESS)  # the method, in a measuring process
args = parser.parse_args()


def measure(method: str) -> None:
    """Takes the first step of this process; prints its seconds, CPU seconds and nodes."""
    rank = 0
    if "TF_CONFIG" in os.environ:
        rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})

    import keras
    import tensorflow as tf

    import grace_tf
    from grace_tf.cli.bench.step import count_nodes

    if "TF_CONFIG" in os.environ:
        grace_tf.init(timeout=600)

    def step_of(count: int):
        keras.utils.set_random_seed(1)
        normal = tf.random.stateless_normal
        weights = [keras.Variable(normal(args.shape, [i, 0]), name=f"v{i}") for i in range(count)]
        optimizer = keras.optimizers.SGD(1e-3)
        if method != "plain":
            optimizer = grace_tf.wrap(optimizer, method)
        optimizer.build(weights)

        def step():
            values = [weight.value for weight in weights]
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(tf.square(value)) for value in values])
            optimizer.apply(tape.gradient(loss, values), weights)
            return loss

        return tf.function(step, autograph=False)

    step_of(3)()
    step = step_of(args.variables)
    if "TF_CONFIG" in os.environ:
        grace_tf.barrier()
    began, cpu = time.perf_counter(), time.process_time()
    float(step())
    taken = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    nodes = count_nodes(step.get_concrete_function().graph)
    if rank == 0:
        print(json.dumps({**taken, "nodes": nodes}), flush=True)


def taken(method: str, workers: int) -> dict:
    """The record of a measurement in processes of its own."""
    own = [__file__, "--measure", method, "--variables", str(args.variables)]
    own += ["--shape", *map(str, args.shape)]
    start = [sys.executable, "-m", "grace_tf", "run", "-np", "2", "--prefix", "never"]
    command = [*start, *own] if workers > 1 else [sys.executable, *own]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))


def main() -> None:
    kinds = [(method, workers) for workers in args.workers for method in args.methods]
    found: dict = {("plain", 1): [], **{kind: [] for kind in kinds}}
    for turn in range(args.repeats):
        for kind in found:
            found[kind].append(taken(*kind))
            told = f"{found[kind][-1]['seconds']:.1f} s, CPU {found[kind][-1]['cpu']:.1f} s"
            print(f"turn {turn}: {kind[0]}, {kind[1]} workers: {told}", flush=True)
    from grace_tf.cli.bench.machine import machine

    head = {"machine": machine(max(args.workers), args.repeats, "normal")}
    plain = found["plain", 1]
    rows = []
    for (method, workers), each in found.items():
        row = {"method": method, "workers": workers, "variables": args.variables}
        row.update(shape=args.shape, nodes=each[0]["nodes"])
        for what in ("seconds", "cpu"):
            row[what] = statistics.median(one[what] for one in each)
            row[f"{what}_ratio"] = statistics.median(a[what] / b[what] for a, b in zip(each, plain))
        rows.append(row)
        print(
            f"{method}, {workers} workers: {row['seconds']:.1f} s, {row['seconds_ratio']:.2f} times"
            f" plain; CPU {row['cpu']:.1f} s, {row['cpu_ratio']:.2f} times; {row['nodes']} nodes"
        )
    if args.out:
        with open(args.out, "a") as file:
            file.writelines(json.dumps({**head, **row}) + "\n" for row in rows)


if args.measure:
    measure(args.measure)
else:
    main()
