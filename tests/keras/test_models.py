"""The models that people train, by the three lines and without any seed, on every engine.

The program is tests/programs/real_models.py, which says what each kind is.
"""

import numpy as np
import pytest
import real_models  # noqa: E402
import tensorflow as tf
from launch import launch
from real_models import METHODS  # noqa: E402
from replicas import mirrored

import grace_tf

APPLICATIONS = ("resnet50", "efficientnet")
KINDS = [kind for kind in real_models.KINDS if kind not in ("jit_compile", *APPLICATIONS)]
DO_NOT_LEARN = ("gan", *APPLICATIONS)  # two losses against each other; one epoch of two steps
# Each kind with each method: two methods between processes, two under a strategy, by one door each.
PAIRS = {(kind, method): i + j for i, kind in enumerate(KINDS) for j, method in enumerate(METHODS)}
IN_PROCESSES = (*(pair for pair, n in PAIRS.items() if n % 2), ("resnet50", "stages"))


def check(result, replicas):
    """What must hold of a training on one process' workers."""
    for phase in result["shas"]:
        assert len(phase) == replicas and len(set(phase)) == 1
    assert np.isfinite(result["losses"]).all()
    assert min(result["steps"]) > 0, "no step went down the line compressed"
    if result["kind"] not in DO_NOT_LEARN:
        assert result["losses"][-1] < result["losses"][0]


@pytest.mark.slow
@pytest.mark.rotated
@pytest.mark.parametrize("kind, method", IN_PROCESSES)
def test_in_two_processes(kind, method):
    ((one,), (other,)) = launch("real_models.py", kind, method).succeeded().answers()
    for result in (one, other):
        check(result, replicas=1)
    assert one["shas"] == other["shas"]


def test_xla_compiles_between_processes_all_but_the_exchange():
    ((one,), (other,)) = launch("real_models.py", "jit_compile", METHODS[0]).succeeded().answers()
    check(one, replicas=1)
    assert one["shas"] == other["shas"]


def wrapped(method):
    return mirrored(2)


def compressing(method):
    ops = grace_tf.CompressedAllReduce(real_models.compressor(method))
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)


DOORS = {"wrap": wrapped, "CompressedAllReduce": compressing}


def by_one_door():
    """(door, kind, method) of all that does not go between processes."""
    doors = list(DOORS)
    for (kind, method), n in PAIRS.items():
        if n % 2 == 0:
            yield doors[METHODS.index(method) // 2], kind, method
    yield "CompressedAllReduce", "efficientnet", "stages"


@pytest.mark.slow
@pytest.mark.rotated
@pytest.mark.parametrize("door, kind, method", list(by_one_door()))
def test_under_a_strategy(door, kind, method):
    check(real_models.train(kind, method, DOORS[door](method)), replicas=2)


@pytest.mark.rotated
@pytest.mark.parametrize("method", METHODS)
def test_xla_alone(method):
    check(real_models.train("jit_compile", method), replicas=1)
