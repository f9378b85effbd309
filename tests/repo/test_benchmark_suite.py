"""benchmarks/suite runs each cell once, goes on where it stopped, and calculates what it says."""

import json
import math
import subprocess
import sys

import doc_tables  # noqa: F401  with it the benchmarks can be imported
import pytest
from doc_tables import ROOT
from launch import launch

import grace_tf
from benchmarks.suite import advised, arithmetic, plan, report, runner
from benchmarks.suite.__main__ import RESULTS
from benchmarks.suite.arithmetic import Place
from benchmarks.suite.arms import ALL, ALONE, ARMS, PEERS
from benchmarks.suite.plan import TUNING_SEEDS, Cell, Wanted
from benchmarks.suite.results import NotUsable, Results, append
from benchmarks.suite.tasks.outline import OUTLINES
from grace_tf.cli.tables import Progress

VISION = OUTLINES["vision"]
SMALL = Wanted(["vision"], ["none", "bf16"], [2], ["group"], ["100mbit"], [1, 2], 2, 300)
PLACE = Place("vision", "group", 2, "100mbit")


def run_of(arm, seed, metrics, rate=0.03, link="", **more):
    """The record of a training with an evaluation every 100 steps, of half a second each."""
    cell = Cell("train", "vision", arm, "group", 2, link, "", rate, seed, 100 * len(metrics))
    curve = [[100 * i, 0.5 * i, metric] for i, metric in enumerate(metrics, 1)]
    found = {"curve": curve, "metric": metrics[-1], "seconds": curve[-1][1], "bytes": 1000}
    return {**cell.record(), **found, **more}


def time_of(arm, method, ms, repeat=0, sent=None, **more):
    place = {"task": "vision", "engine": "group", "workers": 2, "link": "100mbit", **more}
    cell = Cell("time", arm=arm, method=method, repeat=repeat, **place)
    return {**cell.record(), "ms": ms, "bytes": 1000, "sent": sent}


def tuned(arm, metrics):
    """The tuning runs of an arm: of each rate one with each seed, which end with these metrics."""
    rates = ARMS[arm].rates(VISION.optimizer)
    return [
        run_of(arm, seed, [0, 0, metric], rate)
        for rate, both in zip(rates, metrics, strict=True)
        for seed, metric in zip(TUNING_SEEDS, both, strict=True)
    ]


# The plan of cells.


def test_every_arm_has_an_equal_grid_of_rates():
    for task in OUTLINES.values():
        for arm in ARMS.values():
            assert len(set(arm.rates(task.optimizer))) == 3, (task.name, arm.name)


def test_every_method_of_a_cell_is_one_of_grace_tf():
    for arm in ARMS.values():
        for steps in {task.steps for task in OUTLINES.values()}:
            grace_tf.get(arm.schedule(steps))
            for _, method in arm.stages(steps):
                grace_tf.get(method)


def test_dgc_warms_up_in_the_first_fifth():
    assert ARMS["dgc"].schedule(300) == ("dgc:ratio=0.25@0/0.112@15/0.05@30/0.0224@45/0.01@60")
    assert ARMS["dgc"].stages(300)[-1] == (60, "dgc:ratio=0.01")


def test_tests_begin_when_all_rates_of_an_arm_are_tried_and_take_the_best():
    records = tuned("none", [(90, 91), (95, 95), (95, 96)])
    assert {(c.arm, c.rate, c.seed) for c in plan.tests(SMALL, records)} == {
        ("none", 0.03, 1),
        ("none", 0.03, 2),
    }
    assert [*plan.tests(SMALL, records[:-1])] == []


def test_a_rate_that_only_some_seeds_survive_is_not_chosen():
    records = tuned("none", [(90, 91), (93, 92), (97, 10)])
    assert {c.rate for c in plan.tests(SMALL, records)} == {0.03}


def test_a_run_that_failed_or_is_not_finite_rules_its_rate_out():
    records = tuned("none", [(None, 30), (10, 10), (20, 20)])
    records[-1] = {**{k: records[-1][k] for k in plan.FIELDS}, "error": "it raised"}
    assert {c.rate for c in plan.tests(SMALL, records)} == {0.03}
    assert [*plan.tests(SMALL, tuned("none", [(None, None)] * 3))] == []


def test_fewer_bits_are_better_where_bits_are_counted():
    wanted = Wanted(["transformer"], ["none"], [2], steps=300)
    cells = [*plan.tuning(wanted)]
    records = [{**c.record(), "metric": 3 - c.rate} for c in cells]
    chosen = plan.chosen_rate(records, OUTLINES["transformer"], ARMS["none"], 2, 300)
    assert chosen == max(c.rate for c in cells)


def test_auto_and_six_others_have_whole_runs_over_links():
    wanted = Wanted(["vision"], list(ARMS), [2])
    records = []
    for cell in plan.tuning(wanted):
        records.append({**cell.record(), "metric": 50.0})
    of_auto = [c for c in plan.tests(wanted, records) if c.link]
    assert {c.arm for c in of_auto} == {"auto"}
    assert {c.link for c in of_auto} == {link for link in plan.LINKS if link}
    assert {c.seed for c in of_auto} == set(plan.SEEDS)
    others = [c for c in plan.times(wanted, records) if c.kind == "train"]
    assert {(c.link, c.arm) for c in others} == set(plan.WHOLE) and len(others) == 6


def test_whole_runs_stand_between_two_halves_of_the_repeats_over_their_link():
    wanted = Wanted(["vision"], ["bf16"], [2], ["group"], ["1gbit"], repeats=2)
    records = [{**cell.record(), "metric": 50.0} for cell in plan.tuning(wanted)]
    cells = [*plan.times(wanted, records)]
    assert [(c.kind, c.arm, c.repeat) for c in cells] == [
        ("time", "bf16", 0),
        ("time", ALONE.name, 0),
        ("train", "bf16", 0),
        ("time", ALONE.name, 1),
        ("time", "bf16", 1),
    ]
    assert "train" not in {c.kind for c in plan.times(wanted, records[:-1])}


def test_arms_that_a_task_leaves_out_have_no_cells():
    wanted = Wanted(["zipf"], list(ARMS), [2], ["group"], ["100mbit"])
    names = {cell.arm for cell in [*plan.tuning(wanted), *plan.times(wanted)]}
    assert names == {"none", "bf16", "auto", "qsgd", "eden", "topk", ALONE.name}


def test_step_times_are_of_each_stage_in_turn_repeat_by_repeat():
    wanted = Wanted(["vision"], ["none", "dgc"], [2], ["group"], ["1gbit"], repeats=2)
    cells = [*plan.times(wanted)]
    assert len({cell.launch for cell in cells}) == 1
    first = [(c.arm, c.method) for c in cells if c.repeat == 0]
    assert first[::-1] == [(c.arm, c.method) for c in cells if c.repeat == 1]  # a drift hits all
    assert [c.repeat for c in cells] == [0] * len(first) + [1] * len(first)
    assert first == [
        ("none", "none"),
        *(("dgc", f"dgc:ratio={r}") for r in (0.25, 0.112, 0.05, 0.0224, 0.01)),
        (ALONE.name, ""),
    ]


def test_peers_run_under_their_own_engine_alone():
    wanted = Wanted(["vision", "lstm"], ["none", *PEERS], [2], plan.ENGINES, ["1gbit"])
    found = {(c.task, c.engine, c.arm) for c in plan.times(wanted) if c.arm in PEERS}
    ddp = {("vision", "ddp", name) for name in PEERS if name.startswith("DDP")}
    horovod = {(t, "horovod", n) for t in wanted.tasks for n in PEERS if n.startswith("Horovod")}
    assert found == ddp | horovod
    assert not [c for c in plan.times(wanted) if c.engine == "ddp" and c.arm not in PEERS]


# Stop and go on.


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
    cells, launches = [*plan.tuning(SMALL)], Launches(fails=[0.03])
    monkeypatch.setattr(runner, "_launch", launches)
    results = Results(tmp_path / "results.jsonl")
    runner.run(cells, results, shown)
    assert launches.sizes == [12, 9, 8, 3, 2]
    assert {r["rate"] for r in results.records if "error" in r} == {0.03}
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


# The arithmetic.


def test_steps_to_accuracy_are_the_first_that_are_as_good_as_none_of_that_seed():
    ends = {1: 96, 2: 98, 3: 97.5}
    records = [run_of("none", seed, [80, 80, end]) for seed, end in ends.items()]
    targets = arithmetic.targets_of(records, VISION, 2)
    assert targets == {seed: pytest.approx(end - 0.3) for seed, end in ends.items()}
    runs = [run_of("bf16", s, m) for s, m in ((1, [95.8, 0, 0]), (2, [95.8, 98, 0]), (3, [0] * 3))]
    assert [arithmetic.steps_to(VISION, run, targets) for run in runs] == [100, 200, math.inf]
    assert arithmetic.typical_steps(VISION, runs, targets) == 200
    assert arithmetic.typical_steps(VISION, runs[1:], targets) == math.inf
    other = run_of("bf16", 4, [99, 99, 99])  # there is no uncompressed run of its seed
    assert arithmetic.typical_steps(VISION, [*runs, other], targets) == 200


def test_tuning_runs_and_shorter_trainings_do_not_count_as_tests():
    records = [run_of("none", TUNING_SEEDS[0], [0, 9]), run_of("none", 1, [90])]
    records.append(run_of("none", 2, [0, 97]))
    assert [r["seed"] for r in arithmetic.tests_of(records, "vision", "none", 2)] == [2]


def test_runs_with_a_rate_that_is_not_the_chosen_one_do_not_count():
    records = tuned("none", [(1, 1), (3, 3), (2, 2)])
    records += [run_of("none", seed, [0, 0, 97], rate) for seed, rate in ((1, 0.1), (2, 0.03))]
    assert [r["seed"] for r in arithmetic.tests_of(records, "vision", "none", 2)] == [2]


def test_time_to_accuracy_is_steps_times_step_time():
    records = [
        *(run_of("none", seed, [90, 98, 98]) for seed in (1, 2, 3)),
        *(time_of("none", "none", ms, i) for i, ms in enumerate((70, 500, 80))),
    ]
    targets = arithmetic.targets_of(records, VISION, 2)
    assert arithmetic.time_to_accuracy(records, PLACE, "none", targets) == pytest.approx(200 * 0.08)
    assert arithmetic.time_to_accuracy(records, PLACE, "bf16", targets) is None


def test_each_stage_of_a_schedule_has_its_own_step_time():
    stages, ms = ARMS["dgc"].stages(300), {}
    assert arithmetic.seconds_of(0, 300, stages, ms) is None
    for method, each in zip((m for _, m in stages), (100, 50, 40, 30, 10)):
        ms[method] = each
    assert arithmetic.seconds_of(0, 300, stages, ms) == pytest.approx(
        15 * (0.1 + 0.05 + 0.04 + 0.03) + 240 * 0.01
    )
    assert arithmetic.seconds_of(1, 20, stages, ms) == pytest.approx(14 * 0.1 + 5 * 0.05)
    assert arithmetic.seconds_of(0, math.inf, stages, ms) == math.inf


def test_auto_s_time_is_that_of_its_own_clock_over_the_link():
    records = [run_of("auto", 1, [90, 98, 98], link="100mbit", choice="auto: bf16, since")]
    assert arithmetic.time_to_accuracy(records, PLACE, "auto", {1: 97}) == 1.0
    assert arithmetic.time_to_accuracy(records, PLACE, "auto", {1: 99}) == math.inf
    other = Place("vision", "group", 2, "1gbit")
    assert arithmetic.time_to_accuracy(records, other, "auto", {1: 97}) is None


def test_a_free_codec_costs_what_its_bytes_cost():
    records = [
        time_of("none", "none", 110, sent=1000),
        time_of("eden", "eden", 60, sent=250),
        time_of(ALONE.name, "", 10),
    ]
    assert arithmetic.free_codec(records, PLACE, "eden", "eden") == pytest.approx(35)
    assert arithmetic.free_codec(records[:2], PLACE, "eden", "eden") is None


def test_whole_runs_are_compared_with_the_product_of_the_steps_that_the_clock_has_seen():
    whole = run_of("none", 1, [90, 98, 98], link="100mbit", seconds=31.395)
    (check,) = arithmetic.checks([whole, time_of("none", "none", 100)])
    assert check["product"] == pytest.approx(29.9)
    assert check["ratio"] == pytest.approx(0.05)
    assert arithmetic.checks([whole])[0]["ratio"] is None


# The page.


def page(tmp_path, records, answers=None):
    file = tmp_path / "results.jsonl"
    for record in records:
        append(file, record)
    report.write(Results(file), answers or {}, tmp_path)
    return (tmp_path / "benchmarks.md").read_text()


def test_the_page_has_what_was_run_and_names_what_was_not(tmp_path):
    records = [
        *(run_of("none", seed, [90, 98, 98]) for seed in (1, 2, 3)),
        *(run_of("bf16", seed, [90, 97, 98]) for seed in (1, 2, 3)),
        *(run_of("topk", seed, [10, 20, end]) for seed, end in ((1, 30), (2, 98), (3, 30))),
        time_of("none", "none", 100, sent=1000),
        time_of("bf16", "bf16", 50, sent=500),
        time_of(ALONE.name, "", 10),
        run_of("none", 1, [90, 98, 98], link="100mbit", seconds=29.9),
        {**Cell("train", "vision", "qsgd", "group", 2).record(), "error": "ValueError: no"},
    ]
    methods = [
        {"spec": "none", "time": {"seconds": 0.09}},
        {"spec": "bf16", "time": {"seconds": 0.06}},
    ]
    text = page(tmp_path, records, {PLACE: {"spec": "bf16", "methods": methods}})
    assert "| `none` | 98.00 | 0 | 3 | 0.03 | 1000 B | 200 |" in text
    assert "| `topk` | 52.67 | 39.3 | 3 | 0.03 | 1000 B | not reached (1 of 3 runs) |" in text
    assert "| `eden` | not run |" in text
    assert "| plain processes | `bf16` | 50 (55) | not run |" in text
    assert "| `none` | 20.0 s (0.75 ×) | not run |" in text
    assert "| `bf16` | 15.0 s (1.00 ×) |" in text
    assert "| vision, `none`, 2 workers, 100 Mbit/s | 29.9 s | 29.9 s | +0.0 % |" in text
    assert "ValueError: no" in text
    assert "## Lstm\n\n" in text and "Not run." in text
    assert "2 cells in 1 places: the median error is 15 %" in text
    assert "| vision, 2 workers, 100 Mbit/s | 100, 90 | 50, 60 | `bf16` |" in text
    for name in ("vision-curves", "vision-speed", "whole", "advise"):
        assert f"(benchmarks-{name}.png)" in text
        assert (tmp_path / f"benchmarks-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_without_results_says_so(tmp_path):
    text = page(tmp_path, [])
    assert text.count("Not run.") == len(OUTLINES) + 2
    assert "png" not in text


def test_the_page_of_the_documentation_is_of_the_committed_results():
    pages = ROOT / "docs" / "benchmarks.md"
    assert pages.exists() == RESULTS.exists()
    if pages.exists():
        text = pages.read_text(encoding="utf-8")
        results = Results(RESULTS)
        drawn = [line for line in text.splitlines() if line.startswith("![")]
        shown = [tuple(reversed(line[2:-1].split("]("))) for line in drawn]
        answers = advised.read(RESULTS.with_name("advised.jsonl"))
        assert report.text_of(results, answers, shown) == text
        assert all((ROOT / "docs" / file).exists() for file, _ in shown)


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


def test_all_arms_have_names_of_their_own():
    assert len(ALL) == len(ARMS) + len(PEERS) + 1


def test_the_package_data_of_a_cell_are_json():
    cell = Cell("train", "vision", "none", "group", 2, "", "", 0.1, 1, 300)
    assert plan.cell_of(json.loads(json.dumps(cell.record()))) == cell
