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


def losses(script):
    """The last losses of a script's trainings: for each method a list, with one loss a seed."""
    found = {method: [] for method in METHODS}
    for run in runs(script):
        found[run["method"]].append(run["loss"])
    return found


def spread(found):
    """The standard deviation of a loss between seeds, pooled over the methods."""
    return statistics.mean(map(statistics.variance, found.values())) ** 0.5


def _told(each):
    more = f" ± {statistics.stdev(each):.2g}" if len(each) > 1 else ""
    return f"{statistics.mean(each):.4g}{more}"


def table():
    """A row for each script: versions, number of seeds, losses, and its bytes beside `none`."""
    rows = []
    for script in SCRIPTS:
        mine = runs(script)
        link = f"[`{script}`](../examples/libraries/{script}.py)"
        if not mine:
            rows.append([link, "not recorded yet", *([""] * 7)])
            continue
        versions = ", ".join(f"{name} {version}" for name, version in mine[0]["versions"].items())
        seeds = len({run["seed"] for run in mine})
        sent = {run["method"]: run["sent"] for run in mine}
        chance = f"{statistics.mean(run['chance'] for run in mine):.4g}"
        means = map(_told, losses(script).values())
        shares = [f"1/{sent['none'] / sent[method]:.1f}" for method in METHODS[1:]]
        rows.append([link, versions, str(seeds), chance, *means, *shares])
    columns = ["script", "run with", "seeds", "by chance", *(f"loss, `{m}`" for m in METHODS)]
    return tables.markdown([*columns, *(f"bytes, `{m}`" for m in METHODS[1:])], rows)
