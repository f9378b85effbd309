"""Bazel's BUILD and setup.py build the same library of the same files; the sdist has them all."""

import fnmatch
import pathlib
import runpy
import sys
import types
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[1]


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
        files |= {path.relative_to(ROOT).as_posix() for path in found if path.is_file()}
    assert not [file for file in sorted(files) if not in_the_sdist(file)]


def test_the_wheel_is_one_for_every_python_and_belongs_to_a_platform():
    _, names = setup_file()
    wheel = names["OpsWheel"]()
    wheel.finalize_options()
    assert not wheel.root_is_pure
    assert wheel.get_tag() == ("py3", "none", "linux_x86_64")
