"""How much more memory a training holds at most when its gradients are compressed, per method.

    python benchmarks/memory.py --out memory.json

Each method trains the model in a process of its own, alone.  Unless `--image` and `--batch` say
otherwise, images are so small that the gradients and not the activations decide: that is the worst
case.  With images of usual size activations take the most, and they are gone when gradients are
exchanged.  The figure is the most that TensorFlow's allocator of the host held
at once in a step, above that of the plain optimizer, in multiples of the gradient; a share of it is
the method's own state.  The allocator hands out pieces of up to twice what is asked for, and that
counts.  The second figure counts what was asked for: the tensors themselves, as TensorFlow's
profiler recorded them.  The median of `--repeats` processes each, interleaved.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

METHODS = ["none", "fp16", "qsgd", "signsgd", "topk", "randomk", "threshold", "powersgd"]


def train(method: str, model_name: str, steps: int, image: int, batch: int) -> dict:
    """Trains here; the most that was held, the method's state and the gradient, in bytes."""
    import keras
    import numpy as np
    import tensorflow as tf

    import grace_tf
    from grace_tf.keras.classes import states

    keras.utils.set_random_seed(1)
    model = getattr(keras.applications, model_name)(
        weights=None, input_shape=(image, image, 3), classes=10
    )
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    if method != "plain":
        optimizer = grace_tf.wrap(optimizer, method)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    x = np.random.default_rng(0).normal(size=[batch * steps, image, image, 3])
    x, y = x.astype(np.float32), np.arange(batch * steps) % 10
    for _ in range(2):  # the first `fit` traces, the second is measured
        tf.config.experimental.reset_memory_stats("CPU:0")
        model.fit(x, y, batch_size=batch, verbose=0)
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    own = [] if method == "plain" else states(optimizer)
    state = sum(array.nbytes for arrays in own for array in arrays.values())
    held = sum(v.numpy().nbytes for v in [*model.variables, *optimizer.variables])
    return {
        "peak": peak,
        "asked": held + state + growth(lambda: model.fit(x, y, batch_size=batch, verbose=0)),
        "state": state,
        "gradient": 4 * model.count_params(),
    }


def growth(run: Callable[[], object]) -> int:
    """The largest number of bytes that tensors take during a run, less that at its beginning."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder, options):
            run()
        space = xplane_pb2.XSpace()
        space.ParseFromString(next(pathlib.Path(folder).rglob("*.xplane.pb")).read_bytes())
    changes = []
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                sign = {"MemoryAllocation": 1, "MemoryDeallocation": -1}.get(name)
                if sign:
                    stats = {plane.stat_metadata[s.metadata_id].name: s for s in event.stats}
                    when = 1000 * line.timestamp_ns + event.offset_ps
                    changes.append((when, sign * stats["requested_bytes"].int64_value))
    return max(itertools.accumulate(change for _, change in sorted(changes)))


def measured(method: str, args: argparse.Namespace) -> dict:
    command = [sys.executable, __file__, "--train", method, "--model", args.model]
    for name in ("steps", "image", "batch"):
        command += [f"--{name}", str(getattr(args, name))]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(printed.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ResNet50", help="of keras.applications")
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="SPEC")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--image", type=int, default=32, help="pixels a side")
    parser.add_argument("--batch", type=int, default=2, help="images a step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", help="the numbers as JSON")
    parser.add_argument("--train", metavar="SPEC", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        print(json.dumps(train(args.train, args.model, args.steps, args.image, args.batch)))
        return
    runs: dict[str, list[dict]] = {method: [] for method in ["plain", *args.methods]}
    for _ in range(args.repeats):
        for method, seen in runs.items():
            seen.append(measured(method, args))

    def median(method: str, what: str) -> float:
        return statistics.median(run[what] for run in runs[method])

    rows = []
    for method in args.methods:
        gradient, state = runs[method][0]["gradient"], runs[method][0]["state"]
        more = (median(method, "peak") - median("plain", "peak")) / gradient
        asked = (median(method, "asked") - median("plain", "asked")) / gradient
        rows.append({"method": method, "state": state / gradient, "more": more, "asked": asked})
        for name in ("more", "asked"):
            rows[-1][f"{name}_above_state"] = rows[-1][name] - rows[-1]["state"]
        print(
            f"{method:24} {more:6.2f} gradients more than plain, {asked:5.2f} of tensors alone; "
            f"above its state of {rows[-1]['state']:4.2f}: {rows[-1]['more_above_state']:5.2f} and "
            f"{rows[-1]['asked_above_state']:5.2f}",
            flush=True,
        )
    if args.out:
        from grace_tf.cli.bench.machine import machine

        here = machine(1, args.repeats, args.model)
        head = {
            "machine": here,
            "plain_peak": median("plain", "peak"),
            "gradient": gradient,
            "steps": args.steps,
        }
        head |= {"image": args.image, "batch": args.batch}
        with open(args.out, "w") as file:
            json.dump({**head, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
