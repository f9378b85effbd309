"""benchmarks/auto.py says by how much `auto` is slower than what it must beat."""

import doc_tables  # noqa: F401  with it the benchmarks can be imported
import pytest

from benchmarks import auto


def record(first, others, **milliseconds):
    """A training of 101 steps; the first of each other method takes a second."""
    methods = {name: {"first": 1.0, "step": ms / 1000} for name, ms in milliseconds.items()}
    return {"steps": 101, "methods": methods, "auto": {"first": first, "others": others}}


def test_auto_is_judged_by_whole_trainings_of_the_best_baseline_and_the_fastest_method():
    found = auto.judged(record(2.0, 7.0, none=190, bf16=100, fp16=90, eden=65))
    assert found["over"] == pytest.approx(9 / 10)  # fp16: 1 + 100 · 0.09
    assert found["share"] == pytest.approx((10 - 9) / (10 - 7.5))
    assert found["gain"] == pytest.approx(10 / 7.5)


def test_a_gain_of_less_than_a_fifth_is_not_judged():
    assert auto.judged(record(1.0, 19.0, none=190, bf16=100, fp16=90, eden=80))["share"] is None


@pytest.mark.parametrize(
    "stages, after",
    [
        ([0, 0, 1, 1, 2, 2, 2, 2, 2], 2),
        ([0, 0, 2, 2], 0),
        ([0, 0, 2, 1, 2, 2], 2),  # of four steps one is too many
        ([0, 0, 1, 2, 2, 1, 2, 2, 2], 1),  # of six steps one is a comparison
        ([0, 0, 1, 1], None),
        ([0, 0, 3, 3], 0),  # within 5 %
    ],
)
def test_a_change_is_followed_when_slow_methods_are_only_compared_with(stages, after):
    assert auto.followed(stages, 2, [9, 5, 1, 1.04]) == after


def test_a_table_of_results_has_a_row_for_each_place():
    given = {
        "task": "vision",
        "workers": 2,
        "link": "1gbit",
        "disturbed": "",
        "choice": "auto: x, y",
    }
    place = {**given, **record(1.0, 10.2, none=100, bf16=100, fp16=100)}
    sentence, columns, rows = auto.table([place, {**place, "disturbed": "change", "followed": 30}])
    assert "in 0 of 1 places" in sentence
    assert [dict(zip(columns, row))["auto / best baseline"] for row in rows] == ["1.018", "-"]
    assert rows[1][-1] == "30"
