"""What crosses the link, and how long a step takes, per method.

Runs as one of several workers (TF_CONFIG), each on an interface of its own or all on one machine:

    python -m grace_tf run -np 2 benchmarks/link.py --elements 25000000 --out link.json

With `--horovod` the workers are Horovod's, started by its launcher or ours.

The gradient has the shapes of a small convolutional network scaled up to `--elements`, or those of
`--model`.  Bytes are the interface's own count (/proc/self/net/dev, sent, headers included; over
loopback both workers' together) over `--steps` steps after a warm-up.  Seconds are the median of
these steps, from gradients in memory to aggregates in memory.  "over" compares the bytes with what
the collectives tell (`CollectiveRecord.sent`).  Worker 0 prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.cli.bench.machine import machine
from grace_tf.cli.models import MODELS

METHODS = [
    "none",
    "fp16",
    "bf16",
    "signsgd",
    "qsgd",
    "topk:ratio=0.01",
    "randomk:ratio=0.01",
    "powersgd:rank=4",
    "acpsgd:rank=4",
    "threshold",
    "topk:ratio=0.01|values=qsgd:bits=4,rounding=nearest",
]


def shapes(elements: int) -> list[tuple[int, ...]]:
    """Kernels and biases, the larger the later, of about so many elements in all."""
    width = max(16, int((elements / 22.25) ** 0.5))
    kernels = [(3, 3, width // 4, width), (width, 4 * width), (4 * width, 4 * width)]
    return [shape for kernel in kernels for shape in (kernel, (kernel[-1],))]


def sent_bytes() -> tuple[int, str]:
    """Bytes sent so far over the busiest interface, and its name."""
    counts = {}
    for line in open("/proc/self/net/dev").read().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        counts[name.strip()] = int(numbers.split()[8])
    name = max(counts, key=counts.get)
    return counts[name], name


def measure(
    spec: str, grads: list[tf.Tensor], variables: list[tf.Variable], steps: int, keywords: dict
) -> dict:
    aggregate = grace_tf.Aggregator(spec, variables, **keywords)
    step = tf.function(lambda: aggregate(grads, variables))
    for _ in range(2):
        step()
    grace_tf.barrier()
    before, interface = sent_bytes()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    grace_tf.barrier()
    sent = (sent_bytes()[0] - before) / steps
    if interface == "lo":
        sent /= grace_tf.size()
    return {
        "method": spec,
        "announced": aggregate.bytes_per_step,
        "collectives": " and ".join(dict.fromkeys(handed.kind for handed in aggregate.handed)),
        "sent": round(sent),
        "over": sent / sum(handed.sent(grace_tf.size()) for handed in aggregate.handed) - 1,
        "seconds": statistics.median(times),
        "interface": interface,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--model", choices=sorted(MODELS), help="its shapes instead")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--exchange", default="auto", help="as for wrap")
    parser.add_argument("--bucket-bytes", type=int, help="as for wrap")
    parser.add_argument("--horovod", action="store_true", help="the workers are Horovod's")
    parser.add_argument("--label", default="", help="what the link is, for the record")
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.horovod:
        import horovod.tensorflow as hvd

        hvd.init()
    group = grace_tf.init(timeout=300)
    rng = np.random.default_rng(group.rank)
    wanted = MODELS[args.model]() if args.model else shapes(args.elements)
    grads = [tf.constant(rng.normal(size=s).astype(np.float32) / 100) for s in wanted]
    variables = [tf.Variable(tf.zeros(g.shape)) for g in grads]
    dense = 4 * sum(g.shape.num_elements() for g in grads)
    engine = "horovod" if args.horovod else "group"
    keywords = {"exchange": args.exchange, "bucket_bytes": args.bucket_bytes}
    rows = []
    for spec in args.methods:
        row = measure(spec, grads, variables, args.steps, keywords)
        row["ratio"] = dense / row["announced"]
        rows.append(row)
        if group.rank == 0:
            print(
                f"{row['method']:55} announced {row['announced']:>11,}  sent {row['sent']:>11,}  "
                f"{100 * row['over']:+6.2f} %  1/{row['ratio']:<7.2f} "
                f"{1000 * row['seconds']:8.1f} ms",
                flush=True,
            )
    if group.rank == 0 and args.out:
        here = machine(group.size, args.steps, "normal / 100")
        head = {
            "machine": here,
            "link": args.label,
            "dense": dense,
            "model": args.model,
            "engine": engine,
            **keywords,
        }
        with open(args.out, "w") as file:
            json.dump({**head, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
