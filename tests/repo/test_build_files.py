"""Bazel's BUILD and setup.py build the same library of the same files; the sdist has them all.

What a build leaves where it cannot make a library is tested with small stand-ins for the compilers.
"""

import fnmatch
import importlib.util
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import types
from unittest import mock

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class PlainWheel:
    """The command of setuptools, as far as OpsWheel asks it."""

    def finalize_options(self):
        self.root_is_pure = True

    def get_tag(self):
        return "cp312", "cp312", "linux_x86_64"


def build_rules():
    """The attributes of each target of BUILD, by its name.  BUILD runs as Python here."""
    rules = {}

    def rule(**attributes):
        rules[attributes["name"]] = attributes

    def glob(patterns, exclude=()):
        found = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("custom_ops/**/*.*")]
        matching = {file for p in patterns for file in found if _matches(file, p)}
        return sorted(matching - {f for p in exclude for f in matching if _matches(f, p)})

    kinds = "cc_binary", "cc_library", "cc_test", "filegroup", "genrule", "test_suite"
    words = {kind: rule for kind in kinds}
    words.update(glob=glob, load=lambda *_: None, package=lambda **_: None)
    exec(compile((ROOT / "BUILD").read_text(), "BUILD", "exec"), words)
    return rules


def _matches(file, pattern):
    # In Bazel's patterns `**` matches any number of folders, and `*` never matches a "/".
    if "**/" in pattern:
        return fnmatch.fnmatch(file, pattern.replace("**/", "*"))
    return file.count("/") == pattern.count("/") and fnmatch.fnmatch(file, pattern)


def setup_file():
    """Returns setup.py's extension of the operations, and the global names of setup.py.

    Stand-ins replace setuptools, so nothing is built.
    """
    setup = mock.Mock()
    extension = lambda name, sources: types.SimpleNamespace(name=name, sources=sources)  # noqa: E731
    stands_for = {
        "setuptools": types.SimpleNamespace(
            Extension=extension, find_packages=lambda **_: [], setup=setup
        ),
        "setuptools.command.build_ext": types.SimpleNamespace(build_ext=object),
        "setuptools.command.bdist_wheel": types.SimpleNamespace(bdist_wheel=PlainWheel),
    }
    with mock.patch.dict(sys.modules, stands_for):
        names = runpy.run_path(str(ROOT / "setup.py"))
    library, *_ = setup.call_args.kwargs["ext_modules"]
    return library, names


def test_the_library_is_made_of_the_same_files_with_the_same_flags():
    rules, (library, names) = build_rules(), setup_file()
    ops, kernels = rules["_ops.so"], rules["kernels"]
    assert ops["deps"] == [":kernels"] and rules["grace_tf_ops"]["srcs"] == [":_ops.so"]
    sources = [file for file in ops["srcs"] + kernels["srcs"] if file.endswith(".cc")]
    assert sorted(sources) == library.sources and len(sources) > 40
    assert [*ops["copts"], "-c"] == [*kernels["copts"], "-c"] == names["COMPILE"]
    assert [f"-I{folder}" for folder in kernels["includes"]] == [names["INCLUDE"]]
    assert f":{names['TENSORFLOW']}" in ops["srcs"] and names["TENSORFLOW"] in rules


def test_every_header_and_every_test_of_the_kernels_is_there():
    rules, found = build_rules(), lambda glob: {p.relative_to(ROOT) for p in ROOT.glob(glob)}
    headers = set(map(pathlib.Path, rules["kernels"]["textual_hdrs"]))
    assert headers == found("custom_ops/kernels/**/*.h") and len(headers) > 60
    # The Makefile alone runs the CUDA kernels emulated.
    tests = {f":{path.stem}" for path in found("custom_ops/tests/*_test.cc")}
    tests -= {test for test in tests if test.startswith(":cuda_")}
    assert set(rules["kernel_tests"]["tests"]) == tests and len(tests) > 15
    for test in tests:
        assert f"custom_ops/tests/{test[1:]}.cc" in rules[test[1:]]["srcs"]


def in_the_sdist(file):
    """Returns whether the sdist contains the file: whether a line of MANIFEST.in matches it."""
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        word, *patterns = line.split()
        folder = patterns.pop(0) + "/" if word == "recursive-include" else ""
        name = file.split("/")[-1] if folder else file
        if file.startswith(folder) and any(fnmatch.fnmatch(name, p) for p in patterns):
            return True
    return False


def test_the_sdist_has_what_the_builds_and_the_tests_read():
    rules, (library, _) = build_rules(), setup_file()
    parts = "srcs", "textual_hdrs"
    files = {file for rule in rules.values() for part in parts for file in rule.get(part, ())}
    files = {file for file in files if file.startswith("custom_ops/")} | set(library.sources)
    assert len(files) > 120
    files |= {"BUILD", "WORKSPACE", "MODULE.bazel", "Makefile", "LICENSE", "custom_ops/Makefile"}
    for folder in "third_party", "docs", "examples", "benchmarks/results", ".ci":
        found = [path for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
        found = [path for path in found if path.is_file() and path.suffix != ".log"]
        files |= {path.relative_to(ROOT).as_posix() for path in found}
    assert not [file for file in sorted(files) if not in_the_sdist(file)]


def test_the_wheel_is_one_for_every_python_and_belongs_to_a_platform():
    _, names = setup_file()
    wheel = names["OpsWheel"]()
    wheel.finalize_options()
    assert not wheel.root_is_pure
    assert wheel.get_tag() == ("py3", "none", "linux_x86_64")


# As a compiler, this writes its output only.
COMPILER = """#!/bin/sh
case "$*" in
  *--list-gpu-arch*) echo compute_75 ;;
  *-o*) while [ "$1" != -o ]; do shift; done; echo built > "$2" ;;
esac
"""
BROKEN = """#!/bin/sh
case "$*" in
  *--list-gpu-arch*) echo compute_75 ;;
  *-o*) echo "a warning" >&2; echo "fatal error: no cuda.h" >&2; exit 2 ;;
esac
"""
# Any setuptools has build_ext; the module of bdist_wheel moved, and is not needed here.
BUILD_IN_PLACE = """
import runpy, sys, types
import setuptools
wheel = types.SimpleNamespace(bdist_wheel=setuptools.Command)
sys.modules["setuptools.command.bdist_wheel"] = wheel
sys.argv = ["setup.py", "build_ext", *sys.argv[1:]]
runpy.run_path("setup.py", run_name="__main__")
"""
needs_setuptools = pytest.mark.skipif(
    not importlib.util.find_spec("setuptools"), reason="setuptools is not here"
)


def program(file, text):
    """Writes a program that can be run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def built_package(folder, nvcc, *options, cxx=COMPILER, home="", asked="1"):
    """The folder of the package after setup.py has built a small one, and what it printed.

    `nvcc` and `cxx` are the texts of the compilers in PATH, or None for none; `asked` is
    GRACE_TF_CUDA.
    """
    room = folder / "custom_ops" / "kernels" / "room"
    room.mkdir(parents=True, exist_ok=True)
    for source in "one.cc", "one.cu":
        (room / source).write_text("")
    (folder / "grace_tf" / "core").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "grace_tf" / "core" / "version.py", folder / "grace_tf" / "core")
    (folder / "grace_tf" / "__init__.py").write_text("")
    shutil.copy(ROOT / "setup.py", folder)
    for name, text in ("nvcc", nvcc), ("g++", cxx):
        (folder / "bin" / name).unlink(missing_ok=True)
        if text:
            program(folder / "bin" / name, text)
    done = subprocess.run(
        [sys.executable, "-c", BUILD_IN_PLACE, *options],
        env={"PATH": str(folder / "bin"), "CUDA_HOME": home, "GRACE_TF_CUDA": asked},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "grace_tf", done.stdout


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not here")
@pytest.mark.parametrize("source", ["quantize/quantize_list.cc", "select/selector.cc"])
def test_an_object_is_compiled_again_when_a_file_changes_that_the_compiler_reads_for_it(source):
    source = f"custom_ops/kernels/{source}"
    asked = ["g++", "-std=c++17", "-MM", "-Icustom_ops", source]
    listed = subprocess.run(asked, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    read = {(ROOT / word).resolve() for word in listed.split() if word.startswith("custom_ops/")}
    known = setup_file()[1]["texts"](source)
    assert len(read) > 8 and read <= set(known)
    assert len(known) < 30  # not all headers, else every edit would compile everything


def test_cuda_home_comes_first_and_does_not_hide_the_nvcc_in_path(tmp_path):
    nvcc = setup_file()[1]["nvcc"]
    program(tmp_path / "bin" / "nvcc", COMPILER)
    program(tmp_path / "cuda" / "bin" / "nvcc", COMPILER)
    (tmp_path / "empty").mkdir()
    with mock.patch.dict(os.environ, {"PATH": str(tmp_path / "bin")}):
        for home, found in ("cuda", "cuda/bin"), ("empty", "bin"), ("nowhere", "bin"):
            os.environ["CUDA_HOME"] = str(tmp_path / home)
            assert nvcc() == str(tmp_path / found / "nvcc")
        os.environ["CUDA_HOME"] = ""
        assert nvcc() == str(tmp_path / "bin" / "nvcc")
        os.environ["PATH"] = str(tmp_path / "empty")
        assert not nvcc()


@pytest.mark.parametrize(
    "asked, driver, nvcc, reason",
    [
        ("", False, "nvcc", "there was no NVIDIA driver; set GRACE_TF_CUDA=1 to build them anyway"),
        ("", True, "nvcc", ""),
        ("1", False, "nvcc", ""),
        ("0", True, "nvcc", "GRACE_TF_CUDA was 0"),
        ("1", True, None, "there was no nvcc in CUDA_HOME/bin or PATH"),
    ],
)
def test_kernels_for_gpus_are_built_beside_a_driver_or_when_asked(asked, driver, nvcc, reason):
    why_no_cuda = setup_file()[1]["why_no_cuda"]
    why_no_cuda.__globals__.update(has_driver=lambda: driver, nvcc=lambda: nvcc)
    with mock.patch.dict(os.environ, {"GRACE_TF_CUDA": asked}):
        assert why_no_cuda() == reason
        os.environ["GRACE_TF_CUDA"] = "yes"
        with pytest.raises(ValueError, match="GRACE_TF_CUDA is 0 or 1, not 'yes'"):
            why_no_cuda()


@needs_setuptools
def test_a_build_tells_why_it_made_no_cuda_library_and_leaves_no_older_one(tmp_path):
    options = "--inplace", "--build-lib", "made"  # in place, as in an editable install
    places = tmp_path / "grace_tf", tmp_path / "made" / "grace_tf"

    def left(nvcc, **others):
        """Builds; returns the libraries there are, the text of the reason, and what was printed."""
        _, printed = built_package(tmp_path, nvcc, *options, **others)
        files = [{file.name for file in place.glob("*.*")} for place in places]
        for file in "_ops.so", "libgrace_cuda.so", "libgrace_cuda.txt":
            assert (file in files[0]) == (file in files[1]), (file, files)
        reasons = [place / "libgrace_cuda.txt" for place in places]
        told = {reason.read_text() for reason in reasons if reason.exists()}
        return files[0] - {"__init__.py"}, "".join(told), printed

    both, without_cuda = {"_ops.so", "libgrace_cuda.so"}, {"_ops.so", "libgrace_cuda.txt"}
    assert left(COMPILER)[:2] == (both, "")
    files, told, printed = left(None)
    assert files == without_cuda and "installed without" not in printed
    assert told == (
        "libgrace_cuda.so was not built with this package: there was no nvcc in CUDA_HOME/bin or "
        "PATH.\n"
    )
    assert left(COMPILER, home="/nowhere")[:2] == (both, "")
    shutil.rmtree(tmp_path / "build")  # with the object files nvcc would not compile again
    files, told, printed = left(BROKEN)
    assert files == without_cuda and "installed without its kernels for GPUs" in printed
    assert told == (
        "libgrace_cuda.so was not built with this package: nvcc ended with exit code 2: "
        "fatal error: no cuda.h.\n"
    )
    assert left(COMPILER, cxx=BROKEN)[0] == {"libgrace_cuda.so"}


@needs_setuptools
def test_a_build_compiles_what_has_changed_since_the_last_one(tmp_path):
    kernels, glue = tmp_path / "custom_ops" / "kernels" / "room", tmp_path / "custom_ops" / "ops"

    def compiled():
        _, printed = built_package(tmp_path, COMPILER, "--inplace")
        words = " ".join(line for line in printed.splitlines() if " -c " in line).split()
        return {pathlib.Path(word).name for word in words if word.endswith((".cc", ".cu"))}

    assert compiled() == {"one.cc", "one.cu"}
    assert compiled() == set()
    (kernels / "two.cc").write_text("")
    assert compiled() == {"two.cc"}
    (kernels / "two.cc").write_text("changed")
    assert compiled() == {"two.cc"}
    glue.mkdir()
    (glue / "glue.h").write_text('#include "room/inner.h"')
    assert compiled() == set()
    (kernels / "two.cc").write_text('#include "ops/glue.h"')
    (glue / "room").mkdir()
    (glue / "room" / "inner.h").write_text("")
    assert compiled() == {"two.cc"}
    (glue / "room" / "inner.h").write_text("changed")
    assert compiled() == {"two.cc"}
    (kernels / "three.cu").write_text('#include "kernels/room/two.cc"')
    assert compiled() == {"three.cu"}
    (glue / "room" / "inner.h").write_text("changed again")
    assert compiled() == {"three.cu", "two.cc"}


@pytest.mark.skipif(not shutil.which("make"), reason="make is not here")
def test_make_clean_removes_what_the_build_leaves(tmp_path):
    made = [tmp_path / "grace_tf" / name for name in ("_ops.so", "libgrace_cuda.so")]
    made.append(tmp_path / setup_file()[1]["REASON"])
    for folder in "grace_tf", "custom_ops":
        (tmp_path / folder).mkdir()
    for file in "Makefile", "custom_ops/Makefile", "pyproject.toml":
        shutil.copy(ROOT / file, tmp_path / file)
    for file in made:
        file.write_text("")
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True)
    assert not [file for file in made if file.exists()]


def test_ci_runs_the_tests_of_the_kernels_the_style_the_types_and_the_tests_of_the_readme(tmp_path):
    program(tmp_path / "make", '#!/bin/sh\necho "$@"\n')
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run")],
        env={"PATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["native-test", "lint", "types", "test"]
