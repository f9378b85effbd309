"""Quiet TensorFlow, virtual devices, and which tests run.

A test marked `rotated` is one of a large family, of which every commit runs an eighth, or one, and
`--everything` runs all (support/turns.py).  The turn is the number of the commit, or `--turn`.
Where the mark names a parameter, tests with the same value of it run together.
A test that takes 20 seconds of a processor and is not marked `slow` is named in a warning.
"""

import gc
import os
import pathlib
import subprocess

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import fork_server
import launch
import pytest
import turns
from replicas import mirrored

MOST_SECONDS = 20.0


def pytest_addoption(parser):
    parser.addoption(
        "--everything", action="store_true", help="run all tests of the families that take turns"
    )
    parser.addoption(
        "--turn", type=int, help="which part of them to run (the number of the commit)"
    )


def pytest_configure(config):
    gc.set_threshold(*fork_server.RARELY)
    turn = config.getoption("--turn")
    # xdist passes these options to the processes that it starts, so all have the same turn.
    config.option.turn = _number_of_the_commit() if turn is None else turn


def pytest_report_header(config):
    if config.getoption("--everything"):
        return "turn: all tests"
    turn = config.option.turn % turns.COUNT
    return f"turn: {turn} of {turns.COUNT} (repeat it with --turn={turn}; --everything runs all)"


@pytest.hookimpl(tryfirst=True)  # before -k leaves out members of a family
def pytest_collection_modifyitems(config, items):
    if config.getoption("--everything") or len(items) == 1:
        return
    families = {}
    for item in items:
        if mark := item.get_closest_marker("rotated"):
            family, member = _member(item, mark)
            families.setdefault(family, {}).setdefault(member, []).append(item)
    others = set()
    for members in families.values():
        chosen = turns.chosen(members, config.option.turn)
        others.update(item for member in set(members) - chosen for item in members[member])
    if others:
        config.hook.pytest_deselected(items=[item for item in items if item in others])
        items[:] = [item for item in items if item not in others]


def _member(item, mark):
    """The family of a test and its name there: all parameters of a function, or tests of a file."""
    name = item.nodeid.rpartition("/")[2]  # alike from every folder that pytest is started in
    if not hasattr(item, "callspec"):
        return name.partition("::")[0], name
    parameter = str(item.callspec.params[mark.args[0]]) if mark.args else name
    return name.partition("[")[0], parameter


def pytest_runtest_teardown(item):
    """Warns of a test that takes long and does not say so; its processes count from their end on.

    It does not fail: on a slow or busy machine the same test takes several times as long.
    """
    seconds = _seconds() - item.stash[_BEGUN]
    if seconds > MOST_SECONDS and not item.get_closest_marker("slow"):
        text = (
            f"{item.nodeid} took {seconds:.0f} s of a processor; mark it slow if it must take more "
            f"than {MOST_SECONDS:.0f} on an idle machine."
        )
        item.warn(pytest.PytestWarning(text))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_BEGUN] = _seconds()


_BEGUN = pytest.StashKey()


def _seconds():
    """The seconds of a processor that this process and its children that have ended have taken."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _number_of_the_commit():
    count = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"],
        cwd=pathlib.Path(__file__).parent,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return int(count or 0)  # an unpacked sdist has no commits


@pytest.fixture(scope="session", autouse=True)
def shared_folder(tmp_path_factory, worker_id):
    """The folder in which `launch_once` keeps runs, one for all processes of pytest."""
    base = tmp_path_factory.getbasetemp()
    launch.SHARED = base if worker_id == "master" else base.parent


@pytest.fixture
def two_replicas():
    return mirrored(2)


@pytest.fixture
def three_replicas():
    return mirrored(3)
