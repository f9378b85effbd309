"""benchmarks/gpu_kernels.py, which needs a GPU, with emulated kernels in its place."""

import importlib
import json
import pathlib
import runpy
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from test_cuda_emulated import library, pytestmark  # noqa: F401

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_kernels.py"
LENGTHS = [70, 3, 5000, 64]
LISTS = {"one tensor": [sum(LENGTHS)], "some": LENGTHS, "fewer": LENGTHS[1:3]}
pytestmark = [*pytestmark, pytest.mark.skipif(not SCRIPT.exists(), reason="it is not here")]


@pytest.fixture
def names(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def memories(monkeypatch):
    """gpu_memory.py, where neither PyTorch nor CuPy is installed until a test says otherwise."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    return importlib.import_module("gpu_memory")


@pytest.fixture
def host(names):
    """The processor's memory as if it were a GPU's."""

    class Clocked(names["Host"]):
        name = "no GPU"

        @staticmethod
        def copy(to, memory):
            to[...] = memory

        @staticmethod
        def record():
            return time.perf_counter()

        @staticmethod
        def reached(event):
            return False

        @staticmethod
        def elapsed(began, ended):
            return ended - began

    return Clocked()


def short_clock(names, memory):
    """A clock for emulated kernels, which take long."""
    clock = names["Clock"](memory, 1)
    clock.calls = 1
    return clock


# One launch writes the table of the list's tensors, and the kernel needs another; more only where
# a pass needs what all blocks have found.
LAUNCHES = {
    "absmax": 3,
    "quantise 8 bits, whole tensors": 4,
    "top-k 1 %": 6,
    "scatter 1 %": 3,
    "Mt P with the residual, rank 4": 3,
}


def test_it_measures_every_kernel(library, names, host):  # noqa: F811
    emulated = names["Library"](library, host)
    lines = list(names["measured"](LISTS, emulated, emulated, short_clock(names, host), 3))
    kernels = list(names["Lists"](host, LENGTHS).cases())
    assert [(line["kernel"], line["list"]) for line in lines] == [
        (kernel, name) for kernel in kernels for name in LISTS
    ]
    for line in lines:
        assert line["differing"] == 0 and line["outputs"] >= 1
        assert line["launches"] == LAUNCHES.get(line["kernel"], 2), line
        assert line["microseconds"] > 0, line
        assert line["host_ahead"]


def test_several_tensors_are_compared_with_one_of_as_many_elements(names):
    elements = {"one tensor": 1000, "some": 1000, "fewer": 500}
    times = {"one tensor": (2e-6, True), "some": (3e-6, True), "fewer": (1e-6, False)}
    times.update({(name, "copy"): (4e-6, True) for name in elements})
    one, some, fewer = (names["speeds"](name, 6000, elements, times) for name in elements)
    assert some["times_one_tensor"] == 1.5
    assert "times_one_tensor" not in one and "times_one_tensor" not in fewer
    assert some["gb_per_second"] == 2 and some["share_of_copy"] == 1
    assert some["host_ahead"] and not fewer["host_ahead"]


class Simulated:
    """A GPU that runs in order what the host starts. The host needs time for each start."""

    def __init__(self, copy_seconds):
        self.copy_seconds, self.now, self.idle_from = copy_seconds, 0.0, 0.0

    def put(self, array):
        return array

    def copy(self, to, memory):
        self.start(5e-6, self.copy_seconds)

    def start(self, host_seconds, gpu_seconds):
        self.now += host_seconds
        self.idle_from = max(self.idle_from, self.now) + gpu_seconds

    def record(self):
        return max(self.idle_from, self.now)

    def reached(self, event):
        return event <= self.now

    def elapsed(self, began, ended):
        self.now = max(self.now, ended)
        return ended - began


@pytest.mark.parametrize("copy_seconds, seconds, ahead", [(9e-5, 3e-5, True), (0, 2e-4, False)])
def test_the_clock_leaves_out_the_host(memories, copy_seconds, seconds, ahead):
    """The host needs 200 us to start a call that takes the GPU 30 us. Copies must fill the gap."""
    gpu = Simulated(copy_seconds)
    measured, was_ahead = memories.Clock(gpu, 1).seconds(lambda: gpu.start(2e-4, 3e-5))
    assert was_ahead == ahead
    assert measured == pytest.approx(seconds, rel=0.2)


def test_by_default_both_lists_have_as_many_elements(
    library,  # noqa: F811
    names,
    host,
    monkeypatch,
    tmp_path,
):
    out = tmp_path / "lines"
    argv = [str(SCRIPT), "--library", str(library), "--repeats", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", argv)
    inside = names["main"].__globals__
    monkeypatch.setitem(inside, "gpu", lambda: host)
    monkeypatch.setitem(inside, "Clock", lambda memory: short_clock(names, memory))
    assert len(names["resnet50"]()) == 161
    monkeypatch.setitem(inside, "resnet50", lambda: LENGTHS)
    names["main"]()
    machine, *lines = map(json.loads, out.read_text().splitlines())
    assert machine["elements"] == sum(LENGTHS) and machine["library"] == "emulated"
    assert {line["list"] for line in lines if "times_one_tensor" in line} == {"ResNet-50"}


@pytest.fixture
def installed(names, monkeypatch, tmp_path):
    """A package grace_tf that has a library, and that ends the program when it is imported."""
    package = tmp_path / "site" / "grace_tf"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('it was imported')")
    (package / "libgrace_cuda.so").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "grace_tf")
    checkout = tmp_path / "checkout" / "libgrace_cuda.so"
    monkeypatch.setitem(names["library_path"].__globals__, "LIBRARY", checkout)
    return package / "libgrace_cuda.so"


def test_the_library_is_the_named_one_or_the_checkouts_or_the_installed_one(
    names, installed, tmp_path
):
    checkout = names["library_path"].__globals__["LIBRARY"]
    assert names["library_path"](None) == installed
    checkout.parent.mkdir()
    checkout.touch()
    assert names["library_path"](None) == checkout
    other = tmp_path / "other.so"
    other.touch()
    assert names["library_path"](other) == other


def test_a_missing_library_is_named(names, installed, tmp_path):
    installed.unlink()
    with pytest.raises(SystemExit, match="^There is no .*checkout.* nor .*site.*--library.$"):
        names["library_path"](None)
    with pytest.raises(SystemExit, match="^There is no .*other.so: "):
        names["library_path"](tmp_path / "other.so")


def torch_without_gpu():
    cuda = types.SimpleNamespace(is_available=lambda: False)
    return types.SimpleNamespace(cuda=cuda)


def cupy_with(count):
    stream = types.SimpleNamespace(ptr=0)
    runtime = types.SimpleNamespace(
        getDeviceCount=count,
        CUDARuntimeError=RuntimeError,
        getDeviceProperties=lambda device: {"name": b"a GPU"},
    )
    return types.SimpleNamespace(
        cuda=types.SimpleNamespace(runtime=runtime, get_current_stream=lambda: stream)
    )


def without_device():
    raise RuntimeError("cudaErrorNoDevice: no CUDA-capable\ndevice is detected.")


def test_cupy_serves_where_pytorch_finds_no_gpu(memories, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch_without_gpu())
    monkeypatch.setitem(sys.modules, "cupy", cupy_with(lambda: 1))
    assert isinstance(memories.gpu(), memories.CuPy)


def test_each_module_says_why_it_finds_no_gpu(memories, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch_without_gpu())
    monkeypatch.setitem(sys.modules, "cupy", cupy_with(without_device))
    reasons = (
        "PyTorch finds none, and CuPy says cudaErrorNoDevice: no CUDA-capable device is detected"
    )
    with pytest.raises(SystemExit, match=f"^There is no GPU here for this program: {reasons}.$"):
        memories.gpu()


def test_cupy_that_cannot_be_imported_is_no_gpu(memories, monkeypatch, tmp_path):
    """As CuPy's own import: its text has many lines, and its cause is the last of them."""
    (tmp_path / "cupy.py").write_text(
        "try:\n"
        "    raise ImportError('libcuda.so.1: cannot open shared object file')\n"
        "except ImportError as error:\n"
        "    raise ImportError('=====\\nFailed to import CuPy.\\n\\n=====') from error\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cupy")
    cause = r"CuPy cannot be imported \(libcuda.so.1: cannot open shared object file\)"
    with pytest.raises(SystemExit, match=f"^There is no GPU here for this program: {cause}.$"):
        memories.gpu()


def test_without_either_module_it_says_so(memories):
    with pytest.raises(SystemExit, match="^There is neither PyTorch nor CuPy here"):
        memories.gpu()


def test_pytorch_gets_no_type_that_it_may_not_know(memories, monkeypatch):
    class Tensor:
        def __init__(self, array):
            assert array.dtype != np.uint32, "PyTorch before 2.3 refuses it"
            self.array = array

        def cuda(self):
            return self.array

    stream = types.SimpleNamespace(cuda_stream=0)
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        get_device_name=lambda: "a GPU",
        current_stream=lambda: stream,
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda, from_numpy=Tensor))
    words = np.array([0, 2**32 - 1], np.uint32)
    assert memories.gpu().put(words).tobytes() == words.tobytes()


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
    values, indices, *residuals_out, finite = cases["top_k_list"].outputs
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
