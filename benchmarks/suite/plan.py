"""The cells of the benchmark: what is run, in which order, and what each is called.

A cell is one training, or one measurement of step times.  Which learning rate the test runs of an
arm have is known when its tuning runs are done, so trainings come in two rounds: `tuning`, and then
`tests`, which reads the results.  A cell whose record is there is not run again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.suite.arms import ALONE, ARMS, PEERS, Arm
from benchmarks.suite.tasks.outline import OUTLINES, Outline

LINKS = ("100mbit", "1gbit", "10gbit", "", "1gbit,50ms")  # "": as this machine is
ENGINES = ("group", "strategy", "horovod")
WORKERS = (2, 4)
SEEDS = (1, 2, 3)
TUNING_SEEDS = (100, 101)  # the seeds of the runs that choose a rate; no test run has them
REPEATS = 5
# Whole runs over a link, whose times must be those of steps × step time.
WHOLE = tuple(itertools.product(("100mbit", "1gbit"), ("none", "bf16", "eden")))
WHOLE_TASK, WHOLE_WORKERS, WHOLE_SEED = "vision", 2, 1
TRAINED_BY = "group"  # the engine of all trainings


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training (`kind` "train") or one measurement of step times ("time").

    Attributes:
      link: as for `grace_tf run --link`; "" is the machine's own.
      method: the spec of a "time" cell.  A training has the arm's, with its schedule.
      rate, seed, steps: of a training.  0 in a "time" cell.
      repeat: of a "time" cell, from 0.
    """

    kind: str
    task: str
    arm: str
    engine: str
    workers: int
    link: str = ""
    method: str = ""
    rate: float = 0.0
    seed: int = 0
    steps: int = 0
    repeat: int = 0

    def record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def launch(self) -> tuple[str, str, str, int, str]:
        """Cells of one launch of the workers are equal in this."""
        return self.kind, self.task, self.engine, self.workers, self.link


FIELDS = tuple(field.name for field in dataclasses.fields(Cell))


def cell_of(record: dict[str, Any]) -> Cell:
    """The cell that a record is of."""
    return Cell(**{name: record[name] for name in FIELDS})


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What of the whole benchmark is to be run."""

    tasks: Sequence[str] = tuple(OUTLINES)
    arms: Sequence[str] = (*ARMS, *PEERS)
    workers: Sequence[int] = WORKERS
    engines: Sequence[str] = ENGINES
    links: Sequence[str] = LINKS
    seeds: Sequence[int] = SEEDS
    repeats: int = REPEATS
    steps: int = 0  # of a training; 0: the task's own

    def outlines(self) -> list[Outline]:
        return [OUTLINES[name] for name in self.tasks]

    def steps_of(self, task: Outline) -> int:
        return self.steps or task.steps

    def trained(self, task: Outline) -> list[Arm]:
        """The arms that are trained on a task."""
        return [ARMS[n] for n in self.arms if n in ARMS and n not in task.left_out]


def tuning(wanted: Wanted) -> Iterator[Cell]:
    """The runs that choose each arm's learning rate."""
    for workers, task in itertools.product(wanted.workers, wanted.outlines()):
        for arm in wanted.trained(task):
            yield from _tuning(task, arm, workers, wanted.steps_of(task))


def tests(wanted: Wanted, results: Iterable[dict[str, Any]]) -> Iterator[Cell]:
    """The runs that count, of all arms whose rate the results have chosen; `auto` over every link.

    The whole runs over a link, which check the product of steps and step time, are in `times`.
    """
    records = list(results)
    for workers, task in itertools.product(wanted.workers, wanted.outlines()):
        for arm in wanted.trained(task):
            steps = wanted.steps_of(task)
            rate = chosen_rate(records, task, arm, workers, steps)
            if rate is None:
                continue
            # What auto chooses depends on the link, so only its runs over links say something.
            links = dict.fromkeys(["", *wanted.links]) if arm.name == "auto" else [""]
            for link, seed in itertools.product(links, wanted.seeds):
                yield _training(task, arm, workers, link, rate, seed, steps)


def chosen_rate(
    records: Iterable[dict[str, Any]], task: Outline, arm: Arm, workers: int, steps: int
) -> float | None:
    """The learning rate for the test runs.

    A rate is as good as the worse of its tuning runs.  The best rate is chosen; of equally good
    rates, the smallest.  A rate is ruled out if one of its runs has failed or has a metric that is
    not finite.  Returns None while runs are missing, and if all rates are ruled out.
    """
    cells = {*_tuning(task, arm, workers, steps)}
    found: dict[float, list[float | None]] = {}
    for record in records:
        if cell_of(record) in cells:
            found.setdefault(record["rate"], []).append(record.get("metric"))
    if sum(map(len, found.values())) < len(cells):
        return None
    good = {rate: metrics for rate, metrics in sorted(found.items()) if None not in metrics}
    if not good:
        return None
    return max(good, key=lambda rate: min(task.sign * metric for metric in good[rate]))


def times(wanted: Wanted, results: Iterable[dict[str, Any]] = ()) -> Iterator[Cell]:
    """The measurements of step times.  Cells of one launch follow one another, repeat by repeat.

    The order is reversed in every second repeat, so that a machine which becomes slower affects all
    arms alike.  For the same reason the whole runs over a link come between the two halves of its
    repeats.  An arm has whole runs only after the results have chosen its rate.
    """
    records = list(results)
    places = itertools.product(wanted.outlines(), wanted.workers, wanted.links, _engines(wanted))
    for task, workers, link, engine in places:
        order = [*_timed(wanted, task, engine)]
        for repeat in range(wanted.repeats):
            if repeat == wanted.repeats // 2 and engine == TRAINED_BY:
                yield from _whole(wanted, task, workers, link, records)
            for arm, method in order if repeat % 2 == 0 else order[::-1]:
                yield Cell(
                    "time", task.name, arm.name, engine, workers, link, method, repeat=repeat
                )


def _engines(wanted: Wanted) -> list[str]:
    peers = [PEERS[name].engine for name in wanted.arms if name in PEERS]
    return list(dict.fromkeys([*wanted.engines, *(["ddp"] if "ddp" in peers else [])]))


def _timed(wanted: Wanted, task: Outline, engine: str) -> Iterator[tuple[Arm, str]]:
    if engine != "ddp":
        for arm in wanted.trained(task):
            if arm.name != "auto":  # it has no one method, so all its runs are whole
                for method in dict.fromkeys(m for _, m in arm.stages(wanted.steps_of(task))):
                    yield arm, method
    if engine == ALONE.engine:
        yield ALONE, ""
    for name in wanted.arms:
        if name in PEERS and PEERS[name].engine == engine and engine in task.peers:
            yield PEERS[name], ""


def _whole(
    wanted: Wanted, task: Outline, workers: int, link: str, records: list[dict[str, Any]]
) -> Iterator[Cell]:
    """The whole runs over a link."""
    if (task.name, workers) != (WHOLE_TASK, WHOLE_WORKERS):
        return
    steps = wanted.steps_of(task)
    for arm in wanted.trained(task):
        rate = chosen_rate(records, task, arm, workers, steps)
        if (link, arm.name) in WHOLE and rate is not None:
            yield _training(task, arm, workers, link, rate, WHOLE_SEED, steps)


def _tuning(task: Outline, arm: Arm, workers: int, steps: int) -> Iterator[Cell]:
    for rate, seed in itertools.product(arm.rates(task.optimizer), TUNING_SEEDS):
        yield _training(task, arm, workers, "", rate, seed, steps)


def _training(
    task: Outline, arm: Arm, workers: int, link: str, rate: float, seed: int, steps: int
) -> Cell:
    return Cell("train", task.name, arm.name, TRAINED_BY, workers, link, "", rate, seed, steps)
