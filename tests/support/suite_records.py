"""Records as benchmarks/suite writes them, and what they are of."""

import doc_tables  # noqa: F401  with it the benchmarks can be imported

from benchmarks.suite.arithmetic import Place
from benchmarks.suite.arms import ARMS, RATES
from benchmarks.suite.plan import TUNING_SEEDS, Cell, Wanted
from benchmarks.suite.tasks.outline import OUTLINES

VISION = OUTLINES["vision"]
SMALL = Wanted(["vision"], ["none", "bf16"], [2], ["group"], ["100mbit"], [1, 2], 2, 300)
LOW, MIDDLE, HIGH = RATES[VISION.optimizer]
PLACE = Place("vision", "group", 2, "100mbit")


def run_of(arm, seed, metrics, rate=MIDDLE, link="", **more):
    """The record of a training that was evaluated every 100 steps, which took half a second."""
    cell = Cell("train", "vision", arm, "group", 2, link, "", rate, seed, 100 * len(metrics))
    curve = [[100 * i, 0.5 * i, metric] for i, metric in enumerate(metrics, 1)]
    found = {"curve": curve, "metric": metrics[-1], "seconds": curve[-1][1], "bytes": 1000}
    return {**cell.record(), **found, **more}


def time_of(arm, method, ms, repeat=0, sent=None, **more):
    place = {"task": "vision", "engine": "group", "workers": 2, "link": "100mbit", **more}
    cell = Cell("time", arm=arm, method=method, repeat=repeat, **place)
    return {**cell.record(), "ms": ms, "bytes": 1000, "sent": sent}


def tuned(arm, metrics):
    """The tuning runs of an arm: one for each rate and seed.  They end with these metrics."""
    rates = ARMS[arm].rates(VISION.optimizer)
    return [
        run_of(arm, seed, [0, 0, metric], rate)
        for rate, both in zip(rates, metrics, strict=True)
        for seed, metric in zip(TUNING_SEEDS, both, strict=True)
    ]
