"""The scripts of examples/libraries, each in two processes, where its library is installed.

`make libraries` makes an environment that has all of them, and runs these tests there.
"""

import ast
import importlib.util
import statistics
from pathlib import Path

import launch
import library_runs
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "libraries"
SHARED = ("comparison", "movielens")
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)
METHODS = library_runs.METHODS


def imported(script):
    """The packages that a script imports, or whose data it reads."""
    found = set()
    for node in ast.walk(ast.parse((FOLDER / f"{script}.py").read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        found |= {name.partition(".")[0] for name in names}
    return (found - {*SHARED}) | ({"recbole"} if "movielens" in found else set())


def skip_where_something_is_missing(script):
    for package in sorted(imported(script)):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"The package {package} is not installed here: make libraries.")


@pytest.mark.slow
@pytest.mark.rotated
@pytest.mark.parametrize("script", SCRIPTS)
def test_workers_end_alike_and_no_worse_than_uncompressed(script):
    skip_where_something_is_missing(script)
    words = ["--json", "--methods", *METHODS]
    run = launch.launch(FOLDER / f"{script}.py", *words, cold=True).succeeded()
    one, other = run.answers()
    assert [told["method"] for told in one] == [*METHODS]
    for mine, theirs in zip(one, other):
        assert mine["sha"] == theirs["sha"] and mine["loss"] == theirs["loss"]
    assert len({told["sha"] for told in one}) == len(METHODS)
    none, *compressed = one
    for told in compressed:
        assert told["sent"] < none["sent"] / 2
        assert told["loss"] < none["loss"] + 3 * library_runs.noise_of(script), told


def test_every_library_is_in_the_table():
    runs = library_runs.runs()
    assert {run["script"] for run in runs} == {*SCRIPTS}
    for script in SCRIPTS:
        mine = [run for run in runs if run["script"] == script]
        seeds = [{run["seed"] for run in mine if run["method"] == m} for m in METHODS]
        assert len(seeds[0]) >= 3 and seeds[0] == seeds[1] == seeds[2]


def test_the_libraries_stay_within_the_noise_of_uncompressed():
    for run in library_runs.runs():
        assert len(run["shas"]) == 2 and len({*run["shas"]}) == 1, run
    for script in SCRIPTS:
        none, *compressed = (statistics.mean(library_runs.losses_of(script, m)) for m in METHODS)
        assert max(compressed) <= none + library_runs.noise_of(script), script
