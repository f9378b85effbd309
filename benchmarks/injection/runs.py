"""Runs of the small training of faulty.py: its processes, and when and how each of them ended."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from grace_tf.cli.run.addresses import environments
from injection.verdict import GRACE

HANGS = 5.0  # seconds beyond their time, after which workers are given up
STARTED = 180.0  # seconds for a training until its fault, or its end
_OWN_END = 15.0  # seconds for a worker that has a fault to end by itself
# By default Linux gives outgoing connections ports from 32,768 on, so none of them takes a port of
# this range.
_PORTS = range(15_000, 30_000)


class Server:
    """Forks workers off a process that has imported TensorFlow; see faulty.py."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        program = pathlib.Path(__file__).parents[1] / "faulty.py"
        self._process = subprocess.Popen(
            [sys.executable, str(program), engine],
            env={"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1", **os.environ},
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


class Place:
    """A worker's place on this machine, with a port of its own; see `grace_tf.cli.run`."""

    here, on, host = True, "", "localhost"

    def __init__(self, port: int) -> None:
        self.port = port


def free_ports(count: int) -> list[int]:
    """Ports of this machine at which nothing listens."""
    found: set[int] = set()
    while len(found) < count:
        port = random.choice(_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            found.add(port)
    return list(found)


class Run:
    """One training of several processes.

    `absent` are workers that are not started.  `around` is entered with the run when the addresses
    are known and no worker has started yet, and left when all have ended.

    Attributes: ended, by rank the exit code, and when; hung, the workers that were given up.
    """

    def __init__(
        self,
        server: Server,
        folder: str,
        workers: int,
        timeout: float,
        fault: dict[str, Any] | None = None,
        absent: tuple[int, ...] = (),
        around: Callable[[Run], contextlib.AbstractContextManager] | None = None,
    ) -> None:
        self.folder, self.workers, self.fault, self.timeout = folder, workers, fault, timeout
        self.ports = free_ports(workers)
        self.ended: dict[int, tuple[int, float]] = {}
        self.hung: list[int] = []
        self._server, self._around = server, around
        self._started = [rank for rank in range(workers) if rank not in absent]
        self._pids: dict[int, int] = {}  # by rank

    @property
    def engine(self) -> str:
        return self._server.engine

    def go(self) -> Run:
        """Returns itself when all workers have ended; one that is stopped or hangs is killed."""
        for name in ("fault", "training", "attacked"):
            pathlib.Path(self.folder, name).unlink(missing_ok=True)
        around = self._around(self) if self._around else contextlib.nullcontext()
        with around, self._environments() as of_workers:
            for rank in self._started:
                new = {k: v for k, v in of_workers[rank].items() if os.environ.get(k) != v}
                job = dict(rank=rank, workers=self.workers, environment=new, fault=self.fault)
                self._server.start({**job, "folder": self.folder, "timeout": self.timeout})
            self._end_all()
        return self

    @contextlib.contextmanager
    def _environments(self) -> Iterator[list[dict[str, str]]]:
        places = [Place(port) for port in self.ports]
        with environments(places, False, self.engine == "horovod") as of_workers:
            yield of_workers

    def _end_all(self) -> None:
        faulty = self.fault["worker"] if self.fault else None
        waited = set(self._started) - ({faulty} if self.fault and self.fault["stops"] else set())
        self._wait(waited, time.time() + STARTED, give_up=True)
        self.hung = sorted(waited - set(self.ended))
        for rank in set(self.hung) & set(self._pids):
            os.kill(self._pids[rank], signal.SIGUSR1)  # its stacks
        if self.hung:
            time.sleep(1.0)
        elif faulty in self._started and not self.fault.get("stays"):
            self._wait({faulty}, time.time() + _OWN_END)
        for rank in set(self._started) - set(self.ended):
            os.kill(self._pids[rank], signal.SIGKILL)
        self._wait(set(self._started), time.time() + STARTED)

    def _wait(self, ranks: set[int], deadline: float, give_up: bool = False) -> None:
        """Waits for these workers to end; with `give_up` no longer than HANGS after their time."""
        while not ranks <= set(self.ended) and time.time() < deadline:
            for told in self._server.told(0.2):
                if "rank" in told:
                    self._pids[told["rank"]] = told["pid"]
                else:
                    rank = {pid: rank for rank, pid in self._pids.items()}[told["pid"]]
                    self.ended[rank] = told["code"], told["at"]
            # Read once: a worker that writes the file anew empties it first.
            at = self.at if give_up and self.fault and self.fault["stops"] else None
            if at is not None:
                deadline = min(deadline, at + self.timeout + GRACE + HANGS)

    @property
    def at(self) -> float | None:
        """When the fault was."""
        told = pathlib.Path(self.folder, "fault")
        text = told.read_text() if told.exists() else ""
        return float(text) if text else None

    def lines(self, rank: int, stream: str = "stderr") -> list[str]:
        """What a worker has written."""
        path = pathlib.Path(self.folder, f"{stream}-{rank}")
        return path.read_text(errors="replace").rstrip().splitlines() if path.exists() else []

    def said(self) -> dict[int, list[str]]:
        return {rank: self.lines(rank) for rank in range(self.workers)}

    def ends(self) -> dict[int, dict[str, Any]]:
        """By rank the digests with which a worker has ended the training well."""
        found = {}
        for rank in range(self.workers):
            lines = self.lines(rank, "stdout")
            if lines and self.ended.get(rank, (1,))[0] == 0:
                found[rank] = json.loads(lines[-1])
        return found

    def seconds(self) -> float:
        """The seconds from the fault until the last worker without a fault has ended."""
        faulty = self.fault["worker"] if self.fault else None
        others = [at for rank, (_, at) in self.ended.items() if rank != faulty]
        return max(others) - self.at if self.at and others else 0.0


def backups_in(folder: str) -> dict[str, bytes]:
    """The files of all backups below a run's folder."""
    root = pathlib.Path(folder)
    found = [path for path in root.rglob("*") if path.is_file() and "backup" in path.parts]
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def worker_of(path: str) -> int:
    """Whose backup a file is."""
    first = pathlib.Path(path).parts[0]
    return int(first.removeprefix("rank")) if first.startswith("rank") else 0
