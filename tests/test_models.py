"""The models that people train, by the three lines and without any seed, on every engine.

The program is tests/programs/real_models.py, which says what each kind is.
"""

import functools
import io
import itertools
import json
import pathlib
import re
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import mirrored

import grace_tf
from grace_tf.cli import launcher

PROGRAM = pathlib.Path(__file__).parent / "programs" / "real_models.py"
sys.path.insert(0, str(PROGRAM.parent))
import real_models  # noqa: E402
from real_models import METHODS  # noqa: E402

APPLICATIONS = ("resnet50", "efficientnet")
KINDS = [kind for kind in real_models.KINDS if kind not in ("jit_compile", *APPLICATIONS)]
DO_NOT_LEARN = ("gan", *APPLICATIONS)  # two losses against each other; one epoch of two steps


def check(result, replicas):
    """What must hold of a training on one process' workers."""
    for phase in result["shas"]:
        assert len(phase) == replicas and len(set(phase)) == 1
    assert np.isfinite(result["losses"]).all()
    assert min(result["steps"]) > 0, "no step went down the line compressed"
    if result["kind"] not in DO_NOT_LEARN:
        assert result["losses"][-1] < result["losses"][0]


@functools.cache
def launched(kinds, methods=METHODS):
    """What two processes say of each (kind, method), and everything they printed."""
    out = io.StringIO()
    command = [sys.executable, "-u", str(PROGRAM), ",".join(kinds), *methods]
    launcher.run(command, 2, timeout=900, linger=45, stdout=out, stderr=out)
    said = {}
    for line in out.getvalue().splitlines():
        if told := re.search(r'\{"worker": \d.*', line):
            result = json.loads(told[0])
            said.setdefault((result["kind"], result["method"]), []).append(result)
    return said, out.getvalue()


def check_processes(said, printed, kind, method):
    results = said.get((kind, method), ())
    assert len(results) == 2, printed[-3000:]
    for result in results:
        check(result, replicas=1)
    assert results[0]["shas"] == results[1]["shas"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_in_two_processes(kind, method):
    check_processes(*launched(tuple(KINDS)), kind, method)


@pytest.mark.parametrize("kind", APPLICATIONS)
def test_applications_in_two_processes(kind):
    check_processes(*launched(APPLICATIONS, ("stages",)), kind, "stages")


def test_xla_between_processes_is_refused_in_a_sentence():
    said, printed = launched(("jit_compile",), METHODS[:1])
    assert not said
    assert printed.count("XLA cannot compile collectives between processes") >= 2


def wrapped(method):
    return mirrored(2)


def compressing(method):
    ops = grace_tf.CompressedAllReduce(real_models.compressor(method))
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)


DOORS = {"wrap": wrapped, "CompressedAllReduce": compressing}


def pairwise():
    """(door, kind, method): every pair of any two of the three, in half of all combinations."""
    doors = list(DOORS)
    for (i, kind), (j, method) in itertools.product(enumerate(KINDS), enumerate(METHODS)):
        yield doors[(i + j) % 2], kind, method
    yield from ((doors[i % 2], kind, "stages") for i, kind in enumerate(APPLICATIONS))


@pytest.mark.parametrize("door, kind, method", pairwise())
def test_under_a_strategy(door, kind, method):
    check(real_models.train(kind, method, DOORS[door](method)), replicas=2)


@pytest.mark.parametrize("door", DOORS)
def test_xla_under_a_strategy_is_refused_in_a_sentence(door):
    method = METHODS[0]
    with pytest.raises(RuntimeError, match="XLA compiles for one device"):
        real_models.train("jit_compile", method, DOORS[door](method))


@pytest.mark.parametrize("method", METHODS)
def test_xla_alone(method):
    check(real_models.train("jit_compile", method), replicas=1)
