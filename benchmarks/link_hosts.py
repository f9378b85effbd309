"""How long a step of several processes a host takes over a link, `hierarchical` against flat.

Runs on each host of a shaped link, which gives it TF_CONFIG with one worker a host:

    python benchmarks/link_hosts.py --processes 2 --label "1 Gbit/s" --out hosts.json

Each of them starts `--processes` processes, which all train together.  For each method two
aggregators take turns, step by step, so that what else the machine does disturbs both alike: one of
all processes as they are (flat), one with `hierarchical=True`.  Seconds are the medians over
`--steps` steps, of the slowest process in each, from gradients in memory to aggregates in memory;
`over` is the median of the ratios of neighbouring steps.  Bytes are what the interface of host 0
has sent in a step, headers included.  Worker 0 prints a table and adds a line of JSON to `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

METHODS = ["none", "qsgd", "topk:ratio=0.01"]


def start(count: int) -> int:
    """Starts the processes of this host; returns the first exit code that is not 0."""
    config = json.loads(os.environ["TF_CONFIG"])
    hosts = config["cluster"]["worker"]
    workers = []
    for address in hosts:
        host, _, port = address.rpartition(":")
        workers += [f"{host}:{int(port) + i}" for i in range(count)]
    begun = []
    for i in range(count):
        task = {"type": "worker", "index": config["task"]["index"] * count + i}
        mine = json.dumps({"cluster": {"worker": workers}, "task": task})
        words = [sys.executable, *sys.argv, "--processes", "0"]
        begun.append(subprocess.Popen(words, env={**os.environ, "TF_CONFIG": mine}))
    return next(filter(None, [each.wait() for each in begun]), 0)


def measure(spec, grads, variables, steps, group, keywords):
    import numpy as np
    import tensorflow as tf
    from link import sent_bytes

    import grace_tf

    ways = {}
    for name, hierarchical in (("flat", False), ("hierarchical", keywords["hierarchical"])):
        aggregate = grace_tf.Aggregator(
            spec, variables, **{**keywords, "hierarchical": hierarchical}
        )
        ways[name] = tf.function(lambda each=aggregate: each(grads, variables))
    seconds, sent = {name: [] for name in ways}, dict.fromkeys(ways, 0)
    for i in range(2 + steps):
        for name, step in ways.items():
            grace_tf.barrier()
            before = sent_bytes()[0]
            begun = time.perf_counter()
            step()
            took = time.perf_counter() - begun
            slowest = group.handshake([round(1e9 * took)], "seconds").max() / 1e9
            if i >= 2:
                seconds[name].append(float(slowest))
                sent[name] += sent_bytes()[0] - before
    ratios = np.divide(seconds["hierarchical"], seconds["flat"])
    return {
        "method": spec,
        **{f"{name} seconds": statistics.median(each) for name, each in seconds.items()},
        **{f"{name} bytes": round(each / steps) for name, each in sent.items()},
        "over": float(np.median(ratios)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2, help="on each host; 0: this is one")
    parser.add_argument("--elements", type=int, default=6_000_000)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--bf16", action="store_true", help='hierarchical="bf16"')
    parser.add_argument("--bucket-bytes", type=int, help="as for wrap")
    parser.add_argument("--label", default="", help="what the link is, for the record")
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.processes:
        sys.exit(start(args.processes))

    import numpy as np
    import tensorflow as tf
    from link import shapes

    import grace_tf
    from grace_tf.cli.bench.machine import machine

    group = grace_tf.init(timeout=300)
    rng = np.random.default_rng(group.rank)
    wanted = shapes(args.elements)
    grads = [tf.constant(rng.normal(size=s).astype(np.float32) / 100) for s in wanted]
    variables = [tf.Variable(tf.zeros(g.shape)) for g in grads]
    keywords = {
        "hierarchical": "bf16" if args.bf16 else True,
        "bucket_bytes": args.bucket_bytes,
    }
    rows = []
    for spec in args.methods:
        row = measure(spec, grads, variables, args.steps, group, keywords)
        rows.append(row)
        if group.rank == 0:
            print(
                f"{spec:30} flat {1000 * row['flat seconds']:8.1f} ms {row['flat bytes']:>11,} B  "
                f"hierarchical {1000 * row['hierarchical seconds']:8.1f} ms "
                f"{row['hierarchical bytes']:>11,} B  {row['over']:.2f} x",
                flush=True,
            )
    if group.rank == 0 and args.out:
        head = {
            "machine": machine(group.size, args.steps, "normal / 100"),
            "link": args.label,
            "hosts": len(set(group.hosts)),
            "dense": 4 * sum(g.shape.num_elements() for g in grads),
            **keywords,
        }
        with open(args.out, "a") as file:
            file.write(json.dumps({**head, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
