"""Runs the benchmark, or makes docs/benchmarks.md of its results.

    python -m benchmarks.suite                    # everything, which takes a day or more
    python -m benchmarks.suite --tasks vision --arms none bf16 eden --workers 2 --only accuracy
    python -m benchmarks.suite --report

It may be stopped at any time; the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import signal
import sys
from collections.abc import Sequence

from benchmarks.suite import plan, runner
from benchmarks.suite.arms import ARMS, PEERS
from benchmarks.suite.results import NotUsable, Results
from benchmarks.suite.tasks.outline import OUTLINES
from grace_tf.cli.tables import print_table, progress

RESULTS = runner.ROOT / "benchmarks" / "results" / "suite.jsonl"
PARTS = ("accuracy", "times")


def wanted_of(options: argparse.Namespace) -> tuple[plan.Wanted, list[str]]:
    """(what can be run here, a sentence for all that cannot)."""
    tasks, no_data = runner.tasks_here(options.tasks)
    engines, no_engine = runner.engines_here(options.engines)
    peers = [name for name in options.peers if "times" in options.only]
    peers, no_peer = runner.peers_here(peers, importlib.metadata.version("keras"))
    links = ["" if link == "unshaped" else link for link in options.links]
    wanted = plan.Wanted(
        tasks,
        [*options.arms, *peers],
        options.workers,
        engines,
        links,
        options.seeds,
        options.repeats,
        options.steps,
    )
    return wanted, [*no_data, *no_engine, *no_peer]


def counted(wanted: plan.Wanted, results: Results, parts: Sequence[str]) -> list[list[str]]:
    """Rows of (what, cells, of them done); of test runs those of arms whose rate is chosen."""
    rounds = {}
    if "accuracy" in parts:
        rounds["choosing rates"] = [*plan.tuning(wanted)]
        rounds["test runs"] = [*plan.tests(wanted, results.records)]
    if "times" in parts:
        rounds["step times"] = [*plan.times(wanted, results.records)]
    return [
        [name, str(len(cells)), str(len(cells) - len(results.missing(cells)))]
        for name, cells in rounds.items()
    ]


def main() -> None:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as by Ctrl-C
    try:
        _obey(options)
    except NotUsable as error:
        raise SystemExit(f"{error}") from None
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on from here.", file=sys.stderr)
        raise SystemExit(130) from None


def _obey(options: argparse.Namespace) -> None:
    results = Results(options.out)
    if options.report:
        if not results.records:
            raise SystemExit(f"There are no results in {options.out}.")
        from benchmarks import auto
        from benchmarks.suite import advised, report

        answers = advised.read(results.path.with_name("advised.jsonl"))
        report.write(results, answers, auto.read(results.path.with_name("auto.jsonl")))
        return
    wanted, said = wanted_of(options)
    for line in said:
        print(line, file=sys.stderr)
    if not options.plan:
        if "accuracy" in options.only:
            cells = [*plan.tuning(wanted)]
            _run("choosing rates", cells, results, options.again)
            _run("test runs", [*plan.tests(wanted, results.records)], results, options.again)
        if "times" in options.only:
            cells = [*plan.times(wanted, results.records)]
            _run("step times", cells, results, options.again)
    print_table("Cells", ["", "cells", "done"], counted(wanted, results, options.only))


def _run(title: str, cells: list[plan.Cell], results: Results, again: bool) -> None:
    with progress(title, len(results.missing(cells, again))) as shown:
        runner.run(cells, results, shown, again)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite", description=__doc__.splitlines()[0]
    )

    def several(name: str, known: Sequence, help: str, **more) -> None:
        parser.add_argument(name, nargs="+", default=[*known], metavar="NAME", help=help, **more)

    several("--tasks", OUTLINES, "only these", choices=[*OUTLINES])
    several("--arms", ARMS, "only these", choices=[*ARMS])
    parser.add_argument("--peers", nargs="*", default=[*PEERS], choices=[*PEERS], metavar="NAME")
    several("--workers", plan.WORKERS, "so many workers", type=int)
    several("--engines", plan.ENGINES, "for step times", choices=plan.ENGINES)
    links = [link or "unshaped" for link in plan.LINKS]
    several("--links", links, "such as 1gbit,50ms, or unshaped")
    several("--seeds", plan.SEEDS, "of the test runs", type=int)
    several("--only", PARTS, "accuracy, times", choices=PARTS)
    parser.add_argument("--repeats", type=int, default=plan.REPEATS, help="of step times")
    parser.add_argument("--steps", type=int, default=0, help="of a training; by default the task's")
    parser.add_argument("--again", action="store_true", help="run what has failed once more")
    parser.add_argument("--plan", action="store_true", help="only say how many cells there are")
    parser.add_argument("--report", action="store_true", help="make docs/benchmarks.md, run none")
    parser.add_argument("--out", default=str(RESULTS), help="the file of results")
    return parser


if __name__ == "__main__":
    main()
