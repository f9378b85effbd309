"""Builds the native operations with the C++ compiler alone; no TensorFlow is needed for it.

The library is `grace_tf/_ops.so`. It uses only the C API of TensorFlow, so one build serves all
versions. Where it cannot be built, the package is installed without it and runs on its reference
operations.

`grace_tf/libgrace_cuda.so` holds the kernels for GPUs, and is loaded at the first kernel that runs
on a GPU. To compile it takes minutes, so it is built where a GPU's driver is found. The environment
variable GRACE_TF_CUDA chooses otherwise: 1 builds it without a driver too, 0 never does. CUDA's
compiler is taken from CUDA_HOME/bin or else from PATH. Where the library was not built,
`grace_tf/libgrace_cuda.txt` says why.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import re
import shlex
import shutil
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
INCLUDE = "-Icustom_ops"
KERNELS, GLUE = "custom_ops/kernels", "custom_ops/ops"
# No fused multiply-add and no fast-math: the results are the same bits on every machine.
COMPILE = """-O3 -std=c++17 -fPIC -fvisibility=hidden -ffp-contract=off -fno-trapping-math
             -Wall -Wextra -Wno-maybe-uninitialized -c""".split()
COMPILE_CUDA = """-O3 -std=c++17 -fmad=false
                  -Xcompiler -fPIC,-fvisibility=hidden,-ffp-contract=off -c""".split()
TENSORFLOW = "libtensorflow_framework.so.2"
CAPTURED = {"capture_output": True, "text": True}
OPS, CUDA = "grace_tf._ops", "grace_tf.libgrace_cuda"
REASON = "grace_tf/libgrace_cuda.txt"
MISSED = {
    OPS: "native operations, and will run on the slower reference operations",
    CUDA: "kernels for GPUs, and will run there on the slower reference operations",
}


def version() -> str:
    names: dict = {}
    exec((HERE / "grace_tf" / "core" / "version.py").read_text(), names)
    return names["__version__"]


def sources() -> list:
    files = [file for room in (KERNELS, GLUE) for file in (HERE / room).rglob("*.cc")]
    return sorted(file.relative_to(HERE).as_posix() for file in files)


def cuda_sources() -> list:
    files = (HERE / KERNELS).rglob("*.cu")
    return sorted(file.relative_to(HERE).as_posix() for file in files)


def nvcc() -> str | None:
    """CUDA's compiler, or None where there is none."""
    home = os.environ.get("CUDA_HOME")
    # A CUDA_HOME without a compiler must not hide the one in PATH.
    return (home and shutil.which("nvcc", path=os.path.join(home, "bin"))) or shutil.which("nvcc")


def has_driver() -> bool:
    """Whether the library of NVIDIA's driver is here."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def why_no_cuda() -> str:
    """Why the kernels for GPUs are not built; "" where they are to be built."""
    asked = os.environ.get("GRACE_TF_CUDA", "")
    if asked not in ("", "0", "1"):
        raise ValueError(f"GRACE_TF_CUDA is 0 or 1, not {asked!r}.")
    if asked == "0":
        return "GRACE_TF_CUDA was 0"
    if not nvcc():
        return "there was no nvcc in CUDA_HOME/bin or PATH"
    if not asked and not has_driver():
        return "there was no NVIDIA driver; set GRACE_TF_CUDA=1 to build them anyway"
    return ""


def cuda_targets(listed: str) -> list:
    """nvcc's flags for the architectures that `nvcc --list-gpu-arch` lists.

    The code of an architecture runs on the later ones of its major version, so the first of each is
    enough.  7.5 is the first that CUDA 13 knows.  The newest is there as PTX too, from which a
    driver makes code for what comes after it.
    """
    numbers = sorted(int(name.removeprefix("compute_")) for name in listed.split())
    if not numbers:
        raise OSError("nvcc lists no architectures")
    firsts = {number // 10: number for number in reversed(numbers) if number >= 75}
    flags = []
    for number in sorted(firsts.values()):
        flags += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
    names = " ".join(f"sm_{number}" for number in sorted(firsts.values()))
    newest = f"compute_{numbers[-1]}"
    flags += ["-gencode", f"arch={newest},code={newest}"]
    return [*flags, f'-DGRACE_CUDA_ARCHS="{names} {newest}"']


def run(command: list) -> None:
    print(shlex.join(command), flush=True)
    errors = {"stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    done = subprocess.run(command, cwd=HERE, **errors)
    print(done.stderr, end="", flush=True)
    done.check_returncode()  # the exception has the errors too, see why()


def why(error: OSError | subprocess.CalledProcessError) -> str:
    """Why a build failed, on one line: which program ended how, and its first error."""
    if isinstance(error, OSError):
        return str(error)
    lines = (error.stderr or "").splitlines()
    errors = [line.strip() for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    said = f": {errors[0]}" if errors else ""
    return f"{os.path.basename(error.cmd[0])} ended with exit code {error.returncode}{said}"


def standard_library(compiler: list) -> list:
    """Returns the flags that link the C++ library into ours: machines have different ones.

    The list is empty where the compiler comes without libstdc++.a.
    """
    ask = [*compiler, "-print-file-name=libstdc++.a"]
    answer = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    # Unused functions are dropped, since some of them need a newer glibc than all others.
    static = ["-static-libstdc++", "-Wl,--exclude-libs,libstdc++.a", "-Wl,--gc-sections"]
    return static if os.path.isabs(answer) else []


def texts(source: str) -> dict:
    """The contents of a source and of all files here that it includes, directly or not, by path.

    Each quoted name that is a file counts: kernels include themselves by a macro, once for each
    instruction set.
    """
    found, waiting = {}, [HERE / source]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found[file] = file.read_bytes()
            named = {name.decode() for name in re.findall(rb'"([\w./-]+)"', found[file])}
            places = [HERE / "custom_ops", file.parent]
            included = [place / name for place in places for name in sorted(named)]
            waiting += [each.resolve() for each in included if each.is_file()]
    return found


def compiled(sources: list, compiler: list, flags: list, name: str) -> list:
    """Compiles sources in parallel to objects in build/`name`, and returns these.

    An object's name has a digest of the source, the files that it includes, the compiler and its
    flags, so what an earlier build has compiled is not compiled again.
    """
    command, folder = [*compiler, INCLUDE, *flags], HERE / "build" / name
    folder.mkdir(parents=True, exist_ok=True)
    known = hashlib.sha256(repr(command).encode())
    known.update(subprocess.run([*compiler, "--version"], check=True, **CAPTURED).stdout.encode())
    done = itertools.count(1)

    def object_of(source: str) -> str:
        digest = known.copy()
        for text in texts(source).values():
            digest.update(text)
        built = folder / f"{source.replace('/', '_')}-{digest.hexdigest()[:16]}.o"
        if not built.exists():
            unfinished = built.with_suffix(f".{os.getpid()}.o")
            run([*command, source, "-o", str(unfinished)])
            unfinished.rename(built)
        print(f"{name}: {next(done)} of {len(sources)} ({source})", flush=True)
        return str(built)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(object_of, sources))


class BuildOps(build_ext):
    """Compiles the sources in parallel and links them against TensorFlow's name only."""

    def get_ext_filename(self, fullname: str) -> str:
        # Not a Python module, so without the suffix that ties one to a Python version.
        return os.path.join(*fullname.split(".")) + ".so"

    def run(self) -> None:
        """Builds, and leaves no library of an earlier build beside those of this one."""
        self.missing: dict = {}  # the reasons, by the names of the libraries
        super().run()
        self._tell_what_is_missing(Path(self.build_lib))
        if self.inplace:  # an editable package is loaded from the checkout
            self._tell_what_is_missing(HERE)

    def _tell_what_is_missing(self, root: Path) -> None:
        # An older library would be loaded by newer code, which may call it differently.
        for name in self.missing:
            (root / self.get_ext_filename(name)).unlink(missing_ok=True)
        reason = root / REASON
        reason.unlink(missing_ok=True)
        if CUDA in self.missing:
            reason.parent.mkdir(parents=True, exist_ok=True)
            library = os.path.basename(self.get_ext_filename(CUDA))
            told = f"{library} was not built with this package: {self.missing[CUDA]}"
            reason.write_text(told.rstrip(".!") + ".\n", encoding="utf-8")

    def build_extensions(self) -> None:
        super().build_extensions()
        # What could not be built must not be looked for when files are copied.
        self.extensions = [ext for ext in self.extensions if ext.name not in self.missing]

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name)).resolve()
        library.unlink(missing_ok=True)  # never leave the library of older sources
        if ext.name == CUDA and (reason := why_no_cuda()):  # on most machines: it is no failure
            self.missing[CUDA] = reason
            return
        try:
            self._build(ext, library)
        except (OSError, subprocess.CalledProcessError) as error:
            self.missing[ext.name] = why(error)
            print(
                f"grace_tf is installed without its {MISSED[ext.name]}, because they could not be "
                f"built: {why(error)}",
                flush=True,
            )

    def _build(self, ext: Extension, library: Path) -> None:
        library.parent.mkdir(parents=True, exist_ok=True)
        if ext.name == CUDA:
            self._build_cuda(ext, library)
        else:
            self._build_ops(ext, library)

    def _build_cuda(self, ext: Extension, library: Path) -> None:
        listed = [nvcc(), "--list-gpu-arch"]
        targets = cuda_targets(subprocess.run(listed, check=True, **CAPTURED).stdout)
        objects = compiled(ext.sources, [nvcc()], [*COMPILE_CUDA, *targets], "cuda")
        run([nvcc(), "-shared", "-cudart", "static", *objects, "-o", str(library)])

    def _build_ops(self, ext: Extension, library: Path) -> None:
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        temporary = Path(self.build_temp).resolve()
        temporary.mkdir(parents=True, exist_ok=True)
        # An empty library of TensorFlow's name: the real one is already loaded when ours is.
        empty = temporary / "empty.cc"
        empty.write_text("")
        stand_in = temporary / TENSORFLOW
        run([*compiler, "-shared", str(empty), f"-Wl,-soname,{TENSORFLOW}", "-o", str(stand_in)])
        objects = compiled(ext.sources, compiler, COMPILE, "ops")
        link = ["-Wl,--no-as-needed", str(stand_in), "-ldl", "-lpthread", "-s"]
        link += standard_library(compiler)
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
    ext_modules=[Extension(OPS, sources()), Extension(CUDA, cuda_sources())],
    cmdclass={"build_ext": BuildOps, "bdist_wheel": OpsWheel},
)
