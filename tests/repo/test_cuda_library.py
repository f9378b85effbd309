"""The library of CUDA kernels: its exports, how it is built, and the reason where it is not."""

import contextlib
import pathlib
import re
import shutil
import subprocess
from unittest import mock

import pytest
import tensorflow as tf
from launch import launch
from test_build_files import BROKEN, built_package, needs_setuptools, setup_file

from grace_tf import ops
from grace_tf.aggregation.state import slots
from grace_tf.cli import doctor
from grace_tf.ops import dispatch
from grace_tf.ops.backend import cuda, native

KERNELS = pathlib.Path(__file__).resolve().parents[2] / "custom_ops" / "kernels"
needs_sources = pytest.mark.skipif(not KERNELS.exists(), reason="the C++ sources are not here")
needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())


def declared():
    """The names of the functions that the headers declare."""
    text = "".join(header.read_text() for header in KERNELS.rglob("*.h"))
    return set(re.findall(r"^\w.* (grace_cuda_\w+)\(", text, re.M))


# `make native-test` builds it for one architecture where nvcc is.
BUILT = KERNELS.parents[1] / "build" / "custom_ops" / "libgrace_cuda.so"
needs_library = pytest.mark.skipif(not BUILT.exists(), reason="make native-test did not build it")


@pytest.mark.skipif(not BUILT.parent.exists(), reason="make native-test has not run here")
def test_where_nvcc_is_there_native_test_has_built_the_library():
    # The tests below are skipped without the library, so its absence must fail here.
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not here")
    assert BUILT.exists(), "nvcc is there: run `make native-test`."


@needs_library
@pytest.mark.skipif(not shutil.which("nm"), reason="nm is not here")
def test_it_exports_what_is_declared_and_needs_no_tensorflow():
    options = ["nm", "-D", "--without-symbol-versions", str(BUILT)]
    listing = subprocess.run(options, check=True, capture_output=True, text=True).stdout
    symbols = [line.split() for line in listing.splitlines()]
    exported = {symbol[-1] for symbol in symbols if len(symbol) == 3}
    assert {name for name in exported if name.startswith("grace")} == declared()
    for *_, name in symbols:
        assert not re.search(r"TF_|tensorflow|absl", name), name
    needed = subprocess.run(["ldd", str(BUILT)], capture_output=True, text=True).stdout
    assert "cuda" not in needed.replace(str(BUILT), "")  # it loads where there is no CUDA


@needs_native
@needs_library
def test_beside_it_the_list_operations_have_kernels_for_gpus(tmp_path):
    shutil.copy(native.LIBRARY, tmp_path)
    shutil.copy(BUILT, tmp_path)
    ((told,),) = launch("gpu_kernels.py", tmp_path, workers=1).succeeded().answers()
    assert told["missing"] == []
    assert re.match(r"CUDA \d+\.\d for sm_90$", told["build"])


@needs_sources
def test_every_kernel_for_gpus_stands_beside_one_for_cpus():
    for file in KERNELS.rglob("*.cu"):
        assert file.with_suffix(".cc").exists() or file.stem == "library", file.name


@needs_sources
def test_each_major_architecture_is_built_once_and_the_newest_as_ptx_too():
    targets = setup_file()[1]["cuda_targets"]
    flags = targets("compute_50\ncompute_86\ncompute_75\ncompute_80\ncompute_120\ncompute_121\n")
    assert [flag for flag in flags if flag.startswith("arch=")] == [
        "arch=compute_75,code=sm_75",
        "arch=compute_80,code=sm_80",
        "arch=compute_120,code=sm_120",
        "arch=compute_121,code=compute_121",
    ]
    assert flags[-1] == '-DGRACE_CUDA_ARCHS="sm_75 sm_80 sm_120 compute_121"'


def found(**told):
    """As if these were the facts that the library gives about itself."""
    usual = dict(build="CUDA 13.0 for sm_75", driver=13000, runtime=13000, error=0, message="")
    cuda._why_not.cache_clear()
    return mock.patch.object(cuda, "built", lambda: cuda.Built(**{**usual, **told}))


@contextlib.contextmanager
def gpu_of(major, minor):
    """As if TensorFlow saw a GPU of this compute capability."""
    gpu = mock.Mock()
    gpu.name = "/physical_device:GPU:1"
    with (
        mock.patch.object(tf.config, "get_visible_devices", lambda kind: [gpu]),
        mock.patch.object(
            tf.config.experimental,
            "get_device_details",
            lambda device: {"compute_capability": (major, minor)},
        ),
    ):
        yield


@pytest.mark.parametrize(
    "capability, runs",
    [((7, 0), False), ((7, 5), True), ((8, 9), True), ((9, 0), False), ((12, 0), True)]
    + [((12, 1), True), ((13, 0), True)],
)
def test_a_gpu_runs_its_own_code_or_older_ptx(capability, runs):
    assert cuda.has_code("CUDA 13.0 for sm_75 sm_80 sm_100 compute_120", capability) == runs


def test_all_finite_runs_where_the_cuda_library_does_not():
    # Of tensors on the CPU, beside a GPU that the library cannot use: the native operation has a
    # kernel for GPUs, and TensorFlow would choose it.
    with (
        mock.patch.object(tf.config, "list_logical_devices", lambda kind: ["a GPU"]),
        found(driver=12040, error=35, message="insufficient"),
        mock.patch.object(native, "all_finite", side_effect=AssertionError),
    ):
        assert ops.all_finite([tf.ones([3])])


@pytest.fixture(autouse=True)
def ask_anew():
    yield
    cuda._why_not.cache_clear()


@needs_native
def test_it_is_told_why_it_does_not_run():
    with found():
        assert cuda.why_not() == ""
        assert doctor.cuda_library().startswith("CUDA 13.0 for sm_75; the driver serves CUDA 13.0")
    with found(driver=12040, error=35, message="insufficient"):
        assert cuda.why_not().startswith("The driver serves CUDA 12.4, and libgrace_cuda.so was b")
        assert doctor.cuda_library() == "CUDA 13.0 for sm_75; not usable here: insufficient"
    with found(driver=0, error=35, message="there is no driver"):
        assert cuda.why_not() == "CUDA does not run here: there is no driver."
    with mock.patch.object(cuda, "built", lambda: "It was not built."):
        cuda._why_not.cache_clear()
        assert cuda.why_not() == doctor.cuda_library() == "It was not built."
    with found(), gpu_of(7, 0):
        assert cuda.why_not() == (
            "libgrace_cuda.so has no code for /physical_device:GPU:1 of compute capability 7.0 (it "
            "was built by CUDA 13.0 for sm_75): install the package again with an nvcc that knows "
            "this GPU."
        )
    with found(), gpu_of(7, 8):
        assert cuda.why_not() == ""
    with found(), mock.patch.object(native, "knows_stream", lambda: False):
        assert "keeps its CUDA stream was not checked" in cuda.why_not()


@needs_sources
@needs_setuptools
def test_the_doctor_tells_why_the_library_was_not_built(tmp_path):
    def told(nvcc):
        made, _ = built_package(tmp_path, nvcc, "--inplace")
        with (
            mock.patch.object(cuda, "LIBRARY", made / cuda.LIBRARY.name),
            mock.patch.object(cuda, "built", cuda.built.__wrapped__),
        ):
            reason = doctor.cuda_library()
            (made / "libgrace_cuda.txt").unlink()
            return reason, doctor.cuda_library()

    reason, unknown = told(None)
    assert reason.endswith("this package: there was no nvcc in CUDA_HOME/bin or PATH.")
    assert unknown == f"There is no libgrace_cuda.so in {tmp_path}/grace_tf, and nothing tells why."
    assert told(BROKEN)[0].endswith("nvcc ended with exit code 2: fatal error: no cuda.h.")


@needs_native
def test_lists_run_on_gpus_where_the_kernels_do():
    x = tf.zeros([3])
    with mock.patch.object(dispatch, "_on_cpu", lambda x: False):
        with found():
            assert dispatch.runs_here([x])
        with found(error=100, message="no device"), pytest.warns(UserWarning, match="no device"):
            assert not dispatch.runs_here([x])
        assert dispatch.chosen(x).__name__.endswith("reference")
    assert dispatch.runs_here([x])


def test_the_counter_of_steps_lies_beside_the_gpu():
    gpu = "/job:worker/replica:0/task:1/device:GPU:3"
    assert slots.host_of(gpu) == "/job:worker/replica:0/task:1/device:CPU:0"
    assert slots.host_of("/job:worker/task:1/device:CPU:2") == "/job:worker/task:1/device:CPU:2"
    assert slots.host_of(None) is None


@needs_library
def test_the_library_answers_without_a_gpu():
    with mock.patch.object(cuda, "LIBRARY", BUILT):
        told = cuda.built.__wrapped__()
    assert re.match(r"CUDA \d+\.\d for sm_90$", told.build), told.build
    assert told.runtime >= 12000
