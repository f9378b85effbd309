"""What is built and shipped: the library's symbols, the layers of the C++, one version."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import grace_tf
from grace_tf.ops.backend import native

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = sorted((ROOT / "custom_ops" / "kernels").rglob("*.*"))
GLUE = sorted((ROOT / "custom_ops" / "ops").rglob("*.*"))
# What the kernels of a room may include from other rooms.
KERNEL_ROOMS = {
    "base": set(),
    "codes": {"base", "quantize"},
    "host": {"base", "quantize"},
    "low_rank": {"base"},
    "quantize": {"base"},
    "select": {"base", "quantize", "sparse"},
    "signs": {"base"},
    "sparse": {"base"},
}
needs_sources = pytest.mark.skipif(not KERNELS, reason="the C++ sources are not here")


def dynamic_symbols(*options):
    listing = subprocess.run(
        ["nm", "-D", *options, str(native.LIBRARY)], check=True, capture_output=True, text=True
    )
    return [line.split()[-1].split("@")[0] for line in listing.stdout.splitlines()]


@pytest.mark.skipif(not native.LIBRARY.exists(), reason="the native library is not built")
@pytest.mark.skipif(not shutil.which("nm"), reason="nm is not here")
def test_the_library_needs_only_the_c_api_of_tensorflow():
    undefined = dynamic_symbols("--undefined-only")
    assert any(name.startswith("TF_") for name in undefined)
    declared = (ROOT / "custom_ops" / "ops" / "glue" / "tf_c_api.h").read_text()
    for name in undefined:
        assert "tensorflow" not in name and "absl" not in name, name
        if name.startswith("TF_"):
            assert name in declared, name
    exported = dynamic_symbols("--defined-only")
    assert [name for name in exported if name.startswith("grace_")] == [
        "grace_emulate_cuda",
        "grace_host_bytes",
        "grace_host_map",
        "grace_host_serve",
        "grace_host_stop",
        "grace_isa",
        "grace_knows_stream",
        "grace_layout_is_known",
        "grace_set_isa",
        "grace_set_threads",
        "grace_shares_threads",
    ]


@pytest.mark.skipif(not native.LIBRARY.exists(), reason="the native library is not built")
@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf is not here")
def test_the_library_needs_no_newer_glibc_than_tensorflow():
    command = ["readelf", "--wide", "--version-info", str(native.LIBRARY)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    needed = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", listing)}
    # The wheels of TensorFlow 2.21 are tagged manylinux_2_27.
    assert needed and max(needed) <= (2, 27), needed


@needs_sources
def test_kernels_know_nothing_of_tensorflow():
    for file in KERNELS:
        for include in re.findall(r'#include [<"](.*)[>"]', file.read_text()):
            assert not re.search(r"tensorflow|tf_c_api|^ops/", include), (file.name, include)


@needs_sources
def test_arrows_between_the_rooms_of_kernels_point_one_way():
    folder = ROOT / "custom_ops" / "kernels"
    rooms = {path.name for path in folder.iterdir()}
    assert rooms == set(KERNEL_ROOMS), "every room has a rule; there are no files on the floor"
    for file in KERNELS:
        room = file.relative_to(folder).parts[0]
        included = set(re.findall(r'^#\w+ .*"kernels/(\w+)/', file.read_text(), re.M))
        assert included <= {room} | KERNEL_ROOMS[room], file.relative_to(folder)


@needs_sources
def test_only_the_dispatcher_chooses_an_instruction_set():
    for file in KERNELS + GLUE:
        if file.stem != "dispatch":
            text = file.read_text()
            assert "__builtin_cpu_supports" not in text, file.name
            assert "GCC target" not in text, file.name


@needs_sources
def test_kernels_are_written_in_the_words_of_the_backends():
    instructions = r"\b_mm\d*_|\b__m\d+|\b__mmask|\bv\w+_[fpsu](8|16|32|64)\(|immintrin|arm_neon"
    for file in KERNELS:
        # What chooses an instruction set names them all.
        if file.stem not in ("dispatch", "each_isa", "vector") and file.parent.name != "vector":
            found = re.search(instructions + r"|GRACE_(X86|NEON|BEGIN|END)|__AVX", file.read_text())
            assert not found, (file.name, found)


@needs_sources
def test_glue_has_no_loop_over_elements():
    # Its loops are over inputs and outputs; pointers to elements are only passed on.
    for file in GLUE:
        for statement in re.findall(r"data<\w+>\(\)\s*\[|data<\w+>\(\)\s*\+", file.read_text()):
            raise AssertionError(f"{file.name} touches elements: {statement}")


def test_every_operation_has_three_definitions_of_one_name():
    from grace_tf import ops
    from grace_tf.ops import reference

    for name in set(native.operations()) - set(native.list_operations()):
        for module in (ops, native, reference):
            assert callable(getattr(module, name)), (module.__name__, name)
        assert getattr(ops, name).__doc__, name


def test_the_version_is_in_one_place():
    version = grace_tf.core.version.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    for name in ("setup.py", "pyproject.toml"):
        if (ROOT / name).exists():
            assert version not in (ROOT / name).read_text()


def run_in_a_fresh_process(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=ROOT
    )


def test_importing_the_operations_starts_no_runtime():
    result = run_in_a_fresh_process(
        "import grace_tf.ops, tensorflow as tf\n"
        "tf.config.threading.set_intra_op_parallelism_threads(2)\n"
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "two = [tf.config.LogicalDeviceConfiguration()] * 2\n"
        "tf.config.set_logical_device_configuration(cpu, two)\n"
    )
    assert result.returncode == 0, result.stderr


def test_without_the_library_the_reference_serves_and_says_so_once():
    result = run_in_a_fresh_process(
        "import pathlib, warnings\n"
        "from grace_tf import ops\n"
        "ops.native.LIBRARY = pathlib.Path('nowhere/_ops.so')\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    words = [ops.pack_signs([1.0, -1.0, 0.0])[0] for _ in range(2)]\n"
        "said = [w for w in caught if 'reference operations' in str(w.message)]\n"
        "assert words == [5, 5], words\n"
        "assert len(said) == 1, caught\n"
        "assert 'not built' in ops.native.why_not()\n"
        "assert not ops.native.available()\n"
    )
    assert result.returncode == 0, result.stderr
