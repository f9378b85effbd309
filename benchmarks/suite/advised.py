"""Measures steps over links and compares them with what `advise` says of the same trainings.

    python -m benchmarks.suite.advised            # may be stopped, and goes on where it stopped
    python -m benchmarks.suite.advised --table    # of the results that there are

A place is a task, a number of workers and a link: three rates, two and four workers, two models.
In each place the same processes measure the steps of all methods in turn, as the suite does.  They
measure half of the repeats, and the other half after `advise`, since a machine is not equally fast
all the time.  `advise` runs as these workers do, started by the same launcher over such a link.  So
both see the same processors, shared by as many processes with as many threads each.  A line of
`--out` is one step time, as in the suite's own results; a line of `--advice` is the answer of
`advise` in a place.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.suite import plan, runner
from benchmarks.suite.arithmetic import Place, step_times
from benchmarks.suite.arms import ARMS
from benchmarks.suite.results import NotUsable, Results, append
from grace_tf.cli.tables import print_table, progress

FOLDER = runner.ROOT / "benchmarks" / "results"
TASKS = ("vision", "transformer")
NAMES = ("none", "bf16", "qsgd", "eden", "topk", "powersgd")
LINKS = ("100mbit", "1gbit", "10gbit")
Answers = dict[Place, dict[str, Any]]  # of `advise`, by place
NEAR = 0.03  # a recommended method that is no slower than this beside the fastest is right


def wanted(options: argparse.Namespace) -> plan.Wanted:
    """The cells of the suite that are measured."""
    return plan.Wanted(
        options.tasks, NAMES, options.workers, ["group"], options.links, repeats=options.repeats
    )


def places(asked: plan.Wanted) -> Iterator[Place]:
    """The places of these cells, in their order."""
    yield from dict.fromkeys(Place(c.task, c.engine, c.workers, c.link) for c in plan.times(asked))


def read(path: Path) -> Answers:
    """The answers of `advise` by place; of two of one place the later counts."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    records = [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]
    return {Place(**record["place"]): record for record in records}


def command(place: Place, out: str) -> list[str]:
    """What starts `advise` as the workers of a place."""
    model = f"{Path(__file__).with_name('advised_worker.py')}:{place.task}_{place.workers}"
    methods = [ARMS[name].method for name in NAMES]
    run = [sys.executable, "-m", "grace_tf", "run", "-np", str(place.workers), "--link", place.link]
    module = "benchmarks.suite.advised_worker"
    advise = [sys.executable, "-m", module, "--model", model, "--json", out]
    return [*run, *advise, "--quality", "aggressive", "--methods", *methods]


def ask(place: Place) -> dict[str, Any]:
    """The answer of `advise` in a place.  Raises NotUsable with its last line where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(runner.ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "advice.json")
        ran = subprocess.run(
            command(place, str(out)), capture_output=True, text=True, env=environment
        )
        if ran.returncode or not out.exists():
            last = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
            raise NotUsable(f"advise failed for {place.task} over {place.link}: {last}")
        answer = json.loads(out.read_text(encoding="utf-8"))
    # Results hold no path of the machine that made them.
    return {**answer, "subject": answer["subject"].replace(f"{runner.ROOT}/", "")}


def compared(
    records: Iterable[dict[str, Any]], answers: Answers
) -> dict[Place, list[tuple[str, float, float]]]:
    """(method, measured, predicted) in milliseconds by place, where both are known."""
    times, found = step_times(records), {}
    for place, answer in answers.items():
        said = {each["spec"]: 1000 * each["time"]["seconds"] for each in answer["methods"]}
        rows = [
            (arm.method, times[place, arm.name, arm.method], said[arm.method])
            for arm in (ARMS[name] for name in NAMES)
            if (place, arm.name, arm.method) in times and arm.method in said
        ]
        if rows:
            found[place] = rows
    return found


def error(measured: float, predicted: float) -> float:
    """By how much of the measured time a prediction is wrong."""
    return abs(predicted / measured - 1)


def is_right(rows: Sequence[tuple[str, float, float]], recommended: str) -> bool:
    """Whether the recommended method is the fastest measured one, or nearly."""
    measured = {method: ms for method, ms, _ in rows}
    return measured[recommended] <= (1 + NEAR) * min(measured.values())


def summary(found: dict[Place, list], answers: Answers) -> str:
    """The sentence on all cells."""
    errors = [error(ms, said) for rows in found.values() for _, ms, said in rows]
    right = sum(is_right(rows, answers[place]["spec"]) for place, rows in found.items())
    return (
        f"{len(errors)} cells in {len(found)} places: the median error is "
        f"{100 * statistics.median(errors):.0f} %, the largest {100 * max(errors):.0f} %; the "
        f"recommended method is the fastest, or within {100 * NEAR:.0f} % of it, in {right} places."
    )


def show(records: Iterable[dict[str, Any]], answers: Answers) -> None:
    """The table, under the sentence.  Raises NotUsable where nothing is compared yet."""
    found = compared(records, answers)
    if not found:
        raise NotUsable("Nothing has been measured and predicted yet.")
    rows = [
        [
            f"{place.task}, {place.workers} workers, {place.link}",
            method + " *" * (method == answers[place]["spec"]),
            f"{ms:.0f}",
            f"{said:.0f}",
            f"{100 * (said / ms - 1):+.0f} %",
        ]
        for place, mine in found.items()
        for method, ms, said in mine
    ]
    columns = ["place", "method (* recommended)", "measured, ms", "predicted, ms", "error"]
    print_table(summary(found, answers), columns, rows)


def main() -> None:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as by Ctrl-C
    try:
        results = Results(options.out)
        if not options.table:
            _measure(options, results, ask)
        show(results.records, read(Path(options.advice)))
    except NotUsable as error:
        raise SystemExit(f"{error}") from None
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on from here.", file=sys.stderr)
        raise SystemExit(130) from None


def _measure(options: argparse.Namespace, results: Results, ask: Callable) -> None:
    asked = wanted(options)
    cells = [*plan.times(asked, results.records)]
    known = read(Path(options.advice))
    left = [place for place in places(asked) if place not in known]
    with progress("step times", len(results.missing(cells)) + len(left)) as shown:
        for place in places(asked):
            here = [c for c in cells if Place(c.task, c.engine, c.workers, c.link) == place]
            if place in left:
                first = [cell for cell in here if cell.repeat < options.repeats // 2]
                runner.run(first, results, shown)
                name = f"{place.task}, {place.workers} workers over {place.link}: advise"
                answer = {"place": vars(place), "load": os.getloadavg()[0], **ask(place)}
                append(options.advice, answer)
                shown.advance(name)
            runner.run(here, results, shown)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite.advised", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    several = {"nargs": "+", "type": int, "choices": plan.WORKERS, "default": plan.WORKERS}
    parser.add_argument("--workers", **several)
    parser.add_argument("--links", nargs="+", default=LINKS)
    parser.add_argument("--repeats", type=int, default=plan.REPEATS, help="of step times")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--out", default=str(FOLDER / "suite.jsonl"), help="step times")
    parser.add_argument("--advice", default=str(FOLDER / "advised.jsonl"))
    return parser


if __name__ == "__main__":
    main()
