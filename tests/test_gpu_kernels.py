"""benchmarks/gpu_kernels.py, which needs a GPU, with emulated kernels in its place."""

import pathlib
import runpy
import subprocess
import sys
import time

import numpy as np
import pytest
from test_cuda_emulated import library, pytestmark  # noqa: F401

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "benchmarks" / "gpu_kernels.py"
LENGTHS = [70, 3, 5000, 64]
pytestmark = [*pytestmark, pytest.mark.skipif(not SCRIPT.exists(), reason="it is not here")]


@pytest.fixture
def names(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def host(names):
    """The processor's memory as if it were a GPU's."""

    class Clocked(names["Host"]):
        @staticmethod
        def copy(to, memory):
            to[...] = memory

        @staticmethod
        def seconds(call):
            began = time.perf_counter()
            call()
            return time.perf_counter() - began

    return Clocked()


def test_it_measures_every_kernel(library, names, host):  # noqa: F811
    emulated = names["Library"](library, host)
    lines = list(names["measured"]("some", LENGTHS, host, emulated, emulated, 3))
    assert [line["kernel"] for line in lines] == list(names["Lists"](host, LENGTHS).cases())
    for line in lines:
        assert line["differing"] == 0 and line["outputs"] >= 1
        assert line["launches"] >= 2 and line["microseconds"] > 0, line


def test_the_kernels_get_what_they_expect(library, names, host):  # noqa: F811
    """The structures that Python makes are those of the headers."""
    emulated = names["Library"](library, host)
    lists = names["Lists"](host, LENGTHS)
    for case in lists.cases().values():
        emulated.prepared(case)()
    cases = {case.launcher: case for case in lists.cases().values()}
    for case in cases.values():
        emulated.prepared(case)()
    xs = lists._xs
    words = np.concatenate([packed(x >= 0) for x in xs])
    assert np.array_equal(cases["sign_list"].outputs[0], words)
    assert np.array_equal(cases["ternary_scales"].outputs[0], [np.abs(x).max() for x in xs])
    values, indices, *kept, finite = cases["top_k_list"].outputs
    accs = [x + residual for x, residual in zip(xs, lists._residuals)]
    assert indices[0] == np.abs(accs[0]).argmax() and values[0] == accs[0][indices[0]]
    assert finite == cases["all_finite"].outputs[0] == 1


def packed(bits):
    """32 bits a word, the first in the lowest."""
    padded = np.zeros(-(-len(bits) // 32) * 32, np.uint8)
    padded[: len(bits)] = bits
    return np.packbits(padded, bitorder="little").view(np.uint32)


def test_it_says_what_is_missing():
    ended = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(("There is no ", "There is neither PyTorch nor CuPy here")), last
