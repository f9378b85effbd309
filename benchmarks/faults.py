"""Faults of one of several workers: what the others say, when, what is kept, and what is silent.

    python benchmarks/faults.py --faults 500 --json faults.jsonl
    python benchmarks/faults.py --table faults.jsonl           prints the tables of the docs

Small trainings of two to four workers in a process group, under MultiWorkerMirroredStrategy and
under Horovod.  Each has one fault: a worker is lost at a random place of a random step, its program
differs, a callback decides on it alone, its backups are damaged, strangers come to the ports, it is
lost as the workers meet, or it is killed while it shares memory.  injection/kinds.py has the kinds,
and what must follow each: all other workers stop within the timeout and 10 s with a sentence that
names worker and cause; or the training ends as without the fault.  Every `--resume-every`th
training that lost a worker is started again with BackupAndRestore: it must end with the bits of one
that nothing has interrupted, of weights, optimizer and residuals.  A run that does not hold is
printed with what its workers say.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import itertools
import json
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from injection import kinds, memory, tables
from injection.kinds import ENGINES, KINDS, PLACES, Stops
from injection.runs import Run, Server, backups_in, worker_of
from injection.strangers import strangers, taken
from injection.verdict import SAVED, Facts, judge, resumed

from grace_tf.cli.bench.machine import machine

TEMPLATE_STEPS = 5  # of the training whose backups are damaged, until it is killed
UNHURRIED = 60.0  # seconds, the timeout of workers without a fault
STAYS = ("SIGSTOP", "stopped at the start")  # such a worker never ends by itself


def drawn(seed: str, engine: str, kind: str, workers: tuple[int, ...]) -> dict[str, Any]:
    """Chooses a fault at random: `workers` of the run, and all that its worker is told."""
    draw, what = random.Random(f"{seed} {engine} {kind}"), KINDS[kind]
    size = draw.choice(workers)
    if what.template:  # of one worker more or less, and of two at least
        size = 2 if what.template > 0 else 3
    if what.family == "memory":
        size += size % 2  # each host has two
    place, steps = what.place, 0
    if place == kinds.ANYWHERE:
        # Places in and around a step are chosen more often.
        places = [each for each in PLACES if (kind, each) != ("raise", "in a step")]
        (place,) = draw.choices(places, [3 if "step" in each else 1 for each in places])
        steps = draw.choice(PLACES[place])
    elif place == kinds.MIDWAY:
        place, steps = "step ends", draw.randrange(1, 8)
    elif place in PLACES:
        steps = max(PLACES[place])
    worker = size - 1 if what.template else draw.randrange(size)
    if kind.endswith("in worker 0's place"):
        worker = 0
    return {
        "kind": kind,
        "workers": size,
        "worker": worker,
        "place": place,
        "steps": steps,
        # After the last epoch it comes after what others' callbacks do.
        "late": draw.random() < 0.5 or what.family == "callback",
        # The first step is traced, the others take some milliseconds.
        "delay": draw.uniform(0.0, 0.01 if steps else 2.0),
        "seed": draw.randrange(2**31),
        "phase": "start" if engine == kinds.HOROVOD else draw.choice(["start", "training"]),
        "says": draw.choice(["ssh", "HTTP", "noise"]) if "another program" in kind else "",
        "stops": any(isinstance(each, Stops) for each in what.outcomes(engine)),
        "stays": kind in STAYS,
    }


def plan(args: argparse.Namespace, engine: str) -> Iterator[dict[str, Any]]:
    """The faults of an engine, the kinds in turn, as often as their weights say."""
    names = [name for name in args.kinds if engine in KINDS[name].engines]
    for repeat in itertools.count():
        for name in names:
            # Twice in each round of two for weight 2, once for weight 1, and so on.
            for again in range((KINDS[name].weight + repeat % 2) // 2):
                seed = f"{args.seed} {repeat} {again}"
                yield {**drawn(seed, engine, name, tuple(args.workers)), "repeat": repeat}


class Measurement:
    """Runs faults under one engine, several at once, each lane with a server of its own.

    A row of each goes to the list `told` and to the file that `args.json` names, as it ends.
    """

    def __init__(self, engine: str, args: argparse.Namespace, told: list[dict[str, Any]]) -> None:
        self._engine, self._args, self._told = engine, args, told
        self._own, self._servers = threading.local(), []
        self._lock, self._print = threading.RLock(), threading.Lock()

    def inject(self, faults: list[dict[str, Any]]) -> None:
        lanes = concurrent.futures.ThreadPoolExecutor(self._args.lanes)
        with lanes:
            try:
                for _ in lanes.map(self.one, faults):
                    pass
            finally:
                for server in self._servers:
                    server.stop()

    def _run(self, folder: str, workers: int, fault: dict | None, **keywords: Any) -> Run:
        if not hasattr(self._own, "server"):
            self._own.server = Server(self._engine)
            self._servers.append(self._own.server)
        timeout = self._args.timeout if fault else max(self._args.timeout, UNHURRIED)
        return Run(self._own.server, folder, workers, timeout, fault, **keywords).go()

    @functools.cache  # noqa: B019  of one measurement, which lives as long as its rows
    def _whole(self, workers: int) -> list[dict[str, Any]]:
        """The digests at the end of a training without a fault."""
        with self._lock, tempfile.TemporaryDirectory(prefix="grace_tf-faults-") as folder:
            run = self._run(folder, workers, None)
            if len(run.ends()) < workers:
                show(run, {"engine": self._engine, "workers": workers})
                raise RuntimeError("The training without a fault does not end well.")
            return [run.ends()[rank] for rank in range(workers)]

    @functools.cache  # noqa: B019
    def _template(self, workers: int, width: bool) -> str:
        """A folder with the backups of a training that was killed."""
        folder = tempfile.mkdtemp(prefix="grace_tf-faults-")
        fault = {"kind": "SIGKILL", "worker": 0, "place": "step begins", "steps": TEMPLATE_STEPS}
        fault.update(late=True, delay=0.0, seed=0, stops=True, width=width)
        self._run(folder, workers, fault)
        return folder

    def one(self, fault: dict[str, Any]) -> None:
        """Runs a training with a fault."""
        began = time.time()
        folder = tempfile.mkdtemp(prefix="grace_tf-faults-")
        wrong, run = self._injected(folder, fault)
        row = {"engine": self._engine, **fault, "seconds": run.seconds(), "resumed": None}
        row.update(memory.read_hold(folder))
        again = self._args.resume_every and fault["repeat"] % self._args.resume_every == 0
        if again and KINDS[fault["kind"]].family == "lost" and not wrong:
            run = self._run(folder, fault["workers"], None)
            wrong = resumed(self._facts(run, fault, saved=max(0, fault["steps"] - SAVED)))
            row["resumed"] = not wrong
        row.update(wrong=wrong, took=round(time.time() - began, 1))
        with self._print:
            report(run, row)
            keep(row, self._args.json)
            self._told.append(row)
            if self._args.keep and wrong:
                print("kept in", folder)
        if not (self._args.keep and wrong):
            shutil.rmtree(folder)

    def _injected(self, folder: str, fault: dict[str, Any]) -> tuple[list, Run]:
        kind, workers = KINDS[fault["kind"]], fault["workers"]
        keywords: dict[str, Any] = {}
        if kind.family == "strangers":
            keywords["around"] = strangers
        elif fault["kind"] == "port in use" or fault["kind"].endswith("in worker 0's place"):
            keywords["around"] = taken
            keywords["absent"] = () if fault["kind"] == "port in use" else (0,)
        before: dict[str, bytes] = {}
        if kind.family == "backup":
            with self._lock:
                source = self._template(workers + kind.template, False)
                other = self._template(workers, True) if "another model" in fault["kind"] else None
            _copy_backups(source, folder)
            if other:
                _copy_backups(other, str(pathlib.Path(folder, "other")))
            before = backups_in(folder)
        names = memory.names()
        run = self._run(folder, workers, fault, **keywords)
        left = memory.left(folder, names) if kind.family == "memory" else ()
        after = backups_in(folder) if before else {}
        changed = [
            name
            for name, content in before.items()
            if worker_of(name) != fault["worker"] and after.get(name) != content
        ]
        held = memory.read_hold(folder).get("held", ())
        seen = {"changed": changed, "held": held, "left": left}
        return judge(self._facts(run, fault, saved=TEMPLATE_STEPS - 1, **seen)), run

    def _facts(self, run: Run, fault: dict[str, Any], saved: int, **seen: Any) -> Facts:
        with self._lock:
            whole = self._whole(fault["workers"])
        return Facts(
            engine=self._engine,
            workers=fault["workers"],
            timeout=self._args.timeout,
            fault=fault,
            at=run.at,
            ended=run.ended,
            hung=run.hung,
            said=run.said(),
            ends=run.ends(),
            whole=whole,
            saved=saved,
            **seen,
        )


def _copy_backups(source: str, folder: str) -> None:
    for path in pathlib.Path(source).rglob("backup"):
        shutil.copytree(path, pathlib.Path(folder, path.relative_to(source)))


def report(run: Run, row: dict[str, Any]) -> None:
    """Prints a row, and where it does not hold what its workers have said at last."""
    at = f"worker {row['worker']} of {row['workers']} {row['place']} ({row['steps']} steps)"
    wrong = "; ".join(f"{category}: {text}" for category, text in row["wrong"])
    print(
        f"{row['engine']:9} {row['kind']:32} {row['repeat']:3} {at:42} {row['seconds']:5.1f} s "
        f"{row['took']:5.1f} s  {wrong or 'holds'}{', goes on exactly' if row['resumed'] else ''}",
        flush=True,
    )
    if row["wrong"]:
        show(run, row)


def show(run: Run, row: dict[str, Any]) -> None:
    print(f"{row}", flush=True)
    for rank in range(run.workers):
        print(f"worker {rank}, {run.ended.get(rank)}:", *run.lines(rank)[-40:], sep="\n    ")


def keep(row: dict[str, Any], path: str | None) -> None:
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, and one row a fault."""
    model = "a dense layer of 8 x 16 and one of 16 x 4; 65536 for 16 where memory is shared"
    head = machine(max(args.workers), 1, model)
    rows = [{**head, "timeout": args.timeout, "seed": args.seed}]
    keep(rows[0], args.json)
    for number, engine in enumerate(args.engines):
        share = args.faults // len(args.engines) + (number < args.faults % len(args.engines))
        faults = itertools.islice(plan(args, engine), share)
        chosen = [fault for i, fault in enumerate(faults) if args.only in (None, i)]
        Measurement(engine, args, rows).inject(chosen)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=[*KINDS], metavar="KIND")
    parser.add_argument("--families", nargs="+", choices=[*kinds.FAMILIES], help="of kinds")
    parser.add_argument("--faults", type=int, default=500, help="of all engines together")
    parser.add_argument("--only", type=int, help="the fault of this number of each engine")
    parser.add_argument("--resume-every", type=int, default=2, help="0: none is started again")
    parser.add_argument("--timeout", type=float, default=10.0, help="of the workers, in seconds")
    parser.add_argument("--lanes", type=int, default=3, help="trainings at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="the folders of runs that do not hold")
    parser.add_argument("--json", help="the file to which the runs are added, a line each")
    parser.add_argument("--table", help="prints the tables of such a file, and injects nothing")
    args = parser.parse_args()
    if args.table:
        print(*tables.of_file(pathlib.Path(args.table)).values(), sep="\n\n")
        return
    if args.families:
        args.kinds = [name for name in args.kinds if KINDS[name].family in args.families]
    began = time.time()
    rows = measure(args)
    print(f"{len(rows) - 1} faults in {time.time() - began:.0f} s")
    print(*tables.of_rows(rows).values(), sep="\n\n")
    sys.exit(any(row["wrong"] for row in rows[1:]))


if __name__ == "__main__":
    main()
