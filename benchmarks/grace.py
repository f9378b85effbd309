"""A worker's whole step beside that of GRACE, the framework that this one succeeds.

    git clone https://github.com/sands-lab/grace
    python benchmarks/grace.py --grace grace --json benchmarks/results/grace.json

GRACE's step is its own compressor's code, run by a `tf.function` of today's TensorFlow: compensate,
compress, update the residual, decompress what came, aggregate.  Ours is an `Aggregator` in a
`tf.function`.  Both run alone on the same gradient, one matrix, with the same hyperparameters, with
a residual where GRACE's authors ran the method with one, on two threads.  Times are medians of
interleaved repeats.  GRACE's u8bit and sketch need tensorflow-probability and are left out without.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

import grace_tf
from grace_tf.cli.machine import machine, seconds
from grace_tf.cli.tables import print_table, progress

# name: (GRACE's class and its arguments, our hyperparameters, whether with a residual)
PAIRS: dict[str, tuple[str, tuple, dict[str, Any], bool]] = {
    "fp16": ("FP16Compressor", (), {}, False),
    "u8bit": ("U8bitCompressor", (), {}, True),
    "onebit": ("OneBitCompressor", (), {}, True),
    "signsgd": ("SignSGDCompressor", (), {}, False),
    "signum": ("SignumCompressor", (0.9,), {"momentum": 0.9}, False),
    "efsignsgd": ("EFSignSGDCompressor", (1.0,), {}, True),
    "qsgd": ("QSGDCompressor", (127,), {"levels": 127, "norm": "l2", "block": None}, False),
    "terngrad": ("TernGradCompressor", (), {}, False),
    "natural": ("NaturalCompressor", (), {}, False),
    "inceptionn": ("INCEPTIONNCompressor", (2e-10,), {}, False),
    "randomk": ("RandomKCompressor", (0.01,), {"ratio": 0.01}, True),
    "topk": ("TopKCompressor", (0.01,), {"ratio": 0.01}, True),
    "threshold": ("ThresholdCompressor", (0.01,), {"threshold": 0.01}, True),
    "dgc": ("DgcCompressor", (0.01,), {"ratio": 0.01}, True),
    "adaq": ("AdaqCompressor", (0.01,), {"ratio": 0.01}, True),
    "sketch": ("SketchCompressor", (64,), {"quantiles": 64}, True),
}


def theirs(name: str, shape: tuple[int, ...]) -> Callable[[tf.Tensor], tf.Tensor]:
    """GRACE's step of one variable, alone."""
    class_name, arguments, _, residual = PAIRS[name]
    module = importlib.import_module(f"grace_dl.tensorflow.compressor.{name}")
    compressor = getattr(module, class_name)(*arguments)
    kept = [tf.Variable(tf.zeros(shape)) for _ in range(2 if name == "dgc" else 1)]

    def compensate(x):
        if name == "dgc":  # its memory needs Horovod to be imported; this is what it computes
            u = kept[0].assign(0.9 * kept[0] + x)
            return kept[1].assign(kept[1] + u) + tf.zeros_like(x)
        return 1.0 * kept[0] + 1.0 * x if residual else x

    def update(x, payload, ctx):
        if name == "dgc":
            others = tf.reshape(tf.cast(tf.logical_not(ctx[1]), tf.float32), tf.shape(x))
            for each in kept:
                each.assign(each * others)
        elif residual:
            kept[0].assign(x - compressor.decompress(payload, ctx))

    def step(x):
        x = compensate(x)
        payload, ctx = compressor.compress(x, "gradient")
        update(x, payload, ctx)
        return compressor.aggregate([compressor.decompress(payload, ctx)]) / 1.0

    return step


def ours(name: str, shape: tuple[int, ...]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Our step of one variable, alone."""
    _, _, hyperparameters, residual = PAIRS[name]
    memory = "residual" if residual and name != "dgc" else "auto"
    variable = tf.Variable(tf.zeros(shape))
    aggregate = grace_tf.Aggregator(name, [variable], memory=memory, **hyperparameters)
    return lambda x: aggregate([x], [variable])[0]


def timed(step: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> Callable[[], Any]:
    function = tf.function(step, autograph=False).get_concrete_function(x)
    return lambda: function(x)


def measure(names: list[str], elements: int, repeats: int) -> list[dict[str, Any]]:
    """One row for each method that both can run."""
    columns = 5000
    shape = (elements // columns, columns)
    x = 1e-3 * tf.random.stateless_normal(shape, [1, 0])
    rows = []
    with progress("grace", len(names)) as shown:
        for name in names:
            try:
                pair = timed(theirs(name, shape), x), timed(ours(name, shape), x)
            except ImportError as error:
                shown.say(f"{name}: left out, GRACE's code does not run: {error}")
                continue
            times: tuple[list[float], list[float]] = ([], [])
            for repeat in range(-1, repeats):  # the first round is the warm-up
                for function, taken in zip(pair, times):
                    took = seconds(function)
                    if repeat >= 0:
                        taken.append(took)
            grace, own = map(statistics.median, times)
            rows.append({"method": name, "grace_ms": 1e3 * grace, "ours_ms": 1e3 * own})
            rows[-1]["times_as_fast"] = grace / own
            shown.advance(f"{name}: {grace / own:.1f} times as fast")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grace", required=True, help="a checkout of GRACE")
    parser.add_argument("--methods", nargs="+", default=list(PAIRS), choices=list(PAIRS))
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="the numbers")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(options.grace).resolve()))
    tf.config.threading.set_intra_op_parallelism_threads(2)
    names = [name for name in options.methods if name in grace_tf.available()]
    rows = measure(names, options.elements, options.repeats)
    cells = [
        [
            row["method"],
            f"{row['grace_ms']:.0f}",
            f"{row['ours_ms']:.1f}",
            f"{row['times_as_fast']:.1f}",
        ]
        for row in rows
    ]
    columns = ["method", "GRACE, ms", "grace_tf, ms", "times as fast"]
    print_table(f"A whole step of {options.elements:,} elements, alone", columns, cells)
    if options.json:
        here = machine(1, options.repeats, f"normal * 1e-3, {options.elements:,} elements")
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": here, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
