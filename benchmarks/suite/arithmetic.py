"""What follows from the records: steps to an accuracy, step times, and their product.

Training bits do not depend on the link, so the time to an accuracy over a link is the number of
steps, measured once, times the step time over that link.  The whole runs check this product.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.suite.arms import ALL, ALONE, ARMS
from benchmarks.suite.plan import TUNING_SEEDS, chosen_rate
from benchmarks.suite.tasks.outline import OUTLINES, Outline

Record = dict[str, Any]
Stages = Sequence[tuple[int, str]]
Targets = dict[int, float]  # by seed


@dataclasses.dataclass(frozen=True)
class Place:
    """Where step times are measured."""

    task: str
    engine: str
    workers: int
    link: str


def tests_of(records: Iterable[Record], task: str, arm: str, workers: int, link="") -> list[Record]:
    """The test runs of an arm that did not fail, by seed; all of the same number of steps.

    Where there are several numbers of steps, those of the largest.  Where the tuning runs choose
    another rate than they once did, runs with the former one do not count.
    """
    records = list(records)
    runs = [
        r
        for r in records
        if (r["kind"], r["task"], r["arm"]) == ("train", task, arm)
        and (r["workers"], r["link"]) == (workers, link)
        and r["seed"] not in TUNING_SEEDS
        and "error" not in r
    ]
    most = max((r["steps"] for r in runs), default=0)
    rate = chosen_rate(records, OUTLINES[task], ARMS[arm], workers, most)
    counted = (r for r in runs if r["steps"] == most and rate in (None, r["rate"]))
    return sorted(counted, key=lambda r: r["seed"])


def targets_of(records: Iterable[Record], task: Outline, workers: int) -> Targets:
    """What a run must reach to be as good as uncompressed training with the same data, by seed."""
    ends = {run["seed"]: run["metric"] for run in tests_of(records, task.name, "none", workers)}
    return {seed: task.target(end) for seed, end in ends.items() if end is not None}


def steps_to(task: Outline, run: Record, targets: Targets) -> float:
    """The step after which the metric was first as good as its target; infinite if it never was."""
    target = targets[run["seed"]]
    reached = (step for step, _, metric in run["curve"] if task.reaches(metric, target))
    return next(reached, math.inf)


def with_target(runs: Iterable[Record], targets: Targets) -> list[Record]:
    """The runs whose seed has a target."""
    return [run for run in runs if run["seed"] in targets]


def typical_steps(task: Outline, runs: Sequence[Record], targets: Targets) -> float:
    """The median over runs of `steps_to`; infinite where half of them or more never reach it."""
    steps = [steps_to(task, run, targets) for run in with_target(runs, targets)]
    return statistics.median_high(steps or [math.inf])


def step_times(records: Iterable[Record]) -> dict[tuple[Place, str, str], float]:
    """Milliseconds of a step by (place, arm, method): the median over repeats."""
    found: dict[tuple[Place, str, str], list[float]] = {}
    for r in records:
        if r["kind"] == "time" and "error" not in r:
            place = Place(r["task"], r["engine"], r["workers"], r["link"])
            found.setdefault((place, r["arm"], r["method"]), []).append(r["ms"])
    return {key: statistics.median(each) for key, each in found.items()}


def bytes_sent(records: Iterable[Record]) -> dict[tuple[Place, str, str], int]:
    """Bytes that a worker sends in a step, by (place, arm, method), where they are known."""
    return {
        (Place(r["task"], r["engine"], r["workers"], r["link"]), r["arm"], r["method"]): r["sent"]
        for r in records
        if r["kind"] == "time" and r.get("sent") is not None
    }


def seconds_of(first: float, last: float, stages: Stages, ms: dict[str, float]) -> float | None:
    """Seconds of the steps from `first` to before `last`, each as long as its stage's.

    Infinite where `last` is; None where the step time of a stage that takes part is not known.
    """
    if math.isinf(last):
        return math.inf
    total, ends = 0.0, [*(at for at, _ in stages[1:]), math.inf]
    for (begin, method), end in zip(stages, ends):
        steps = min(last, end) - max(first, begin)
        if steps > 0:
            if method not in ms:
                return None
            total += steps * ms[method] / 1000
    return total


def methods_at(times: dict[tuple[Place, str, str], float], place: Place, arm: str):
    """{method: ms} of an arm in a place."""
    return {m: ms for (p, a, m), ms in times.items() if (p, a) == (place, arm)}


def time_to_accuracy(
    records: Sequence[Record], place: Place, arm: str, targets: Targets
) -> float | None:
    """Seconds until an arm reaches its targets: infinite if it does not, None where it was not run.

    `auto` has whole runs over the link, whose own clock counts.
    """
    task = OUTLINES[place.task]
    if arm == "auto":
        runs = with_target(tests_of(records, place.task, arm, place.workers, place.link), targets)
        if place.engine != "group" or not runs:
            return None
        return statistics.median_high([_clock_at(task, run, targets) for run in runs])
    runs = with_target(tests_of(records, place.task, arm, place.workers), targets)
    if not runs:
        return None
    steps = typical_steps(task, runs, targets)
    stages = ARMS[arm].stages(runs[0]["steps"])
    return seconds_of(0, steps, stages, methods_at(step_times(records), place, arm))


def _clock_at(task: Outline, run: Record, targets: Targets) -> float:
    """The run's own seconds when it first is as good as its target."""
    target = targets[run["seed"]]
    reached = (s for _, s, metric in run["curve"] if task.reaches(metric, target))
    return next(reached, math.inf)


def free_codec(records: Sequence[Record], place: Place, arm: str, method: str) -> float | None:
    """Milliseconds of a step whose method sends the same bytes and takes no work: an estimate.

    The part of an uncompressed step that exchange adds to one without communication, in proportion
    to the bytes: alone + (none − alone) · bytes / bytes of none.  None where one is not measured.
    A measured step can be shorter: the backward pass may hide a larger part of a short exchange
    than of the long exchange of `none`.
    """
    times, sent = step_times(records), bytes_sent(records)
    base = (place, "none", "none")
    alone = times.get((dataclasses.replace(place, engine="group"), ALONE.name, ""))
    if alone is None or base not in times or base not in sent:
        return None
    own = sent.get((place, arm, method))
    return None if own is None else alone + (times[base] - alone) * own / sent[base]


def checks(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The whole runs over links beside steps × step time: {cell's fields, product, ratio}.

    `ratio` is the whole run's seconds over the product, less 1; None where a time is missing.
    """
    times, found = step_times(records), []
    for r in records:
        if r["kind"] != "train" or not r["link"] or r["arm"] == "auto" or "error" in r:
            continue
        ms = methods_at(times, Place(r["task"], r["engine"], r["workers"], r["link"]), r["arm"])
        # The clock leaves out the first step.
        product = seconds_of(1, r["steps"], ALL[r["arm"]].stages(r["steps"]), ms)
        ratio = None if product is None else r["seconds"] / product - 1
        found.append({**r, "product": product, "ratio": ratio})
    return found
