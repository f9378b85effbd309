"""Runs the workers of a small training, one of which has a fault; faults.py starts this program.

    python benchmarks/faulty.py group|strategy|horovod      reads jobs, one line of JSON each

TensorFlow is imported once; each job is a process that is forked off before TensorFlow's runtime
starts, and ends as any other Python program.  A job holds `rank`, `workers`, `environment`,
`folder`, `timeout` and `fault`: None, or its `kind`, the `worker` whose it is, its `place`, after
how many `steps`, `late` (after the callbacks that save), `delay` (seconds in the step) and `seed`.
Out go lines of JSON: which process is which worker, and with which code it has ended when.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import pathlib
import select
import signal
import socket
import sys
import time
from typing import Any

import tensorflow as tf
from injection import damage, memory, training
from injection.kinds import KINDS
from injection.training import injected

import grace_tf
from grace_tf.transports import tensorflow_server

ENGINE = sys.argv[1]
if ENGINE == "horovod":
    import horovod.tensorflow as hvd

_LOST_AT_START = {
    "killed at the start": signal.SIGKILL,
    "stopped at the start": signal.SIGSTOP,
}
_ATTACK = 5.0  # seconds that a worker waits for strangers where it has begun to listen


def serve() -> dict[str, Any] | None:
    """In a forked process the job, in the first one None when no more jobs come."""
    left, alive = b"", set()
    gc.collect()
    gc.freeze()  # a collector in a forked process need not look at what was imported
    while True:
        if select.select([0], [], [], 0.05)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, left = (left + data).split(b"\n")
            for line in lines:
                job = json.loads(line)
                pid = os.fork()
                if not pid:
                    return job
                alive.add(pid)
                say(rank=job["rank"], pid=pid)
        while alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            alive.discard(pid)
            say(pid=pid, code=os.waitstatus_to_exitcode(status), at=time.time())
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    return None


def say(**told: Any) -> None:
    print(json.dumps(told), flush=True)


def begin(job: dict[str, Any]) -> tf.distribute.Strategy:
    """Joins the other workers."""
    for number, name in enumerate((os.devnull, f"stdout-{job['rank']}", f"stderr-{job['rank']}")):
        path = os.path.join(job["folder"], name)
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(job["environment"])
    faulthandler.register(signal.SIGUSR1)  # for what hangs
    fault = job["fault"]
    family = KINDS[fault["kind"]].family if fault else ""
    if family == "strangers":
        _tell_of_ports(pathlib.Path(job["folder"]), job["rank"], fault["phase"] == "start")
    if family == "backup" and job["rank"] == fault["worker"]:
        damage.KINDS[fault["kind"]](job)
    if family == "memory":
        _on_hosts_of_two()
        memory.watch(job)
        if fault["kind"] == "killed while it is made" and job["rank"] == fault["worker"]:
            memory.lose_while_made(job, _lose)
    lost = fault and fault["kind"] in _LOST_AT_START and job["rank"] == fault["worker"]
    if ENGINE == "group" and lost:  # when all have met
        tensorflow_server.start = lambda *_: _lose(job)
    if family == "start" and job["rank"] != fault["worker"]:
        injected(job)  # where a port is taken, the time of the others begins here
    strategy = tf.distribute.get_strategy()
    if ENGINE == "strategy":
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=job["timeout"])
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    if ENGINE == "horovod":
        hvd.init()
    if ENGINE != "group" and lost:
        _lose(job)
    if ENGINE != "strategy":
        grace_tf.init(timeout=job["timeout"])
    return strategy


def _on_hosts_of_two() -> None:
    """Calls this machine 127.0.0.1 for the first two workers, 127.0.0.2 for the next two."""
    config = json.loads(os.environ["TF_CONFIG"])
    workers = config["cluster"]["worker"]
    for rank, address in enumerate(workers):
        workers[rank] = f"127.0.0.{1 + rank // 2}:{address.rpartition(':')[2]}"
    os.environ["TF_CONFIG"] = json.dumps(config)


def _lose(job: dict[str, Any]) -> None:
    """Loses this worker before its first step."""
    injected(job)
    os.kill(os.getpid(), _LOST_AT_START.get(job["fault"]["kind"], signal.SIGKILL))


def _tell_of_ports(folder: pathlib.Path, rank: int, waits: bool) -> None:
    """Tells where Python's servers of this process listen; with `waits` strangers come first."""
    original = socket.socket.listen

    def listen(self, *backlog):
        original(self, *backlog)
        port = self.getsockname()[1]
        with open(folder / f"ports-{rank}", "a") as file:
            file.write(f"{port}\n")
        until = time.time() + _ATTACK
        while waits and time.time() < until and not (folder / f"attacked-{port}").exists():
            time.sleep(0.005)

    socket.socket.listen = listen


if __name__ == "__main__":
    given = serve()
    if given is not None:
        training.train(given, begin(given))
