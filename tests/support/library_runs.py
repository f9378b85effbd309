"""The committed runs of the scripts of examples/libraries, and the table of them."""

import json
import statistics
from pathlib import Path

from grace_tf.cli import tables

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "libraries"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*_*.py"))
RUNS = ROOT / "benchmarks" / "results" / "libraries.jsonl"
METHODS = ("none", "qsgd", "eden:bits=4")


def runs(script):
    """What benchmarks/libraries.py wrote of a script: a dictionary for each training."""
    lines = RUNS.read_text(encoding="utf-8").splitlines()
    return [run for run in map(json.loads, lines) if run["script"] == script]


def mean_losses(script):
    """The mean over seeds of what each of METHODS ended with."""
    losses = {method: [] for method in METHODS}
    for run in runs(script):
        losses[run["method"]].append(run["loss"])
    return [statistics.mean(losses[method]) for method in METHODS]


def table():
    """A row for each script: its library's version, the seeds, losses and bytes."""
    rows = []
    for script in SCRIPTS:
        mine = runs(script)
        link = f"[`{script}`](../examples/libraries/{script}.py)"
        if not mine:
            rows.append([link, "not recorded yet", *([""] * 6)])
            continue
        versions = ", ".join(f"{name} {version}" for name, version in mine[0]["versions"].items())
        seeds = len({run["seed"] for run in mine})
        sent = {run["method"]: run["sent"] for run in mine}
        losses = [f"{loss:.3f}" for loss in mean_losses(script)]
        shares = [f"1/{sent['none'] / sent[method]:.1f}" for method in METHODS[1:]]
        rows.append([link, versions, str(seeds), *losses, *shares])
    columns = ["script", "run with", "seeds", *(f"loss, `{method}`" for method in METHODS)]
    return tables.markdown([*columns, "bytes, `qsgd`", "bytes, `eden:bits=4`"], rows)
