"""The plan of benchmarks/suite: which cells there are, with which rates, in which order."""

import json

import doc_tables  # noqa: F401  with it the benchmarks can be imported
from suite_records import MIDDLE, SMALL, tuned

import grace_tf
from benchmarks.suite import plan
from benchmarks.suite.arms import ALL, ALONE, ARMS, PEERS
from benchmarks.suite.plan import Cell, Wanted
from benchmarks.suite.tasks.outline import OUTLINES


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
        ("none", MIDDLE, 1),
        ("none", MIDDLE, 2),
    }
    assert [*plan.tests(SMALL, records[:-1])] == []


def test_a_rate_that_only_some_seeds_survive_is_not_chosen():
    records = tuned("none", [(90, 91), (93, 92), (97, 10)])
    assert {c.rate for c in plan.tests(SMALL, records)} == {MIDDLE}


def test_a_run_that_failed_or_is_not_finite_rules_its_rate_out():
    records = tuned("none", [(None, 30), (10, 10), (20, 20)])
    records[-1] = {**{k: records[-1][k] for k in plan.FIELDS}, "error": "it raised"}
    assert {c.rate for c in plan.tests(SMALL, records)} == {MIDDLE}
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


def test_all_arms_have_names_of_their_own():
    assert len(ALL) == len(ARMS) + len(PEERS) + 1


def test_the_package_data_of_a_cell_are_json():
    cell = Cell("train", "vision", "none", "group", 2, "", "", 0.1, 1, 300)
    assert plan.cell_of(json.loads(json.dumps(cell.record()))) == cell
