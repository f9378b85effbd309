"""The committed runs of the scripts of examples/libraries, and what is told about them."""

import json
import statistics
from pathlib import Path

from grace_tf.cli import tables

RUNS = Path(__file__).parents[2] / "benchmarks" / "results" / "libraries.jsonl"
METHODS = ("none", "qsgd", "eden:bits=4")


def runs():
    """What benchmarks/libraries.py wrote: a dictionary for each training."""
    return [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]


def losses_of(script, method):
    """The losses that a script ended with, one a seed."""
    return [r["loss"] for r in runs() if (r["script"], r["method"]) == (script, method)]


def noise_of(script):
    """How far the losses of seeds lie apart without compression."""
    losses = losses_of(script, "none")
    return max(losses) - min(losses)


def table():
    """A row for each script: its library's version, losses and bytes."""
    rows = []
    for script in dict.fromkeys(run["script"] for run in runs()):
        mine = [run for run in runs() if run["script"] == script]
        versions = ", ".join(f"{name} {version}" for name, version in mine[0]["versions"].items())
        cells = [f"[`{script}`](../examples/libraries/{script}.py)", versions]
        none = losses_of(script, "none")
        cells.append(f"{statistics.mean(none):.3f} ({min(none):.3f} … {max(none):.3f})")
        cells += [f"{statistics.mean(losses_of(script, m)):.3f}" for m in METHODS[1:]]
        sent = {run["method"]: run["sent"] for run in mine}
        cells += [f"1/{sent['none'] / sent[m]:.1f}" for m in METHODS[1:]]
        rows.append(cells)
    columns = ["script", "run with", "loss, `none` (lowest … highest)", "`qsgd`", "`eden:bits=4`"]
    return tables.markdown([*columns, "bytes, `qsgd`", "bytes, `eden:bits=4`"], rows)
