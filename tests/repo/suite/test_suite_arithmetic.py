"""What benchmarks/suite calculates from its records: means, steps and times to accuracy."""

import math

import doc_tables  # noqa: F401  with it the benchmarks can be imported
import pytest
from suite_records import HIGH, MIDDLE, PLACE, VISION, run_of, time_of, tuned

from benchmarks.suite import arithmetic
from benchmarks.suite.arithmetic import Place
from benchmarks.suite.arms import ALONE, ARMS
from benchmarks.suite.plan import TUNING_SEEDS


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
    records += [run_of("none", seed, [0, 0, 97], rate) for seed, rate in ((1, HIGH), (2, MIDDLE))]
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
