"""Runs the programs of tests/programs in several workers and takes apart what they print."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import pathlib
import re
import sys
from unittest import mock

from fork_server import ForkServer

import grace_tf
from grace_tf.cli import launcher
from grace_tf.cli.run import local_and_ssh

SHARED: pathlib.Path | None = None  # the folder of `launch_once`, which conftest.py gives
PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "programs"
WARM = ForkServer()


class Run:
    """A run that has ended.

    Attributes:
      code: the exit code of the run.
      out, err: the lines that each worker has printed, a list a worker.
      launcher: the lines of the launcher itself.
      text: everything, as it came, stderr after stdout.
    """

    def __init__(self, code: int, out: str, err: str, workers: int):
        self.code, self.text = code, f"{out}\n{err}"
        self.out, self.err = _by_worker(out, workers), _by_worker(err, workers)
        self.launcher = re.findall(r"^\[grace_tf\] (.*\S)", err, re.MULTILINE)

    def answers(self) -> list[list]:
        """What each worker has printed as JSON objects, a list a worker."""
        return [[json.loads(line) for line in lines if line[:1] == "{"] for lines in self.out]

    def said(self) -> list[str]:
        """All lines of each worker in one text, stderr after stdout."""
        return ["\n".join([*out, *err]) for out, err in zip(self.out, self.err)]

    def succeeded(self) -> Run:
        """This run; an assertion fails where a worker has failed."""
        assert self.code == 0, f"exit code {self.code}\n{self.text[-6000:]}"
        return self


def launch(
    program,
    *arguments,
    workers=2,
    timeout=500,
    linger=60.0,
    horovod=False,
    cold=False,
    link=None,
):
    """Runs a program, a path or a name in tests/programs, in `workers` processes.

    Args:
      timeout: seconds for a run that hangs.
      linger: seconds for the other workers to say their own sentence after one has failed.
      horovod: whether `hvd.init()` finds the workers.
      cold: whether the processes import TensorFlow themselves.  It costs eight seconds of a
        processor each, and is needed where the import or the memory of a process is the subject,
        and for processes with a network namespace.
      link: what `--link` says.
    """
    out, err = io.StringIO(), io.StringIO()
    words = [sys.executable, "-u", str(PROGRAMS / program), *map(str, arguments)]
    keywords = {"timeout": timeout, "linger": linger, "horovod": horovod, "link": link}
    child = local_and_ssh._child if cold else WARM.start
    start = mock.patch.object(local_and_ssh, "_child", child)
    with mock.patch.dict(os.environ, surroundings()), start:
        code = launcher.run(words, workers, stdout=out, stderr=err, **keywords)
    return Run(code, out.getvalue(), err.getvalue(), workers)


def launch_once(program, *arguments, **keywords):
    """The run that `launch` makes of these arguments, made once for all processes of pytest."""
    words = json.dumps([program, *map(str, arguments), sorted(keywords.items())])
    name = f"run-{hashlib.sha256(words.encode()).hexdigest()[:16]}"
    with open(SHARED / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        kept = SHARED / f"{name}.json"
        if not kept.exists():
            run = launch(program, *arguments, **keywords)
            kept.write_text(json.dumps(vars(run)))
    run = Run.__new__(Run)
    vars(run).update(json.loads(kept.read_text()))
    return run


def surroundings() -> dict[str, str]:
    """The variables of the environment with which processes import this package, and use no GPU."""
    path = [str(pathlib.Path(grace_tf.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path)), "CUDA_VISIBLE_DEVICES": "-1"}


def _by_worker(text: str, workers: int) -> list[list[str]]:
    said: list[list[str]] = [[] for _ in range(workers)]
    for line in text.splitlines():
        if match := re.match(r"\[(\d+)\] (.*\S)", line):
            said[int(match[1])].append(match[2])
    return said
