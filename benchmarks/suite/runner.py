"""Starts the workers for the cells that have no record yet, and shows how far it is.

The cells of one launch are run by the same processes, one after the other.  Where a launch fails,
the cell that it was at gets a record that says so, and the others are started anew.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.suite.plan import Cell
from benchmarks.suite.results import Results, append
from benchmarks.suite.tasks import sources
from benchmarks.suite.tasks.outline import OUTLINES
from grace_tf.cli.tables import Progress

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {"mnist": sources.mnist_file, "ratings": sources.ratings_file}
NEEDS = {"vision": "mnist", "batchnorm": "mnist", "neumf": "ratings"}
_LOOK_EVERY = 0.5  # seconds


def tasks_here(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """(the tasks whose data are installed, a sentence for each of the others)."""
    here, said = [], []
    for name in names:
        try:
            if name in NEEDS:
                SOURCES[NEEDS[name]]()
            here.append(name)
        except sources.NoData as missing:
            said.append(f"{name} is left out: {missing}.")
    return here, said


def engines_here(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """(the engines that are installed, a sentence for each of the others)."""
    needs = {"horovod": "horovod"}
    here = [n for n in names if n not in needs or importlib.util.find_spec(needs[n])]
    return here, [f"{n} is left out: it is not installed." for n in names if n not in here]


def peers_here(names: Sequence[str], keras: str) -> tuple[list[str], list[str]]:
    """(the peers that run here, a sentence for each of the others)."""
    here, said = [], []
    for name in names:
        if name.startswith("Horovod"):
            if not importlib.util.find_spec("horovod"):
                said.append(f"{name} is left out: it is not installed.")
            elif keras.startswith("3"):
                said.append(f"{name} is left out: Horovod's optimizer does not work on Keras 3.")
            else:
                here.append(name)
        elif importlib.util.find_spec("torch"):
            here.append(name)
        else:
            said.append(f"{name} is left out: there is no PyTorch (pip install torch).")
    return here, said


def command(cell: Cell, cells: Path, out: Path) -> list[str]:
    """The command that starts the workers of a launch."""
    module = "benchmarks.suite.ddp" if cell.engine == "ddp" else "benchmarks.suite.worker"
    link = ["--link", cell.link] if cell.link else []
    horovod = ["--horovod"] if cell.engine == "horovod" else []
    program = [sys.executable, "-m", module, "--cells", str(cells), "--out", str(out)]
    run = [sys.executable, "-m", "grace_tf", "run", "-np", str(cell.workers)]
    return [*run, *link, *horovod, *program]


def run(cells: Iterable[Cell], results: Results, shown: Progress, again: bool = False) -> None:
    """Runs each cell that has no result yet; with `again` also each cell that failed before.

    Raises NotUsable where another run writes to the same file.
    """
    with results.lock() as held:
        results.read()
        _run(results.missing(cells, again), results, shown, held)


def _run(missing: list[Cell], results: Results, shown: Progress, held: int) -> None:
    for _, group in itertools.groupby(missing, key=lambda cell: cell.launch):
        waiting = [*group]
        while waiting:
            results.repair()
            said = _launch(waiting, results.path, shown, held)
            results.repair()
            results.read()
            left = results.missing(waiting, again=True)
            if left:
                said = said or "the workers ended without a result"
                append(results.path, {**left[0].record(), "error": said})
                shown.say(f"{_name(left[0])} failed: {said}")
                shown.advance(_name(left[0]))
            waiting = left[1:]
    results.read()


def _launch(cells: list[Cell], out: Path, shown: Progress, held: int) -> str | None:
    """Runs the workers; None where all went well, else the last line that says something.

    `held` is the descriptor of the lock, which the launcher holds too.
    """
    log = out.with_suffix(".log")
    with tempfile.TemporaryDirectory() as folder, open(log, "w+", encoding="utf-8") as lines:
        wanted = Path(folder, "cells.json")
        wanted.write_text(json.dumps([cell.record() for cell in cells]), encoding="utf-8")
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        process = subprocess.Popen(
            command(cells[0], wanted, out.resolve()),
            cwd=ROOT,
            env=environment,
            stdout=lines,
            stderr=subprocess.STDOUT,
            pass_fds=[held],
        )
        seen, done = _size(out), 0
        while True:
            try:
                code = process.wait(_LOOK_EVERY)
            except subprocess.TimeoutExpired:
                code = None
            except KeyboardInterrupt:
                process.terminate()  # to end its workers; Ctrl-C has told it so already
                process.wait()
                raise
            if _size(out) != seen or code is not None:
                seen, before = _size(out), done
                done = len(cells) - len(Results(out).missing(cells, again=True))
                for cell in cells[before:done]:
                    shown.advance(_name(cell))
            if code is not None:
                break
        if code == 0:
            return None
        lines.seek(0)
        return _reason(lines.read(), code)


def _reason(text: str, code: int) -> str:
    """The line of a failed launch that says most: the last that names an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error" in line]
    return (errors or lines or [f"exit code {code}"])[-1][:400]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _name(cell: Cell) -> str:
    how = f"rate {cell.rate:g}, seed {cell.seed}" if cell.kind == "train" else "step time"
    link = f" over {cell.link}" if cell.link else ""
    return f"{OUTLINES[cell.task].name}, {cell.arm}, {cell.workers} × {cell.engine}{link}: {how}"
