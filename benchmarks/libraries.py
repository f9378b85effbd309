"""Trains with the libraries of examples/libraries, and writes what each training ended with.

    python benchmarks/libraries.py                         # all scripts, seeds and methods
    python benchmarks/libraries.py keras_vae --seeds 1 2

Each script runs in two processes.  Its lines replace those of the same
script, method and seed in --out.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "libraries"
# The packages that decide how a script runs, by how its name begins.
VERSIONS = {
    "keras_hub": ("keras-hub", "keras"),
    "keras": ("keras",),
    "model_garden": ("tf-models-official", "tf_keras"),
    "probability": ("tensorflow-probability", "tf_keras"),
    "recommenders": ("tensorflow-recommenders", "tf_keras"),
    "segmentation": ("segmentation-models", "tf_keras"),
}


def trained(script: str, methods: list[str], seeds: list[str]) -> list[dict[str, Any]]:
    """What the two workers of a script said of each training, together."""
    words = [sys.executable, "-m", "grace_tf", "run", "-np", "2", str(FOLDER / f"{script}.py")]
    words += ["--json", "--methods", *methods, "--seeds", *seeds]
    run = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    lines = re.findall(r"^(?:\[1\] )?(\{.*\})$", run.stdout, re.MULTILINE)
    told = [json.loads(line) for line in lines]
    family = next(name for name in VERSIONS if script.startswith(name))
    versions = {name: metadata.version(name) for name in VERSIONS[family]}
    found = []
    for first in (one for one in told if one["worker"] == 0):
        same = [one for one in told if all(one[k] == first[k] for k in ("method", "seed"))]
        shas = [one["sha"] for one in sorted(same, key=lambda one: one["worker"])]
        numbers = {name: first[name] for name in ("method", "seed", "loss", "sent")}
        found.append({"script": script, **numbers, "shas": shas, "versions": versions})
    return found


def key(run: dict[str, Any]) -> tuple[str, str, int]:
    return run["script"], run["method"], run["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [path.stem for path in sorted(FOLDER.glob("*_*.py"))]
    parser.add_argument("scripts", nargs="*", default=every)
    parser.add_argument("--methods", nargs="+", default=["none", "qsgd", "eden:bits=4"])
    parser.add_argument("--seeds", nargs="+", default=["1", "2", "3", "4"])
    parser.add_argument("--out", default=ROOT / "benchmarks/results/libraries.jsonl", type=Path)
    options = parser.parse_args()
    failed = []
    for script in options.scripts:
        try:
            found = trained(script, options.methods, options.seeds)
        except subprocess.CalledProcessError as error:
            failed.append(script)
            print(script, error, flush=True)
            continue
        before = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
        runs = {key(run): run for run in map(json.loads, before.splitlines())}
        runs.update((key(run), run) for run in found)
        lines = (json.dumps(runs[each]) + "\n" for each in sorted(runs))
        options.out.write_text("".join(lines), encoding="utf-8")
        print(script, *(f"{run['method']} {run['loss']:.4f}" for run in found), flush=True)
    if failed:
        sys.exit(f"These scripts failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
