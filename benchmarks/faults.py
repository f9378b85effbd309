"""Faults of one of several workers at random moments: what the others say, when, and what is kept.

    python benchmarks/faults.py --engines group strategy --json faults.jsonl

For each engine (a process group, MultiWorkerMirroredStrategy, Horovod), number of workers and kind
of fault, one worker of a small training is killed, stopped or raises, at a random place of a random
step.  A run holds if every other worker ends with an exit code other than 0 within 30 s, of a
stopped worker within the workers' timeout and 5 s, and its last line on stderr is the sentence that
names that worker and the cause.  Every `--resume-every`th training is then started again with
BackupAndRestore: it must end with the bits of one that nothing has interrupted, of weights,
optimizer and residuals.  A run that does not hold is printed with what its workers have said.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from grace_tf.cli.bench.machine import machine
from grace_tf.cli.run.addresses import environments
from grace_tf.cli.run.local_and_ssh import Local
from grace_tf.cli.tables import print_table

ENGINES = ("group", "strategy", "horovod")
FAULTS = ("SIGKILL", "SIGSTOP", "raise")
# For each kind of fault, a pattern of the cause that the other workers must report.
SAID = {
    "SIGKILL": "is gone without a word: it was killed, crashed or lost its machine",
    "SIGSTOP": r"(has not answered for \d+ s: it is stopped, or its machine hangs"
    r"|did not take part within \d+ s)",
    "raise": "(failed|left fit){after}: ValueError: boom",
}
SOON = 30.0  # seconds within which the others end
LATER = 5.0  # seconds beyond the timeout, where a worker is stopped
HANGS = 20.0  # seconds beyond that, after which a run is given up
STARTED = 180.0  # seconds for a training until its fault, or its end
# After how many steps of the two epochs of four a place comes.
PLACES = {
    "training begins": (0,),
    "epoch begins": (0, 4),
    "step begins": range(8),
    "in a step": range(8),
    "step ends": range(1, 9),
    "validation": (4, 8),
    "epoch ends": (4, 8),
    "training ends": (8,),
}


class Server:
    """Forks workers off a process that has imported TensorFlow; see faulty.py."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        program = pathlib.Path(__file__).with_name("faulty.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), engine],
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._left = b""

    def start(self, job: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps(job).encode() + b"\n")

    def told(self, seconds: float) -> list[dict[str, Any]]:
        """What the server says next, within so many seconds."""
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return []
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        if not data:
            raise RuntimeError("The server of workers has ended.")
        *lines, self._left = (self._left + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait()


class Run:
    """One training of several processes, and when and how each of them ended."""

    def __init__(
        self, server: Server, folder: str, workers: int, timeout: float, fault: dict | None = None
    ) -> None:
        self.folder, self.workers, self.fault, self.timeout = folder, workers, fault, timeout
        self._server = server
        self._pids: dict[int, int] = {}  # by rank
        self.ended: dict[int, tuple[int, float]] = {}  # by rank: the exit code, and when
        self.hung: list[int] = []

    def go(self) -> Run:
        """Returns itself when all workers have ended; one that is stopped or hangs is killed."""
        faulty = self.fault and self.fault["worker"]
        waited = set(range(self.workers)) - ({faulty} if self.fault else set())
        places = [Local("localhost") for _ in range(self.workers)]
        with environments(places, False, self._server.engine == "horovod") as of_workers:
            for place in places:
                place.close()
            for rank, environment in enumerate(of_workers):
                new = {k: v for k, v in environment.items() if os.environ.get(k) != v}
                fault = self.fault if rank == faulty else None
                job = dict(rank=rank, workers=self.workers, environment=new, fault=fault)
                self._server.start({**job, "folder": self.folder, "timeout": self.timeout})
            self._wait(waited, time.time() + STARTED, give_up=True)
            self.hung = sorted(waited - set(self.ended))
            for rank in self.hung:
                os.kill(self._pids[rank], signal.SIGUSR1)  # its stacks
            if self.hung:
                time.sleep(1.0)
            if self.fault and self.fault["kind"] != "SIGSTOP":
                self._wait({faulty}, time.time() + SOON)
            for rank in set(range(self.workers)) - set(self.ended):
                os.kill(self._pids[rank], signal.SIGKILL)
            self._wait(set(range(self.workers)), time.time() + STARTED)
        return self

    def _wait(self, ranks: set[int], deadline: float, give_up: bool = False) -> None:
        """Waits for these workers to end; with `give_up` no longer than HANGS after their time."""
        while not ranks <= set(self.ended) and time.time() < deadline:
            for told in self._server.told(0.2):
                if "rank" in told:
                    self._pids[told["rank"]] = told["pid"]
                else:
                    rank = {pid: rank for rank, pid in self._pids.items()}[told["pid"]]
                    self.ended[rank] = told["code"], told["at"]
            if give_up and self.fault and self.at is not None:
                deadline = min(deadline, self.at + self.limit + HANGS)

    @property
    def at(self) -> float | None:
        """When the fault was."""
        told = pathlib.Path(self.folder, "fault")
        text = told.read_text() if told.exists() else ""
        return float(text) if text else None

    @property
    def limit(self) -> float:
        """Seconds from the fault within which the others must end."""
        return self.timeout + LATER if self.fault["kind"] == "SIGSTOP" else SOON

    def lines(self, rank: int, stream: str = "stderr") -> list[str]:
        """What a worker has written."""
        path = pathlib.Path(self.folder, f"{stream}-{rank}")
        return path.read_text(errors="replace").rstrip().splitlines() if path.exists() else []

    def wrong(self) -> list[str]:
        """What does not hold after a fault."""
        if self.at is None:
            return ["there was no fault"]
        found, faulty, steps = [], self.fault["worker"], self.fault["steps"]
        # Before the first step the variable that counts steps may not exist.
        after = f" after {steps} step{'s' * (steps > 1)}" if steps else "( after 0 steps)?"
        cause = SAID[self.fault["kind"]].replace("{after}", after)
        for rank in sorted(set(range(self.workers)) - {faulty}):
            code, at = self.ended[rank]
            last = (self.lines(rank) or [""])[-1]
            sentence = f"Worker {rank} of {self.workers} cannot go on, worker {faulty} {cause}; "
            sentence += "start all of them again\\."
            if rank in self.hung:
                found.append(f"worker {rank} hangs")
            elif not re.fullmatch(rf"(\w+Error: )?{sentence}", last):
                found.append(f"worker {rank} says: {last!r}")
            elif code == 0:
                found.append(f"worker {rank} ends with exit code 0")
            elif at - self.at > self.limit:
                found.append(f"worker {rank} ends after {at - self.at:.0f} s")
        own = (self.lines(faulty) or [""])[-1]
        if self.fault["kind"] == "raise" and (not self.ended[faulty][0] or "boom" not in own):
            found.append(f"worker {faulty}, which raises, ends with {own!r}")
        return found

    def seconds(self) -> float:
        """From the fault to the end of the last of the others."""
        others = [at for rank, (_, at) in self.ended.items() if rank != self.fault["worker"]]
        return max(others) - self.at if self.at else 0.0

    def ends(self) -> list[dict[str, str]] | None:
        """The digests with which all workers have ended, None where one has not."""
        if any(code for code, _ in self.ended.values()):
            return None
        said = [self.lines(rank, "stdout") for rank in range(self.workers)]
        return [json.loads(lines[-1]) for lines in said] if all(said) else None


def drawn(draw: random.Random, kind: str, workers: int) -> dict[str, Any]:
    """Chooses a fault at random.  Places in and around a step are chosen more often."""
    places = [place for place in PLACES if (kind, place) != ("raise", "in a step")]
    weights = [3 if "step" in place else 1 for place in places]
    (place,) = draw.choices(places, weights)
    steps = draw.choice(PLACES[place])
    return {
        "kind": kind,
        "worker": draw.randrange(workers),
        "place": place,
        "steps": steps,
        "late": draw.random() < 0.5,
        # The first step is traced, the others take some milliseconds.
        "delay": draw.uniform(0.0, 0.01 if steps else 2.0),
    }


def one(server: Server, workers: int, fault: dict, resume: bool, whole: list, args) -> dict:
    """Runs a training with a fault and returns its row.

    With `resume` it also starts the training again, and compares the final state with `whole`.
    """
    folder = tempfile.mkdtemp(prefix="grace_tf-faults-")
    run = Run(server, folder, workers, args.timeout, fault).go()
    row = {"engine": server.engine, "workers": workers, **fault, "seconds": run.seconds()}
    row.update(wrong=run.wrong(), resumed=None)
    if row["wrong"]:
        show(run, row)
    if resume and not row["wrong"]:
        again = Run(server, folder, workers, args.timeout).go()
        row["resumed"] = again.ends() == whole
        if not row["resumed"]:
            row["wrong"] = [f"restarted, it ends with {again.ends()}, not {whole}"]
            show(again, row)
    if args.keep and row["wrong"]:
        print("kept in", folder)
    else:
        shutil.rmtree(folder)
    return row


def show(run: Run, row: dict[str, Any]) -> None:
    """Prints a run that has failed a check, with the last lines of its workers."""
    print(f"\n{row}", flush=True)
    for rank in range(run.workers):
        print(f"worker {rank}, {run.ended.get(rank)}:", *run.lines(rank)[-40:], sep="\n    ")


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a run; each is printed as it ends."""
    rows: list[dict[str, Any]] = []
    for engine in args.engines:
        server = Server(engine)
        for workers in args.workers:
            with tempfile.TemporaryDirectory(prefix="grace_tf-faults-") as folder:
                unbroken = Run(server, folder, workers, args.timeout).go()
                whole = unbroken.ends()
                if whole is None:
                    show(unbroken, {"engine": engine, "workers": workers})
                    raise RuntimeError("The training without a fault does not end well.")
            for kind in args.faults:
                draw = random.Random(f"{args.seed} {engine} {workers} {kind}")
                for repeat in range(args.repeats):
                    fault = drawn(draw, kind, workers)
                    if args.only is not None and repeat not in args.only:
                        continue
                    resume = args.resume_every and repeat % args.resume_every == 0
                    row = one(server, workers, fault, resume, whole, args)
                    rows.append({**row, "repeat": repeat})
                    where = f"worker {fault['worker']} {fault['place']} ({fault['steps']} steps)"
                    print(
                        f"{engine:9} {workers} {kind:8} {repeat:3} {where:42} "
                        f"{row['seconds']:5.1f} s  {'; '.join(row['wrong']) or 'holds'}"
                        f"{', goes on exactly' if row['resumed'] else ''}",
                        flush=True,
                    )
        server.stop()
    return rows


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The rows of the table, one an engine, number of workers and kind of fault."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["engine"], row["workers"], row["kind"]].append(row)
    cells = []
    for (engine, workers, kind), runs in groups.items():
        held = sum(not row["wrong"] for row in runs)
        resumed = [row["resumed"] for row in runs if row["resumed"] is not None]
        longest = max(row["seconds"] for row in runs)
        exact = f"{sum(resumed)} of {len(resumed)}"
        cells.append(
            [engine, str(workers), kind, f"{held} of {len(runs)}", f"{longest:.1f} s", exact]
        )
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--faults", nargs="+", default=FAULTS, choices=FAULTS)
    parser.add_argument("--repeats", type=int, default=20, help="runs of each")
    parser.add_argument("--only", nargs="+", type=int, help="only these of them")
    parser.add_argument("--resume-every", type=int, default=4, help="0: none is started again")
    parser.add_argument("--timeout", type=float, default=15.0, help="of the workers, in seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="the folders of runs that do not hold")
    parser.add_argument("--json", help="the file to which the runs are added, a line each")
    args = parser.parse_args()
    rows = measure(args)
    columns = ["engine", "workers", "fault", "held", "longest", "went on exactly"]
    print_table("Faults", columns, table(rows))
    if args.json:
        head = machine(max(args.workers), args.repeats, "a dense layer of 8 x 16 and one of 16 x 4")
        with open(args.json, "a", encoding="utf-8") as file:
            for line in ({**head, "timeout": args.timeout}, *rows):
                file.write(json.dumps(line) + "\n")
    sys.exit(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
