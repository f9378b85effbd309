"""docs/benchmarks.md: tables and pictures of the results that there are.

What was not run is called that; nothing is left out because of how it ended.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.suite import advised, arithmetic, pictures
from benchmarks.suite.arithmetic import Place, Record
from benchmarks.suite.arms import ALONE, ARMS, PEERS, Arm
from benchmarks.suite.plan import ENGINES, FIELDS, LINKS, cell_of
from benchmarks.suite.results import Results
from benchmarks.suite.tasks.outline import OUTLINES, Outline
from grace_tf.advice.link import parse_link
from grace_tf.cli.describe import bytes_text
from grace_tf.cli.tables import markdown

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOT_RUN = "not run"
TEXT = Path(__file__).with_name("page.md")  # the page up to its tables
NAMES = {"group": "plain processes", "strategy": "MWMS", "horovod": "Horovod", "ddp": "PyTorch"}


def write(
    results: Results, answers: advised.Answers, chosen: Sequence[Record], folder: Path = DOCS
) -> None:
    """Writes the page and its pictures into a folder, and prints where.

    `answers` are those of `advise` in the places that the results are of; `chosen` are the records
    of `benchmarks/auto.py`.
    """
    drawn = pictures.draw(results.records, answers, chosen, folder)
    page = folder / "benchmarks.md"
    page.write_text(text_of(results, answers, drawn), encoding="utf-8")
    print(page)


def text_of(
    results: Results, answers: advised.Answers, drawn: Sequence[tuple[str, str]] = ()
) -> str:
    """The page.  `drawn` are (file, what it shows) of the pictures."""
    records = results.records
    text = TEXT.read_text(encoding="utf-8")
    parts = [text.replace("{machines}", machines(results.machines))]
    parts += [f"![{title}]({file})\n\n" for file, title in drawn]
    for task in OUTLINES.values():
        parts.append(
            f"## {task.name.capitalize()}\n\n{task.title[:1].upper()}{task.title[1:]}.\n\n"
        )
        ours = [r for r in records if r["task"] == task.name]
        if not ours:
            parts.append("Not run.\n\n")
            continue
        for workers in sorted({r["workers"] for r in ours}):
            parts.append(f"### {task.name.capitalize()}, {workers} workers\n\n")
            for title, make in _TABLES.items():
                parts.append(f"{title}:\n\n{make(ours, task, workers)}\n\n")
    parts.append(f"## Whole runs\n\n{checks(records)}\n\n")
    parts.append(f"## What `advise` said\n\n{predictions(records, answers)}\n\n")
    parts.append(f"## Failed\n\n{failures(records)}\n")
    return "".join(parts)


def machines(found: Sequence[dict[str, Any]]) -> str:
    """A Markdown list of the machines that have measured the results, with their versions."""
    lines = dict.fromkeys(
        f"- {m['cpu']}, {m['cores']} cores, TensorFlow {m['tensorflow']}, Keras {m['keras']}, "
        f"Python {m['python']}, {m['date']}"
        for m in found
    )
    return "\n".join(["Measured on:", "", *lines, "", ""]) if lines else ""


def accuracies(records: Sequence[Record], task: Outline, workers: int) -> str:
    """A table by arm: the final metric, and the steps until it equals uncompressed training."""
    targets = arithmetic.targets_of(records, task, workers)
    rows = []
    for name in ARMS:
        runs = arithmetic.tests_of(records, task.name, name, workers)
        if name in task.left_out:
            rows.append([f"`{name}`", f"left out: {task.left_out[name]}", *[""] * 5])
        elif not runs:
            rows.append([f"`{name}`", NOT_RUN, *[""] * 5])
        else:
            found = [*_ends(runs), _rate(task, ARMS[name], runs), _sent(runs)]
            rows.append([f"`{name}`", *found, *_reached(task, runs, targets)])
    columns = ["arm", task.metric, "± of a run", "runs", "rate", "bytes a step"]
    return markdown([*columns, "steps to accuracy"], rows)


def _ends(runs: Sequence[Record]) -> tuple[str, str, str]:
    """The mean of the final metrics, their standard deviation, and the number of the runs."""
    ends, count = [run["metric"] for run in runs], str(len(runs))
    if None in ends:
        return "diverges", "", count
    spread = f"{statistics.stdev(ends):.3g}" if len(ends) > 1 else ""
    return _number(statistics.mean(ends)), spread, count


def _rate(task: Outline, arm: Arm, runs: Sequence[Record]) -> str:
    """The chosen rate, and whether it is the smallest or the largest of those that were tried."""
    rate, rates = runs[0]["rate"], arm.rates(task.optimizer)
    remarks = {min(rates): " (smallest)", max(rates): " (largest)"}
    return f"{rate:g}{remarks.get(rate, '')}"


def _sent(runs: Sequence[Record]) -> str:
    sent = runs[0]["bytes"]
    return bytes_text(sent) if sent is not None else ""


def _reached(task: Outline, runs: Sequence[Record], targets: arithmetic.Targets) -> list[str]:
    runs = arithmetic.with_target(runs, targets)
    if not runs:
        return [NOT_RUN]
    steps = arithmetic.typical_steps(task, runs, targets)
    reached = sum(math.isfinite(arithmetic.steps_to(task, run, targets)) for run in runs)
    said = "not reached" if math.isinf(steps) else f"{steps:.0f}"
    return [said if reached == len(runs) else f"{said} ({reached} of {len(runs)} runs)"]


def _number(metric: float) -> str:
    return f"{metric:.2f}" if abs(metric) >= 10 else f"{metric:.4f}"


def step_times(records: Sequence[Record], task: Outline, workers: int) -> str:
    """Milliseconds of a step by link, in parentheses with a codec that takes no time."""
    times = arithmetic.step_times(records)
    rows = []
    for engine in (*ENGINES, "ddp"):
        known = {(arm, method) for (place, arm, method) in times if place.engine == engine}
        order = [*ARMS, ALONE.name, *PEERS]
        for arm, method in sorted(known, key=lambda each: (order.index(each[0]), each[1])):
            cells = []
            for link in LINKS:
                place = Place(task.name, engine, workers, link)
                ms = times.get((place, arm, method))
                free = arithmetic.free_codec(records, place, arm, method)
                free = f" ({free:.0f})" if free is not None and arm not in ("none",) else ""
                cells.append(NOT_RUN if ms is None else f"{ms:.0f}{free}")
            rows.append([_engine_name(records, engine), f"`{method}`" if method else arm, *cells])
    if not rows:
        return "Not run."
    return markdown(["engine", "method", *map(link_name, LINKS)], rows)


def _engine_name(records: Sequence[Record], engine: str) -> str:
    """The name of the engine, then ", Keras 2" if all its steps were measured with Keras 2."""
    timed = [r for r in records if r["kind"] == "time" and r["engine"] == engine]
    old = all(r.get("keras", "").startswith("2.") for r in timed)
    return f"{NAMES[engine]}, Keras 2" if old else NAMES[engine]


def link_name(link: str) -> str:
    return str(parse_link(link)) if link else "unshaped"


def seconds(records: Sequence[Record], task: Outline, workers: int) -> str:
    """By link: seconds to the target accuracy in plain processes, and how much sooner than bf16."""
    targets = arithmetic.targets_of(records, task, workers)
    if not targets:
        return "Not run."
    rows = []
    for arm in ARMS:
        if arm in task.left_out:
            continue
        cells = []
        for link in LINKS:
            place = Place(task.name, "group", workers, link)
            own, half = (
                arithmetic.time_to_accuracy(records, place, name, targets) for name in (arm, "bf16")
            )
            cells.append(_seconds(own, half))
        rows.append([f"`{arm}`", *cells])
    return markdown(["arm", *map(link_name, LINKS)], rows)


def _seconds(own: float | None, half: float | None) -> str:
    if own is None:
        return NOT_RUN
    if math.isinf(own):
        return "not reached"
    sooner = f" ({half / own:.2f} ×)" if half is not None and math.isfinite(half) else ""
    return f"{own:.1f} s{sooner}"


def checks(records: Sequence[Record]) -> str:
    """Whole runs over a link beside the product of steps and step time."""
    rows = [
        [
            f"{c['task']}, `{c['arm']}`, {c['workers']} workers, {link_name(c['link'])}",
            f"{c['seconds']:.1f} s",
            NOT_RUN if c["product"] is None else f"{c['product']:.1f} s",
            NOT_RUN if c["ratio"] is None else f"{100 * c['ratio']:+.1f} %",
        ]
        for c in arithmetic.checks(records)
    ]
    if not rows:
        return "Not run."
    return markdown(["run", "its seconds", "steps × step time", "more than that"], rows)


def predictions(records: Sequence[Record], answers: advised.Answers) -> str:
    """Milliseconds of a step beside what `advise` computed of it, by place."""
    found = advised.compared(records, answers)
    if not found:
        return "Not run."
    methods = list(dict.fromkeys(method for rows in found.values() for method, _, _ in rows))
    table = []
    for place, rows in found.items():
        cells = {method: f"{ms:.0f}, {said:.0f}" for method, ms, said in rows}
        name = f"{place.task}, {place.workers} workers, {link_name(place.link)}"
        recommended = f"`{answers[place]['spec']}`"
        table.append([name, *(cells.get(m, NOT_RUN) for m in methods), recommended])
    columns = ["place", *(f"`{method}`" for method in methods), "recommended"]
    sentence = advised.summary(found, answers)
    return f"{sentence} In each cell: measured, computed.\n\n{markdown(columns, table)}"


def failures(records: Sequence[Record]) -> str:
    """The cells that ended with an error."""
    rows = []
    for r in records:
        if "error" in r:
            cell = cell_of(r)
            told = [f"{f} {getattr(cell, f)}" for f in FIELDS if getattr(cell, f)]
            rows.append([", ".join(told), r["error"]])
    return markdown(["cell", "last words"], rows) if rows else "None."


def choices(records: Sequence[Record], task: Outline, workers: int) -> str:
    """What auto chose over each link, how good the runs became, and how long a step took."""
    whole = {r["seed"]: r for r in arithmetic.tests_of(records, task.name, "none", workers)}
    rows = []
    for link in LINKS:
        runs = arithmetic.tests_of(records, task.name, "auto", workers, link)
        if not runs:
            rows.append([link_name(link), NOT_RUN, "", "", ""])
            continue
        ends = _ends(runs)[0]
        steps = f"{1000 * statistics.median(r['seconds'] / (r['steps'] - 1) for r in runs):.0f}"
        said = dict.fromkeys(run["choice"].split(",")[0].rstrip(".") for run in runs)
        rows.append([link_name(link), "; ".join(said), ends, _beside(task, runs, whole), steps])
    columns = ["link", "its choice", task.metric, "less that of `none`"]
    return markdown([*columns, "ms a step, comparing included"], rows)


def _beside(task: Outline, runs: Sequence[Record], whole: Mapping[int, Record]) -> str:
    """By how much the runs differ from those of `whole` with the same seeds, on average.

    The text also says whether that is within the tolerance of the task, and how many runs it is of.
    """
    pairs = [(r["metric"], whole[r["seed"]]["metric"]) for r in runs if r["seed"] in whole]
    pairs = [(own, other) for own, other in pairs if None not in (own, other)]
    if not pairs:
        return NOT_RUN
    own, other = (statistics.mean(each) for each in zip(*pairs))
    fine = "as good" if task.reaches(own, task.target(other)) else "worse"
    digits = 2 if abs(other) >= 10 else 4
    return f"{own - other:+.{digits}f}, {fine} ({len(pairs)} runs)"


_TABLES: dict[str, Callable[[Sequence[Record], Outline, int], str]] = {
    "Accuracy": accuracies,
    "Milliseconds of a step": step_times,
    "Seconds to the accuracy of uncompressed training, and times as soon as `bf16`": seconds,
    "What `auto` chose": choices,
}
