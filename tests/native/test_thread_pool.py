"""TensorFlow's threads are used by an assumed layout: on checked versions only, and it holds."""

import ctypes
import pathlib
import shlex
import shutil
import subprocess
import sysconfig

import pytest
import tensorflow as tf

import grace_tf
from grace_tf.cli import doctor
from grace_tf.ops.backend import native

SOURCES = pathlib.Path(grace_tf.__file__).parents[1] / "custom_ops" / "tests" / "tensorflow"
HEADERS = pathlib.Path(tf.sysconfig.get_include())
COMPILER = shlex.split(sysconfig.get_config_var("CXX") or "g++")[0]
needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())


@pytest.mark.skipif(not SOURCES.is_dir(), reason="the sources of the operations are not here")
@pytest.mark.skipif(
    not (HEADERS / "unsupported/Eigen/CXX11/Tensor").exists(),
    reason="TensorFlow's headers are not installed",
)
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no compiler {COMPILER}")
def test_the_layout_is_that_of_the_installed_headers(tmp_path):
    objects = []
    for name in ("pool_ours", "pool_theirs"):
        objects.append(str(tmp_path / f"{name}.o"))
        source = ["-c", str(SOURCES / f"{name}.cc"), "-o", objects[-1]]
        includes = ["-I", SOURCES.parents[1], "-isystem", HEADERS]
        subprocess.run([COMPILER, "-std=c++17", "-w", *includes, *source], check=True)
    program = str(tmp_path / "pool")
    subprocess.run([COMPILER, *objects, "-lpthread", "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert printed == "threads=5 called=Schedule worked=1\n"


@needs_native
@pytest.mark.parametrize(
    "version, known",
    [
        ("2.15.0", True),
        ("2.21.0-rc1", True),
        ("2.14.1", False),
        ("2.22.0", False),
        ("2.150.0", False),
        ("3.16.0", False),
        ("", False),
        ("unknown", False),
    ],
)
def test_only_checked_versions_are_trusted(version, known):
    library = ctypes.CDLL(str(native.LIBRARY))
    assert library.grace_layout_is_known(version.encode()) == known


@needs_native
def test_this_tensorflow_is_one_of_them_and_the_doctor_says_so():
    assert 15 <= int(tf.__version__.split(".")[1]) <= 21, "compare the layout, then widen the range"
    assert doctor.threads() == "TensorFlow's own"


@needs_native
def test_the_doctor_says_why_there_is_one_thread(monkeypatch):
    class Library:
        def grace_shares_threads(self):
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda path: Library())
    monkeypatch.setattr(tf, "__version__", "2.99.0")
    assert doctor.threads().startswith("one: what TensorFlow's threads look like was not checked f")
    assert "2.99.0" in doctor.threads()
