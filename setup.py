"""Builds the native operations with the C++ compiler alone; no TensorFlow is needed for it.

The library is `grace_tf/_ops.so`. It uses only the C API of TensorFlow, so one build serves all
versions. Where it cannot be built, the package is installed without it and runs on its reference
operations.
"""

import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1 the command was in another package
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
# No fused multiply-add and no fast-math: the results are the same bits on every machine.
COMPILE = """-O3 -std=c++17 -fPIC -fvisibility=hidden -ffp-contract=off -fno-trapping-math
             -Wall -Wextra -Wno-maybe-uninitialized -c""".split()
TENSORFLOW = "libtensorflow_framework.so.2"


def version() -> str:
    names: dict = {}
    exec((HERE / "grace_tf" / "version.py").read_text(), names)
    return names["__version__"]


def sources() -> list:
    files = [*(HERE / "custom_ops/kernels").glob("*.cc"), *(HERE / "custom_ops/ops").glob("*.cc")]
    return sorted(file.relative_to(HERE).as_posix() for file in files)


def run(command: list) -> None:
    print(shlex.join(command), flush=True)
    subprocess.run(command, check=True, cwd=HERE)


class BuildOps(build_ext):
    """Compiles the sources in parallel and links them against TensorFlow's name only."""

    def get_ext_filename(self, fullname: str) -> str:
        # Not a Python module, so without the suffix that ties one to a Python version.
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extensions(self) -> None:
        super().build_extensions()
        # What could not be built must not be looked for when files are copied.
        self.extensions = [
            ext for ext in self.extensions if os.path.exists(self.get_ext_fullpath(ext.name))
        ]

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name)).resolve()
        library.unlink(missing_ok=True)  # never leave the library of older sources
        try:
            self._build(ext, library)
        except (OSError, subprocess.CalledProcessError) as error:
            print(
                "grace_tf is installed without its native operations and will run on the slower "
                f"reference operations, because they could not be built: {error}",
                flush=True,
            )

    def _build(self, ext: Extension, library: Path) -> None:
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        objects_dir = Path(self.build_temp).resolve()
        objects_dir.mkdir(parents=True, exist_ok=True)
        library.parent.mkdir(parents=True, exist_ok=True)
        # An empty library of TensorFlow's name: the real one is already loaded when ours is.
        empty = objects_dir / "empty.cc"
        empty.write_text("")
        stand_in = objects_dir / TENSORFLOW
        run([*compiler, "-shared", str(empty), f"-Wl,-soname,{TENSORFLOW}", "-o", str(stand_in)])
        objects = [str(objects_dir / (file.replace("/", "_") + ".o")) for file in ext.sources]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = [
                pool.submit(run, [*compiler, *COMPILE, source, "-o", target])
                for source, target in zip(ext.sources, objects)
            ]
            for one in compiled:
                one.result()
        link = ["-Wl,--no-as-needed", str(stand_in), "-ldl", "-lpthread", "-s"]
        run([*compiler, "-shared", *objects, *link, "-o", str(library)])


class OpsWheel(bdist_wheel):
    """A wheel for this platform and any Python 3."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple:
        return "py3", "none", super().get_tag()[2]


setup(
    version=version(),
    packages=find_packages(include=["grace_tf", "grace_tf.*"]),
    ext_modules=[Extension("grace_tf._ops", sources())],
    cmdclass={"build_ext": BuildOps, "bdist_wheel": OpsWheel},
)
