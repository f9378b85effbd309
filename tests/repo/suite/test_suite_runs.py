"""benchmarks/suite runs each cell once, names what fails, and goes on where it stopped."""

import json
import math
import subprocess
import sys

import doc_tables  # noqa: F401  with it the benchmarks can be imported
import pytest
from doc_tables import ROOT
from launch import launch
from suite_records import MIDDLE, SMALL

from benchmarks.suite import plan, runner
from benchmarks.suite.arms import ALONE
from benchmarks.suite.plan import Cell, Wanted
from benchmarks.suite.results import NotUsable, Results, append
from grace_tf.cli.tables import Progress


def test_a_cell_that_has_a_record_is_not_run_again(tmp_path):
    file, cells = tmp_path / "results.jsonl", [*plan.tuning(SMALL)]
    append(file, {**cells[0].record(), "metric": 1.0})
    append(file, {**cells[1].record(), "error": "it raised"})
    results = Results(file)
    assert results.missing(cells) == cells[2:]
    assert results.missing(cells, again=True) == cells[1:]


def test_a_line_that_was_cut_off_is_run_again_and_spoils_no_other(tmp_path):
    file, cells = tmp_path / "results.jsonl", [*plan.tuning(SMALL)]
    append(file, {**cells[0].record(), "metric": 1.0})
    with open(file, "a") as lines:
        lines.write('{"kind": "tr')
    assert Results(file).missing(cells) == cells[1:]
    Results(file).repair()
    append(file, {**cells[1].record(), "metric": 2.0})
    assert Results(file).missing(cells) == cells[2:]
    assert len(file.read_text().splitlines()) == 2


def test_a_line_that_is_being_written_is_left_alone(tmp_path):
    file, (cell, *_) = tmp_path / "results.jsonl", [*plan.tuning(SMALL)]
    with open(file, "w") as lines:
        lines.write('{"kind": "tr')
        lines.flush()
        assert Results(file).missing([cell]) == [cell]
        lines.write('ain"}')
    assert file.read_text() == '{"kind": "train"}'


def test_two_runs_do_not_write_to_one_file(tmp_path, monkeypatch, shown):
    cells, results = [*plan.tuning(SMALL)], Results(tmp_path / "results.jsonl")
    launches = Launches()
    monkeypatch.setattr(runner, "_launch", launches)
    with Results(results.path).lock():
        with pytest.raises(NotUsable, match="Another run writes to .*results.jsonl"):
            runner.run(cells, results, shown)
    runner.run(cells, results, shown)
    assert launches.sizes == [len(cells)]


def test_the_workers_of_a_killed_run_hold_the_lock(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    with results.lock() as held:
        left = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[held])
    try:
        with pytest.raises(NotUsable), results.lock():
            pass
    finally:
        left.communicate()
    with results.lock():
        pass


def test_a_damaged_line_is_named(tmp_path):
    file = tmp_path / "results.jsonl"
    file.write_text("{}}\n")
    with pytest.raises(ValueError, match="Line 1 of .*results.jsonl is not JSON"):
        Results(file)


def test_a_stranger_s_line_is_refused_when_written(tmp_path):
    with pytest.raises(ValueError):
        append(tmp_path / "results.jsonl", {"metric": math.nan})


class Launches:
    """Stands for the launcher: each launch writes records until it comes to a cell that fails."""

    def __init__(self, fails=()):
        self.fails, self.sizes = fails, []

    def __call__(self, cells, out, shown, held):
        self.sizes.append(len(cells))
        for cell in cells:
            if cell.rate in self.fails:
                return "ValueError: no"
            append(out, {**cell.record(), "metric": 1.0})
        return None


@pytest.fixture
def shown():
    return Progress(None, "", 0)


def test_a_failed_cell_is_named_and_the_others_are_run(tmp_path, monkeypatch, shown):
    cells, launches = [*plan.tuning(SMALL)], Launches(fails=[MIDDLE])
    monkeypatch.setattr(runner, "_launch", launches)
    results = Results(tmp_path / "results.jsonl")
    runner.run(cells, results, shown)
    assert launches.sizes == [12, 9, 8, 3, 2]
    assert {r["rate"] for r in results.records if "error" in r} == {MIDDLE}
    assert results.missing(cells) == []
    launches.fails = []
    runner.run(cells, results, shown)
    assert launches.sizes == [12, 9, 8, 3, 2]
    runner.run(cells, results, shown, again=True)
    assert launches.sizes[5:] == [4]
    assert not [r for r in results.records if "error" in r]


def test_the_command_of_a_launch_names_workers_link_and_engine(tmp_path):
    cell = Cell("time", "vision", "none", "horovod", 4, "1gbit,50ms", "none")
    words = runner.command(cell, tmp_path / "cells.json", tmp_path / "out.jsonl")
    assert words[1:9] == ["-m", "grace_tf", "run", "-np", "4", "--link", "1gbit,50ms", "--horovod"]
    assert "--link" not in runner.command(Cell("train", "vision", "none", "group", 2), *["x"] * 2)
    assert "benchmarks.suite.ddp" in runner.command(Cell("time", "vision", "DDP", "ddp", 2), "", "")


def test_the_reason_of_a_failure_is_its_last_error():
    assert runner._reason("a\n[0] ValueError: b\nending every worker\n", 1) == "[0] ValueError: b"
    assert runner._reason("", 137) == "exit code 137"


@pytest.mark.slow
def test_two_workers_time_all_cells_of_a_launch_also_that_without_exchange(tmp_path):
    cells = [*plan.times(Wanted(["transformer"], ["none"], [2], ["group"], [""], repeats=1))]
    given, out = tmp_path / "cells.json", tmp_path / "results.jsonl"
    given.write_text(json.dumps([cell.record() for cell in cells]))
    words = ["--cells", given, "--out", out, "--timed-steps", 1]
    launch(ROOT / "benchmarks" / "suite" / "worker.py", *words).succeeded()
    results = Results(out)
    assert results.missing(cells) == [] and len(results.machines) == 1
    sent = {r["arm"]: (r["bytes"], r["sent"]) for r in results.records}
    assert min(sent["none"]) > 4 * 900_000 and sent[ALONE.name] == (None, None)
    assert all(r["ms"] > 0 for r in results.records)


def test_the_command_says_how_many_cells_there_are(tmp_path):
    words = ["--plan", "--tasks", "zipf", "--arms", "none", "--workers", "2", "--peers"]
    words += ["--links", "1gbit", "--engines", "group", "--out", str(tmp_path / "r.jsonl")]
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.suite", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [line.split()[-2:] for line in told.splitlines()[2:]] == [
        ["6", "0"],
        ["0", "0"],
        ["10", "0"],
    ]
