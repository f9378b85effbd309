"""The scripts of examples/libraries, each in two processes, where its library is installed.

`make libraries` makes an environment that has all of them, and runs these tests there.
"""

import ast
import importlib.util

import launch
import pytest
from library_runs import FOLDER, METHODS, SCRIPTS, mean_losses, runs

SHARED = {path.stem for path in FOLDER.glob("*.py")} - {*SCRIPTS}
# How much higher than without compression a loss may be, as one training is noisy.
MOST = 1.25


def imported(script):
    """The packages that a script imports, or whose data it reads."""
    found = set()
    for node in ast.walk(ast.parse((FOLDER / f"{script}.py").read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        found |= {name.partition(".")[0] for name in names}
    return (found - SHARED) | ({"recbole"} if "movielens" in found else set())


@pytest.mark.slow
@pytest.mark.rotated
@pytest.mark.parametrize("script", SCRIPTS)
def test_workers_end_alike_and_no_worse_than_uncompressed(script):
    for package in sorted(imported(script)):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"The package {package} is not installed here: make libraries.")
    words = ["--json", "--methods", *METHODS]
    run = launch.launch(FOLDER / f"{script}.py", *words, cold=True).succeeded()
    one, other = run.answers()
    assert [told["method"] for told in one] == [*METHODS]
    for mine, theirs in zip(one, other):
        assert mine["sha"] == theirs["sha"] and mine["loss"] == theirs["loss"]
    none, *compressed = one
    for told in compressed:
        assert told["sha"] != none["sha"]
        assert told["sent"] < none["sent"] / 2
        assert told["loss"] <= MOST * none["loss"], told


@pytest.mark.parametrize("script", [script for script in SCRIPTS if runs(script)])
def test_the_recorded_workers_ended_alike_and_no_worse_than_uncompressed(script):
    recorded = runs(script)
    assert {run["method"] for run in recorded} == {*METHODS}
    for run in recorded:
        assert len(run["shas"]) == 2 and len({*run["shas"]}) == 1, run
    none, *compressed = mean_losses(script)
    assert max(compressed) <= MOST * none
