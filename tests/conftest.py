"""Quiet TensorFlow, virtual devices, and which tests run.

A test marked `rotated` is one of a large family, of which every commit runs a quarter and
`--everything` runs all.  The quarter is chosen by the number of the commit, or by `--turn`.  Where
the mark names a parameter, tests with the same value of it run together.
A test that is not marked `slow` may take 20 seconds of a processor.
"""

import os
import pathlib
import subprocess
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import launch
import pytest
from replicas import mirrored

QUARTERS = 4
MOST_SECONDS = 20.0


def pytest_addoption(parser):
    parser.addoption(
        "--everything", action="store_true", help="run all tests of the families that take turns"
    )
    parser.addoption(
        "--turn", type=int, help="which quarter of them to run (the number of the commit)"
    )


def pytest_configure(config):
    turn = config.getoption("--turn")
    # A process of xdist gets the options of the one that has started it, and so its turn.
    config.option.turn = _number_of_the_commit() if turn is None else turn


def pytest_report_header(config):
    if config.getoption("--everything"):
        return "turn: all tests"
    turn = config.option.turn % QUARTERS
    return f"turn: {turn} of {QUARTERS} (repeat it with --turn={turn}; --everything runs all)"


def pytest_collection_modifyitems(config, items):
    if config.getoption("--everything") or len(items) == 1:
        return
    turn, others = config.option.turn % QUARTERS, []
    for item in items:
        mark = item.get_closest_marker("rotated")
        if mark and zlib.crc32(_turns_by(item, mark).encode()) % QUARTERS != turn:
            others.append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


def _turns_by(item, mark):
    if mark.args:
        return str(item.callspec.params[mark.args[0]])
    return item.nodeid.rpartition("/")[2]  # alike from every folder that pytest is started in


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Fails a test that takes long and does not say so; its processes count from their end on."""
    outcome = yield
    if call.when != "call":
        return
    report, seconds = outcome.get_result(), _seconds() - item.stash[_BEGUN]
    if report.passed and seconds > MOST_SECONDS and not item.get_closest_marker("slow"):
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} took {seconds:.0f} s of a processor; mark it slow if it must take more "
            f"than {MOST_SECONDS:.0f}."
        )


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
