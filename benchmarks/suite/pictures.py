"""The pictures of docs/benchmarks.md, each drawn where there are results for it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks import auto
from benchmarks.suite import advised, arithmetic
from benchmarks.suite.arithmetic import Place, Record
from benchmarks.suite.arms import ALONE, ARMS
from benchmarks.suite.plan import LINKS
from benchmarks.suite.tasks.outline import OUTLINES, Outline
from grace_tf.advice.link import parse_link

WORKERS, ENGINE = 2, "group"  # of the pictures; the tables have all
RATES = {link: parse_link(link) for link in LINKS if link}


def draw(
    records: Sequence[Record], answers: advised.Answers, chosen: Sequence[Record], folder: Path
) -> list[tuple[str, str]]:
    """Draws what there are results for; returns (file, what it shows)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = []
    for task in OUTLINES.values():
        lines = {link: curves(records, task, link) for link in RATES}
        lines = {link: each for link, each in lines.items() if each}
        if lines:
            found.append(_curves(pyplot, folder, task, lines))
        gains = speed_ups(records, task)
        if gains:
            found.append(_gains(pyplot, folder, task, gains, computed_speed_ups(answers, task)))
    whole = [c for c in arithmetic.checks(records) if c["ratio"] is not None]
    if whole:
        found.append(_checks(pyplot, folder, whole))
    compared = advised.compared(records, answers)
    if compared:
        found.append(_predictions(pyplot, folder, compared))
    taken = choices(chosen)
    if taken:
        found.append(_choices(pyplot, folder, taken))
    return found


def choices(chosen: Sequence[Record]) -> dict[tuple[str, int], list[tuple[str, str, float]]]:
    """What `auto` chose over each link, and how long it took.

    Trainings that something disturbs are left out.

    Returns: for each pair of task and number of workers a list of (link, choice, ratio), in the
      order of the links' rates.  The choice is the method at the end.  The ratio is the seconds of
      `auto` divided by those of the fastest of none, bf16 and fp16.
    """
    found: dict[tuple[str, int], list] = {}
    for record in sorted(chosen, key=lambda each: auto.LINKS.index(each["link"])):
        if not record["disturbed"]:
            taken = record["link"], auto.choice(record), auto.judged(record)["over"]
            found.setdefault((record["task"], record["workers"]), []).append(taken)
    return found


def curves(records: Sequence[Record], task: Outline, link: str) -> dict[str, list[tuple]]:
    """By arm: (seconds, metric) of the evaluations over such a link, means over the seeds.

    Arms without accuracies or without step times over this link have none.
    """
    place, times = Place(task.name, ENGINE, WORKERS, link), arithmetic.step_times(records)
    found = {}
    for name, arm in ARMS.items():
        runs = arithmetic.tests_of(records, task.name, name, WORKERS)
        ms = arithmetic.methods_at(times, place, name)
        if not runs or not ms or any(m is None for run in runs for _, _, m in run["curve"]):
            continue
        stages, points = arm.stages(runs[0]["steps"]), []
        for number, (step, _, _) in enumerate(runs[0]["curve"]):
            at = arithmetic.seconds_of(0, step, stages, ms)
            if at is None:
                break
            points.append((at, statistics.mean(run["curve"][number][2] for run in runs)))
        else:
            found[name] = points
    return found


def speed_ups(records: Sequence[Record], task: Outline) -> dict[str, list[tuple[float, float]]]:
    """By arm: (bits a second, times as fast a step as `none`), links without latency alone.

    Of an arm with several stages the last counts.
    """
    times, found = arithmetic.step_times(records), {}
    for link, rate in sorted(RATES.items(), key=lambda each: each[1].bits_per_second):
        base = times.get((Place(task.name, ENGINE, WORKERS, link), "none", "none"))
        if rate.latency or base is None:
            continue
        for (place, arm, method), ms in times.items():
            if place == Place(task.name, ENGINE, WORKERS, link):
                if arm == ALONE.name or method == ARMS[arm].method:
                    found.setdefault(arm, []).append((rate.bits_per_second, base / ms))
    return found


def computed_speed_ups(answers: advised.Answers, task: Outline) -> dict[str, list[tuple]]:
    """By arm: (bits a second, times as fast a step as `none`), computed by `advise`."""
    found = {}
    for link, rate in sorted(RATES.items(), key=lambda each: each[1].bits_per_second):
        answer = answers.get(Place(task.name, ENGINE, WORKERS, link))
        if rate.latency or answer is None:
            continue
        said = {each["spec"]: each["time"]["seconds"] for each in answer["methods"]}
        for name in advised.NAMES:
            seconds = said.get(ARMS[name].method)
            if seconds is not None:
                found.setdefault(name, []).append((rate.bits_per_second, said["none"] / seconds))
    return found


def _curves(pyplot, folder: Path, task: Outline, lines: dict) -> tuple[str, str]:
    figure, axes = pyplot.subplots(1, len(lines), figsize=(5 * len(lines), 4), squeeze=False)
    for axis, (link, arms) in zip(axes[0], lines.items()):
        for name, points in arms.items():
            axis.plot(*zip(*points), label=name)
        axis.set(title=str(RATES[link]), xlabel="seconds", ylabel=task.metric, xscale="log")
    axes[0][0].legend(fontsize="small")
    title = f"{task.name}, {WORKERS} workers: {task.metric} against time, by link"
    return _save(pyplot, figure, folder, f"benchmarks-{task.name}-curves.png"), title


def _gains(pyplot, folder: Path, task: Outline, gains: dict, computed: dict) -> tuple[str, str]:
    figure, axis = pyplot.subplots(figsize=(6, 4))
    for name, points in gains.items():
        (line,) = axis.plot(*zip(*points), "--" if name == ALONE.name else "o-", label=name)
        if name in computed and name != "none":
            axis.plot(*zip(*computed[name]), ":", color=line.get_color())
    if computed:
        axis.plot([], [], ":", color="gray", label="as advise computes it")
    axis.set(xscale="log", yscale="log", xlabel="bit/s", ylabel="times as fast a step as none")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")
    axis.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
    axis.legend(fontsize="small")
    title = f"{task.name}, {WORKERS} workers: speed of a step against bandwidth"
    return _save(pyplot, figure, folder, f"benchmarks-{task.name}-speed.png"), title


def _checks(pyplot, folder: Path, whole: Sequence[Record]) -> tuple[str, str]:
    figure, axis = pyplot.subplots(figsize=(4, 4))
    axis.loglog([c["product"] for c in whole], [c["seconds"] for c in whole], "o")
    ends = [min(c["product"] for c in whole), max(c["product"] for c in whole)]
    axis.loglog(ends, ends, "--")
    axis.set(xlabel="steps × step time, s", ylabel="the whole run, s")
    return _save(pyplot, figure, folder, "benchmarks-whole.png"), "whole runs against the product"


def _predictions(pyplot, folder: Path, compared: dict[Place, list]) -> tuple[str, str]:
    figure, axis = pyplot.subplots(figsize=(5, 4))
    rows = [row for each in compared.values() for row in each]
    for name in dict.fromkeys(method for method, _, _ in rows):
        axis.loglog(*zip(*(row[1:] for row in rows if row[0] == name)), "o", label=name)
    ends = [min(min(row[1:]) for row in rows), max(max(row[1:]) for row in rows)]
    axis.loglog(ends, ends, "--", color="gray")
    axis.set(xlabel="measured, ms a step", ylabel="computed by advise, ms a step")
    axis.legend(fontsize="small")
    return _save(pyplot, figure, folder, "benchmarks-advise.png"), "steps as advise computes them"


def _choices(pyplot, folder: Path, taken: dict) -> tuple[str, str]:
    figure, axis = pyplot.subplots(figsize=(7, 4))
    markers = dict(zip(dict.fromkeys(c for each in taken.values() for _, c, _ in each), "os^Dvx*"))
    for (task, workers), each in taken.items():
        at = [auto.LINKS.index(link) for link, _, _ in each]
        name = f"{task}, {workers} workers"
        line = "-" if workers == WORKERS else "--"
        (drawn,) = axis.plot(at, [over for _, _, over in each], line, label=name)
        for x, (_, choice, over) in zip(at, each):
            axis.plot(x, over, markers[choice], color=drawn.get_color())
    for choice, marker in markers.items():
        axis.plot([], [], marker, color="gray", label=choice)
    axis.axhline(1, color="black", linestyle=":")
    axis.set_xticks(range(len(auto.LINKS)), [str(RATES.get(link, link)) for link in auto.LINKS])
    axis.set(ylabel="seconds of auto by those of the best\nof none, bf16 and fp16")
    axis.legend(fontsize="small")
    return _save(pyplot, figure, folder, "benchmarks-auto.png"), "what auto chose, and its seconds"


def _save(pyplot, figure, folder: Path, name: str) -> str:
    figure.tight_layout()
    figure.savefig(folder / name, dpi=100, metadata={"Software": None})
    pyplot.close(figure)
    return name
