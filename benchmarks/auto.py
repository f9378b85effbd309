"""Whether `auto` is slower than what it must beat, and how much of the possible gain it takes.

    python benchmarks/auto.py --out auto.jsonl
    python benchmarks/auto.py --links 10gbit --disturbed change --out auto.jsonl
    python benchmarks/auto.py --table --out auto.jsonl

Each place is a task of the suite, a number of workers and a link.  A training of `--steps` steps
with "auto" is interrupted after every `--turn` steps: then equal models take `--slice` steps each,
with every method that `auto` may choose, and with fp16.  So what disturbs the machine disturbs all
of them.  The seconds of `auto` are those of its first step and of all others, in which it also
compares, measures the network and traces the step again; those of another method are its first step
and its mean step for each further one.  Of all of them the first steps after a pause do not count,
and the pauses are hidden from the clock by which `auto` compares.

Disturbances, which must not mislead it:

    nice      worker 1 has the lowest priority while another program keeps a processor busy
    too fast  what it measures of the network is ten times too fast; for places where it measures
    too slow  the same, ten times too slow
    change    the link falls to 100 Mbit/s after a quarter of the steps; needs root and a link

Places whose record is in the file are not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.suite.results import append  # noqa: E402
from benchmarks.suite.tasks.outline import OUTLINES  # noqa: E402
from grace_tf.cli.tables import print_table  # noqa: E402

TASKS = "vision", "transformer", "lstm"
LINKS = "100mbit", "1gbit", "10gbit", "unshaped"
FACTORS = {"too fast": 0.1, "too slow": 10.0}  # of the seconds that a probe of the network finds
DISTURBED = "", "nice", *FACTORS, "change"
LATER = "100mbit"  # what the link changes to
UNTIMED = 2  # steps after each pause
BATCHES = 50  # of a worker, again and again
QUIETLY = {"shuffle": False, "verbose": 0}
MOST_OVER, LEAST_SHARE, LEAST_GAIN = 1.02, 0.9, 1.2
MOST_OVER_DISTURBED, MOST_FOLLOWED = 1.05, 600
KEY = "task", "workers", "link", "disturbed", "steps"


def read(path: str | Path) -> list[dict]:
    """The records of places.  Lines that describe a machine are skipped."""
    lines = Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []
    return [each for each in map(json.loads, lines) if each["kind"] == "auto"]


def judged(record: dict) -> dict:
    """Compares `auto` with the best of none, bf16 and fp16, and with the fastest of its methods.

    Returns: "over", its seconds divided by those of the best; "gain", those of the best divided by
      those of the fastest method that `auto` may choose; "share", what `auto` takes of that gain,
      None where it is less than a fifth.  A method's seconds are those of a whole training.
    """
    count = record["steps"] - 1
    whole = {name: arm["first"] + count * arm["step"] for name, arm in record["methods"].items()}
    auto = record["auto"]["first"] + record["auto"]["others"]
    best = min(whole[name] for name in ("none", "bf16", "fp16"))
    fastest = min(seconds for name, seconds in whole.items() if name != "fp16")
    gain = best / fastest
    share = (best - auto) / (best - fastest) if gain >= LEAST_GAIN else None
    return {"over": auto / best, "share": share, "gain": gain}


def table(records: list[dict]) -> tuple[str, list[str], list[list[str]]]:
    """The sentence on all places, the columns, and a row for each place."""
    # Of a link that changes there are no whole trainings with the other methods.
    nothing = {"over": None, "share": None, "gain": None}
    found = [(r, nothing if "followed" in r else judged(r)) for r in records]
    over = [(each["over"], r["disturbed"]) for r, each in found if each["over"] is not None]
    shares = [each["share"] for _, each in found if each["share"] is not None]
    slow = [ratio > (MOST_OVER_DISTURBED if disturbed else MOST_OVER) for ratio, disturbed in over]
    missed = [each < LEAST_SHARE for each in shares]
    changes = [r["followed"] for r, _ in found if "followed" in r]
    late = [each is None or each > MOST_FOLLOWED for each in changes]
    rows = [
        [
            f"{r['task']}, {r['workers']} workers, {r['link']}",
            r["disturbed"] or "-",
            *(f"{e[name]:.3f}" if e[name] is not None else "-" for name in nothing),
            choice(r),
            _followed(r),
        ]
        for r, e in found
    ]
    sentence = (
        f"auto takes more than {MOST_OVER} × the best baseline ({MOST_OVER_DISTURBED} × where it "
        f"is disturbed) in {sum(slow)} of {len(over)} places, and less than {LEAST_SHARE} of a "
        f"possible gain in {sum(missed)} of {len(shares)}. {sum(late)} of {len(changes)} changes "
        f"of a link were not followed within {MOST_FOLLOWED} steps."
    )
    columns = ["place", "disturbed", "auto / best baseline", "share of the gain", "best / fastest"]
    return sentence, [*columns, "choice at the end", "followed after"], rows


def choice(record: dict) -> str:
    """The method that `auto` trained with at the end."""
    return record["choice"].split(",")[0].removeprefix("auto: ")


def _followed(record: dict) -> str:
    """The table's text on a change of the link.

    If `auto` has the best method of the new link already before the change, nothing is followed.
    """
    after = record.get("followed", "-")
    return "its method before is the best after, too" if after == 0 else str(after)


def launch(place: dict, options: argparse.Namespace) -> bool:
    """Runs the workers of a place.  Returns True if all of them succeeded."""
    link = [] if place["link"] == "unshaped" else ["--link", place["link"]]
    run = [sys.executable, "-m", "grace_tf", "run", "-np", str(place["workers"]), *link]
    sizes = ["--turn", str(options.turn), "--slice", str(options.slice), "--out", options.out]
    own = [__file__, "--place", json.dumps(place), *sizes]
    hog = None
    if place["disturbed"] == "nice":
        hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return subprocess.run([*run, *own], cwd=ROOT).returncode == 0
    finally:
        if hog is not None:
            hog.kill()
            hog.wait()


def train(place: dict, turn: int, most: int, out: str) -> None:
    """One worker of a place."""
    import tensorflow as tf

    threads = max(1, (os.cpu_count() or 1) // place["workers"])
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    import keras
    import numpy as np

    import grace_tf
    from benchmarks.suite.optimizers import plain
    from grace_tf.aggregation.choice import foresight
    from grace_tf.cli.bench.machine import machine
    from grace_tf.keras import aggregator_of

    group = grace_tf.init(timeout=300)
    if place["disturbed"] == "nice" and group.rank == 1:
        os.nice(19)
    if place["disturbed"] in FACTORS:
        measured, factor = foresight.link.costs, FACTORS[place["disturbed"]]

        def wrong(*arguments, **keywords):
            costs = measured(*arguments, **keywords)
            return {
                kind: type(cost)(*(factor * each for each in dataclasses.astuple(cost)))
                for kind, cost in costs.items()
            }

        foresight.link.costs = wrong
    outline = OUTLINES[place["task"]]
    task = importlib.import_module(f"benchmarks.suite.tasks.{outline.module}").Task(outline, 1)
    given = itertools.islice(task.batches(group.rank, group.size), BATCHES)
    batches = tf.data.Dataset.from_tensor_slices(tuple(map(np.stack, zip(*given)))).repeat()

    class Training:
        """A model that trains with one method, a few steps at a time."""

        def __init__(self, method: str) -> None:
            keras.utils.set_random_seed(1)
            self.model = task.build()
            made = grace_tf.wrap(plain(outline.optimizer, 1e-4), method)
            self.model.compile(made, task.losses(), jit_compile=False)
            self.first, self.seconds, self.counted = 0.0, 0.0, 0

        def begin(self) -> None:
            clock = Clock()
            self._fit(1, clock)
            self.first = clock.steps[0]

        def go_on(self, steps: int) -> None:
            clock = Clock()
            self._fit(UNTIMED + steps, clock)
            self.seconds += sum(clock.steps[UNTIMED:])
            self.counted += steps

        @property
        def mean(self) -> float:
            return self.seconds / self.counted

        def _fit(self, steps: int, clock: Clock) -> None:
            self.model.fit(batches, steps_per_epoch=steps, callbacks=[clock], **QUIETLY)

    class Clock(keras.callbacks.Callback):
        """The seconds of each step, without those in which `between` runs after it."""

        def __init__(self, between=lambda done: None) -> None:
            super().__init__()
            self.steps, self._between = [], between

        def on_train_begin(self, logs=None):
            self._begun = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.steps.append(time.perf_counter() - self._begun)
            self._between(len(self.steps))
            self._begun = time.perf_counter()

    Training("none").begin()  # the first training of a process starts TensorFlow's threads
    arms = [str(stage.compressor) for stage in grace_tf.get("auto").stages]
    others = {method: Training(method) for method in [*arms, "fp16"]}
    for each in others.values():
        each.begin()
    auto = Training("auto")
    aggregator = aggregator_of(auto.model.optimizer)
    tuner = aggregator._stages.tuner
    changes_at = place["steps"] // 4 if place["disturbed"] == "change" else None
    stages, paused = [], [0.0]
    tuner._clock = lambda: time.perf_counter() - paused[0]

    def between(done: int) -> None:
        begun = time.perf_counter()
        stages.append(aggregator.stage)
        if done == changes_at:
            grace_tf.barrier()
            slow_down(LATER)
            for each in others.values():  # the new link's steps alone are compared
                each.seconds, each.counted = 0.0, 0
        if done == 1:
            # Of the two edens, one is used here.
            for arm in {*range(len(arms))}.difference(tuner._foresight.all_arms):
                del others[arms[arm]]
        if done % turn == 0:
            order = list(others.values())
            for each in order if done // turn % 2 else order[::-1]:
                each.go_on(most)
        paused[0] += time.perf_counter() - begun

    clock = Clock(between)
    auto.model.fit(batches, steps_per_epoch=place["steps"], callbacks=[clock], **QUIETLY)
    if place["disturbed"] in FACTORS and not tuner._foresight.measured:
        raise RuntimeError("auto has not measured the network here, so this disturbs nothing.")
    if group.rank:
        return
    # Step i is the first after a pause where i is a multiple of `turn`.
    warm = [seconds for i, seconds in enumerate(clock.steps) if i % turn >= UNTIMED]
    further = (len(clock.steps) - 1) * sum(warm) / len(warm)
    record = {
        "kind": "auto",
        **place,
        "methods": {
            method: {"first": each.first, "step": each.mean} for method, each in others.items()
        },
        "auto": {"first": clock.steps[0], "others": further},
        "choice": grace_tf.explain(auto.model.optimizer).as_dict()["choice"],
        "changes": [[i, s] for i, s in enumerate(stages) if not i or s != stages[i - 1]],
    }
    if changes_at is not None:
        times = [others[name].mean if name in others else math.inf for name in arms]
        record["followed"] = followed(stages, changes_at, times)
    here = machine(group.size, place["steps"], "of trainings")
    append(out, {**here, "kind": "machine"})
    append(out, record)
    print(json.dumps(record), flush=True)


def followed(stages: list[int], at: int, seconds: list[float]) -> int | None:
    """The steps after the change until a method within 5 % of the fastest is trained with, and in
    four of five steps from then on; None where that does not happen.

    The other steps may be comparisons with another method: `auto` makes them until the end.

    Args:
      stages: the method of each step, as a number.
      at: the step before which the link changes.
      seconds: of a step with each method, after the change.
    """
    slow = [seconds[stage] > 1.05 * min(seconds) for stage in stages]
    for first in range(at, len(stages)):
        if not slow[first] and sum(slow[first:]) <= (len(stages) - first) / 5:
            return first - at
    return None


def slow_down(link: str) -> None:
    """Sets another rate for the network interface of this worker.  Only root can do that."""
    from grace_tf.cli.run.link.namespaces import INTERFACE, commands
    from grace_tf.cli.run.link.rates import parse_link

    for _, words in commands(parse_link(link), 1):
        if words[:3] == ["tc", "qdisc", "add"] and "root" in words and INTERFACE in words:
            subprocess.run(["tc", "qdisc", "change", *words[3:]], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    several = {"nargs": "+"}
    parser.add_argument("--tasks", choices=[*OUTLINES], default=TASKS, **several)
    parser.add_argument("--workers", type=int, default=(2, 4), **several)
    parser.add_argument("--links", default=LINKS, **several)
    parser.add_argument("--disturbed", choices=DISTURBED, default=("",), **several)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--turn", type=int, default=100, help="steps of auto between two slices")
    parser.add_argument("--slice", type=int, default=6, help="steps of each other method")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--out", required=True, help="a file of JSON lines")
    parser.add_argument("--place", help="of a worker that this program has started")
    options = parser.parse_args()
    if options.place:
        train(json.loads(options.place), options.turn, options.slice, options.out)
        return
    options.out = str(Path(options.out).resolve())
    known = [tuple(record[name] for name in KEY) for record in read(options.out)]
    failed: list[tuple] = []
    if not options.table:
        places = itertools.product(
            options.tasks, options.workers, options.links, options.disturbed, [options.steps]
        )
        for place in places:
            changes = place[KEY.index("disturbed")] == "change"
            if changes and place[KEY.index("link")] == "unshaped":
                continue  # it would change the interface of this machine
            if place not in known and not launch(dict(zip(KEY, place)), options):
                failed.append(place)
    print_table(*table(read(options.out)))
    if failed:
        raise SystemExit(f"These places have failed: {failed}.")


if __name__ == "__main__":
    main()
