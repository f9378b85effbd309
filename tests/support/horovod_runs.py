"""Runs programs under Horovod."""

import functools
import importlib.util
import json

import pytest
from launch import launch

from grace_tf.cli import doctor

THERE = importlib.util.find_spec("horovod") is not None
needs_horovod = pytest.mark.skipif(
    not THERE, reason="" if THERE else f"Horovod is {doctor.horovod()}"
)
launch_horovod = functools.partial(launch, horovod=True)


def lines_of(run, program):
    """What each worker has printed of one of several programs that `under_horovod.py` has run."""
    return [_after(lines, f"== {program}") for lines in run.out]


def answers_of(run, program):
    """The JSON among `lines_of`, a list a worker."""
    found = lines_of(run, program)
    return [[json.loads(line) for line in lines if line.startswith("{")] for lines in found]


def _after(lines, heading):
    """The lines between this heading and the next; empty where the heading is missing."""
    if heading not in lines:
        return []
    rest = lines[lines.index(heading) + 1 :]
    ends = [i for i, line in enumerate(rest) if line.startswith("== ")]
    return rest[: ends[0]] if ends else rest
