"""Launches programs under Horovod and takes apart what their workers print."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import re
import sys

import pytest

from grace_tf.cli import doctor, launcher

PROGRAMS = pathlib.Path(__file__).parent / "programs"

THERE = importlib.util.find_spec("horovod") is not None
needs_horovod = pytest.mark.skipif(
    not THERE, reason="" if THERE else f"Horovod is {doctor.horovod()}"
)


class Run:
    """A run that has ended.

    Attributes: code, its exit code; out and err, the lines of each worker; text, all of both.
    """

    def __init__(self, *arguments, workers=2, linger=60, horovod=True):
        """`arguments` is a program of the folder `programs` and its arguments."""
        out, err = io.StringIO(), io.StringIO()
        with _path():
            self.code = launcher.run(
                [sys.executable, "-u", str(PROGRAMS / arguments[0]), *arguments[1:]],
                workers,
                timeout=500,  # of a run that hangs; a busy machine takes some minutes
                linger=linger,
                stdout=out,
                stderr=err,
                horovod=horovod,
            )
        self.text = f"{out.getvalue()}\n{err.getvalue()}"
        self.out, self.err = _by_worker(out, workers), _by_worker(err, workers)

    def said(self, program=None):
        """Each worker's lines, of one program of several that `under_horovod.py` has run."""
        if program is None:
            return self.out
        return [_after(lines, f"== {program}") for lines in self.out]

    def answers(self, program=None):
        """What each worker has printed as JSON."""
        found = self.said(program)
        return [[json.loads(line) for line in lines if line.startswith("{")] for lines in found]


@contextlib.contextmanager
def _path():
    """The workers import the package that this process has imported."""
    before = os.environ.get("PYTHONPATH")
    own = str(pathlib.Path(launcher.__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [own, before]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _by_worker(stream, workers):
    said = [[] for _ in range(workers)]
    for line in stream.getvalue().splitlines():
        match = re.match(r"\[(\d+)\] (.*\S)", line)
        if match:
            said[int(match[1])].append(match[2])
    return said


def _after(lines, heading):
    """The lines between this heading and the next; empty where the heading is missing."""
    if heading not in lines:
        return []
    rest = lines[lines.index(heading) + 1 :]
    ends = [i for i, line in enumerate(rest) if line.startswith("== ")]
    return rest[: ends[0]] if ends else rest
