"""The scripts of examples/libraries, each in two processes, where its library is installed.

`make libraries` makes an environment that has all of them, and runs these tests there.
"""

import ast
import importlib.util
import math
import statistics

import launch
import pytest
from library_runs import FOLDER, METHODS, SCRIPTS, losses, runs, spread

SHARED = {path.stem for path in FOLDER.glob("*.py")} - {*SCRIPTS}
# Training lowers the loss below that of a guess.  With compression it must lower it by at least
# this share of what it does without: in one training, which is noisy, and in the mean of several.
LEAST, LEAST_OF_MEANS = 0.75, 0.95
# By script, the bytes of the dense gradients of its embedding tables (943 users and 1682 films, 32
# floats each).  If only the rows of a batch are sent, a worker sends fewer bytes.
TABLES = {"recommenders_two_towers": 4 * 32 * (943 + 1682)}


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
    assert none["sent"] < TABLES.get(script, math.inf)
    for told in compressed:
        assert told["sha"] != none["sha"]
        assert told["sent"] < none["sent"] / 2
        assert told["chance"] - told["loss"] >= LEAST * (none["chance"] - none["loss"]) > 0, told


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_recorded_workers_ended_alike_and_eden_within_noise_of_uncompressed(script):
    recorded = runs(script)
    seeds = {method: {r["seed"] for r in recorded if r["method"] == method} for method in METHODS}
    assert len(seeds["none"]) >= 3 and all(seeds[method] == seeds["none"] for method in METHODS)
    assert max(run["sent"] for run in recorded) < TABLES.get(script, math.inf)
    for run in recorded:
        assert len(run["shas"]) == 2 and len({*run["shas"]}) == 1, run
    found = losses(script)
    none, qsgd, eden = map(statistics.mean, found.values())
    assert eden - none <= 2 * spread(found)
    chance = statistics.mean(run["chance"] for run in recorded)
    assert chance - max(qsgd, eden) >= LEAST_OF_MEANS * (chance - none) > 0
