"""Trains with the libraries of examples/libraries, and writes what each training ended with.

    python benchmarks/libraries.py                 # what --out does not have yet
    python benchmarks/libraries.py keras_vae --again

Each script runs in two processes, once for each seed; one run trains with all methods.  Its lines
replace those of the same script, method and seed in --out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "libraries"
LONGEST = 3600  # seconds of a run
# The packages, beside TensorFlow, that decide how a script runs, by how its name begins.
VERSIONS = {
    "keras_hub": ("keras-hub", "keras"),
    "keras": ("keras",),
    "model_garden": ("tf-models-official", "tf_keras"),
    "probability": ("tensorflow-probability", "tf_keras"),
    "recommenders": ("tensorflow-recommenders", "tf_keras"),
    "segmentation": ("segmentation-models", "tf_keras"),
}


def trained(script: str, methods: list[str], seed: int) -> list[dict[str, Any]]:
    """Runs a script in two workers.  Returns a record for each method.

    Raises RuntimeError if the script fails, or if its two workers print different losses.
    """
    words = [sys.executable, "-m", "grace_tf", "run", "-np", "2", "--timeout", str(LONGEST)]
    words += [str(FOLDER / f"{script}.py"), "--json", "--methods", *methods, "--seeds", str(seed)]
    run = subprocess.run(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if run.returncode:
        raise RuntimeError(f"exit code {run.returncode}, after this output: {run.stdout[-2000:]}")
    lines = re.findall(r"^(?:\[1\] )?(\{.*\})$", run.stdout, re.MULTILINE)
    told = [json.loads(line) for line in lines]
    family = next(name for name in VERSIONS if script.startswith(name))
    versions = {name: metadata.version(name) for name in VERSIONS[family]}
    on = {"tensorflow": tensorflow_version(), "python": platform.python_version()}
    found = []
    for first in (one for one in told if one["worker"] == 0):
        same = [one for one in told if all(one[k] == first[k] for k in ("method", "seed"))]
        if any(one["loss"] != first["loss"] for one in same):
            raise RuntimeError(f"{first['method']}: the workers tell different losses of one model")
        shas = [one["sha"] for one in sorted(same, key=lambda one: one["worker"])]
        numbers = {name: first[name] for name in ("method", "seed", "loss", "chance", "sent")}
        found.append({"script": script, **numbers, "shas": shas, "versions": versions, **on})
    return found


def tensorflow_version() -> str:
    """The version of TensorFlow.  It may be installed as tensorflow or as tensorflow-cpu."""
    names = metadata.packages_distributions()["tensorflow"]
    return metadata.version(next(name for name in names if name.startswith("tensorflow")))


def key(run: dict[str, Any]) -> tuple[str, str, int]:
    return run["script"], run["method"], run["seed"]


def recorded(path: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The records in a file, each under its `key`; none if there is no such file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {key(run): run for run in map(json.loads, text.splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [path.stem for path in sorted(FOLDER.glob("*_*.py"))]
    parser.add_argument("scripts", nargs="*", default=every)
    parser.add_argument("--methods", nargs="+", default=["none", "qsgd", "eden:bits=4"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--again", action="store_true", help="what --out has, too")
    parser.add_argument("--out", default=ROOT / "benchmarks/results/libraries.jsonl", type=Path)
    options = parser.parse_args()
    failed = []
    for script, seed in itertools.product(options.scripts, options.seeds):
        known = recorded(options.out)
        have = {method for name, method, number in known if (name, number) == (script, seed)}
        if have.issuperset(options.methods) and not options.again:
            continue
        try:
            found = trained(script, options.methods, seed)
        except RuntimeError as error:
            failed.append(f"{script} with seed {seed}")
            print(failed[-1], error, flush=True)
            continue
        # The file is read again, since another run of this program may have added lines to it.
        runs = recorded(options.out) | {key(run): run for run in found}
        lines = (json.dumps(runs[each]) + "\n" for each in sorted(runs))
        options.out.write_text("".join(lines), encoding="utf-8")
        losses = (f"{run['method']} {run['loss']:.4f}" for run in found)
        print(script, seed, *losses, f"by chance {found[0]['chance']:.4f}", flush=True)
    if failed:
        sys.exit(f"These runs failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
