"""A worker's whole step beside that of GRACE, the framework that this one succeeds.

    git clone https://github.com/sands-lab/grace
    python benchmarks/grace.py --grace grace --json benchmarks/results/grace.json
    python benchmarks/grace.py --grace grace --json benchmarks/results/grace.json --untimed

GRACE's step is its own compressor's code, run by a `tf.function` of today's TensorFlow: compensate,
compress, update the residual, decompress what came, aggregate.  Ours is an `Aggregator` in a
`tf.function`.  Both run alone on the same gradient, one matrix, with the same hyperparameters, with
a residual where GRACE's authors ran the method with one, on two threads.  Times are medians of
interleaved repeats.  GRACE's u8bit and sketch need tensorflow-probability and are left out without.

The error is that of one compression of the same input without memory, ‖decompressed - x‖² / ‖x‖²,
the mean of some draws, on normal values and on values with a heavy tail (Student's t, 3 degrees of
freedom), a million each, all times 1e-3: what GRACE's inceptionn and threshold send depends on the
scale.  The bytes are those of one payload of the same inputs.  With `--untimed` errors and bytes
are measured anew, and the times in the file stay.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.cli.bench.machine import machine, seconds
from grace_tf.cli.tables import print_table, progress

DRAWS = 20  # compressions that an error is the mean of

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


class Zeros:
    """Replaces tf.Variable in GRACE's inceptionn, which makes new variables in each step."""

    def __init__(self, values: tf.Tensor, trainable: bool) -> None:
        self.values = values

    def assign(self, values: tf.Tensor) -> tf.Tensor:
        return values


def scatter_update(held: Any, indices: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    held = held.values if isinstance(held, Zeros) else held
    return tf.tensor_scatter_nd_update(held, indices[:, None], values)


@contextlib.contextmanager
def tensorflow_1(name: str) -> Iterator[None]:
    """What GRACE's code of this method needs to run in a function of today's TensorFlow."""
    names = {"mod": tf.math.floormod, "trainable_variables": lambda: []}
    if name == "inceptionn":
        names |= {"Variable": Zeros, "scatter_update": scatter_update}
    if name == "u8bit":  # its largest element gets a code that its table of 128 does not have
        gather = tf.gather
        names["gather"] = lambda codes, i: gather(codes, tf.clip_by_value(i, 0, 127))
    with contextlib.ExitStack() as patches:
        for each, value in names.items():
            patches.enter_context(mock.patch.object(tf, each, value, create=True))
        step = mock.patch.object(tf.train, "get_global_step", lambda: tf.constant(0), create=True)
        patches.enter_context(step)
        yield


class Grace:
    """GRACE's compressor of this name, for gradients of one shape."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        class_name, arguments, *_ = PAIRS[name]
        self._name = name
        with tensorflow_1(name):
            module = importlib.import_module(f"grace_dl.tensorflow.compressor.{name}")
            self._compressor = getattr(module, class_name)(*arguments)
        if name == "signum":
            self._compressor.momentum["gradient"] = tf.Variable(tf.zeros(shape))
        self.aggregate = self._compressor.aggregate

    def compress(self, x: tf.Tensor) -> tuple[Any, Any]:
        with tensorflow_1(self._name):
            return self._compressor.compress(x, "gradient")

    def decompress(self, payload: Any, ctx: Any) -> tf.Tensor:
        with tensorflow_1(self._name):
            return self._compressor.decompress(payload, ctx)


def theirs(name: str, shape: tuple[int, ...]) -> Callable[[tf.Tensor], tf.Tensor]:
    """GRACE's step of one variable, alone."""
    compressor, residual = Grace(name, shape), PAIRS[name][3]
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
        payload, ctx = compressor.compress(x)
        update(x, payload, ctx)
        return compressor.aggregate([compressor.decompress(payload, ctx)]) / 1.0

    return step


def ours(
    name: str, shape: tuple[int, ...], memory: str | None = None
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Our step of one variable, alone; with this memory, or with the one that GRACE's has."""
    _, _, hyperparameters, residual = PAIRS[name]
    memory = memory or ("residual" if residual and name != "dgc" else "auto")
    variable = tf.Variable(tf.zeros(shape))
    aggregate = grace_tf.Aggregator(name, [variable], memory=memory, **hyperparameters)
    return lambda x: aggregate([x], [variable])[0]


def bytes_of(payload: Any) -> tf.Tensor:
    """What GRACE sends: the tensors of a payload as they are, without the context."""
    parts = tf.nest.flatten(payload)
    return tf.add_n([tf.size(part) * part.dtype.size for part in parts])


def errors_and_bytes(name: str) -> dict[str, float]:
    """Of GRACE's and of our compression of the same inputs, the bytes by element."""
    shape = (1000, 1000)
    draw = np.random.default_rng(1)
    inputs = {"normal": draw.normal(size=shape), "heavy": draw.standard_t(3, size=shape)}
    compressor, own = Grace(name, shape), tf.function(ours(name, shape, "none"), autograph=False)

    def once(x):
        return compressor.decompress(*compressor.compress(x))

    def sent(x):
        return bytes_of(compressor.compress(x)[0])

    once, sent = (tf.function(each, autograph=False) for each in (once, sent))
    mine, found = grace_tf.get(name, **PAIRS[name][2]).nbytes(tf.TensorSpec(shape)), {}
    for kind, x in inputs.items():
        x = tf.constant(1e-3 * x, tf.float32)
        for whose, function, count in (("grace", once, sent(x)), ("ours", own, mine)):
            drawn = [tf.norm(function(x) - x) ** 2 / tf.norm(x) ** 2 for _ in range(DRAWS)]
            found[f"{whose}_error_{kind}"] = float(np.mean(drawn))
            found[f"{whose}_bytes_{kind}"] = int(count) / x.shape.num_elements()
    return found


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
            rows[-1] |= {"times_as_fast": grace / own, **errors_and_bytes(name)}
            shown.advance(f"{name}: {grace / own:.1f} times as fast")
    return rows


def again(path: Path, names: list[str]) -> None:
    """Measures errors and bytes of these methods anew in a file of results."""
    held = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in held["rows"] if row["method"] in names]
    with progress("grace", len(rows)) as shown:
        for row in rows:
            row |= errors_and_bytes(row["method"])
            shown.advance(row["method"])
    path.write_text(json.dumps(held, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grace", required=True, help="a checkout of GRACE")
    parser.add_argument("--methods", nargs="+", default=list(PAIRS), choices=list(PAIRS))
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="the numbers")
    parser.add_argument(
        "--untimed",
        action="store_true",
        help="anew, errors and bytes alone: the file keeps its times",
    )
    options = parser.parse_args()
    if options.untimed and not options.json:
        parser.error("--untimed needs --json")
    sys.path.insert(0, str(Path(options.grace).resolve()))
    tf.config.threading.set_intra_op_parallelism_threads(2)
    names = [name for name in options.methods if name in grace_tf.available()]
    if options.untimed:
        return again(Path(options.json), names)
    rows = measure(names, options.elements, options.repeats)
    cells = [
        [
            row["method"],
            f"{row['grace_ms']:.0f}",
            f"{row['ours_ms']:.1f}",
            f"{row['times_as_fast']:.1f}",
            *(f"{row[key]:.3g}" for key in row if "error" in key),
        ]
        for row in rows
    ]
    columns = ["method", "GRACE, ms", "grace_tf, ms", "times as fast", "GRACE's error", "ours"]
    columns += ["GRACE's, heavy tail", "ours, heavy tail"]
    print_table(f"A whole step of {options.elements:,} elements, alone", columns, cells)
    if options.json:
        here = machine(1, options.repeats, f"normal * 1e-3, {options.elements:,} elements")
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": here, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
