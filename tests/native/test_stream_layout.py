"""TensorFlow's CUDA stream is found by an assumed layout: it is that of the installed headers."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sysconfig

import pytest
import tensorflow as tf

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "custom_ops" / "tests" / "tensorflow"
HEADERS = pathlib.Path(tf.sysconfig.get_include())
COMPILER = shlex.split(sysconfig.get_config_var("CXX") or "g++")[0]


def cuda_headers():
    """The folder of CUDA's headers; None where there is none."""
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [pathlib.Path(home, "include") for home in homes if home]
    return next((folder for folder in folders if (folder / "cuda_runtime.h").exists()), None)


@pytest.mark.skipif(not SOURCES.is_dir(), reason="the sources of the operations are not here")
@pytest.mark.skipif(
    not (HEADERS / "unsupported/Eigen/CXX11/Tensor").exists(),
    reason="TensorFlow's headers are not installed",
)
@pytest.mark.skipif(cuda_headers() is None, reason="CUDA's headers are not installed")
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no compiler {COMPILER}")
def test_the_layout_is_that_of_the_installed_headers(tmp_path):
    objects = []
    includes = ["-I", SOURCES.parents[1], "-isystem", HEADERS, "-isystem", cuda_headers()]
    for name in ("stream_ours", "stream_theirs"):
        objects.append(str(tmp_path / f"{name}.o"))
        source = ["-c", str(SOURCES / f"{name}.cc"), "-o", objects[-1]]
        subprocess.run(
            [COMPILER, "-std=c++17", "-w", "-fpermissive", *includes, *source], check=True
        )
    program = str(tmp_path / "stream")
    # Eigen's headers name functions of CUDA that are never called here.
    link = [COMPILER, *objects, "-Wl,--unresolved-symbols=ignore-all", "-o", program]
    subprocess.run(link, check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert printed == "found=1\n"
