"""benchmarks/suite/advised compares each measured step with what `advise` says of the same one."""

import doc_tables  # noqa: F401  with it the benchmarks can be imported
import pytest

from benchmarks.suite import advised, plan
from benchmarks.suite.arithmetic import Place
from benchmarks.suite.arms import ARMS
from benchmarks.suite.plan import Cell
from benchmarks.suite.results import NotUsable, append

PLACE = Place("vision", "group", 2, "100mbit")


def measured(**milliseconds):
    """Records of the suite, a step time an arm."""
    return [
        {**Cell("time", method=ARMS[arm].method, arm=arm, **vars(PLACE)).record(), "ms": ms}
        for arm, ms in milliseconds.items()
    ]


def answer(spec, **milliseconds):
    """What `advise` says: the recommended method, and a step time by arm."""
    methods = [
        {"spec": ARMS[arm].method, "time": {"seconds": ms / 1000}}
        for arm, ms in milliseconds.items()
    ]
    return {"place": vars(PLACE), "spec": spec, "methods": methods}


def options_of(folder, *words):
    where = ["--out", str(folder / "times.jsonl"), "--advice", str(folder / "advice.jsonl")]
    return advised._parser().parse_args([*where, *words])


def test_by_default_there_are_72_cells_in_12_places(tmp_path):
    asked = advised.wanted(options_of(tmp_path))
    assert len([*advised.places(asked)]) == 12
    cells = {c for c in plan.times(asked) if c.repeat == 0 and c.arm in advised.NAMES}
    assert len(cells) == 72


def test_errors_are_shares_of_the_measured_time():
    answers = {PLACE: answer("bf16", none=90, bf16=60)}
    found = advised.compared(measured(none=100, bf16=50), answers)
    assert found == {PLACE: [("none", 100, 90), ("bf16", 50, pytest.approx(60))]}
    assert advised.summary(found, answers) == (
        "2 cells in 1 places: the median error is 15 %, the largest 20 %; the recommended "
        "method is the fastest, or within 3 % of it, in 1 places."
    )


def test_what_was_not_measured_or_not_predicted_is_not_compared():
    found = advised.compared(measured(none=100, qsgd=30), {PLACE: answer("none", none=90, bf16=60)})
    assert found == {PLACE: [("none", 100, 90)]}
    assert advised.compared([], {PLACE: answer("none", none=90)}) == {}


def test_a_recommended_method_may_be_three_percent_slower_than_the_fastest():
    rows = [("none", 100.0, 1), ("bf16", 103.0, 1), ("qsgd", 103.1, 1)]
    assert [advised.is_right(rows, name) for name, _, _ in rows] == [True, True, False]


def test_what_was_asked_is_not_asked_again(tmp_path, monkeypatch):
    options, asked = options_of(tmp_path, "--tasks", "vision", "--links", "100mbit"), []
    ran = []
    monkeypatch.setattr(advised.runner, "run", lambda cells, *_: ran.extend(cells))

    def ask(place):
        asked.append(place)
        if place.workers == 4 and len(asked) == 2:
            raise NotUsable("advise failed")
        return answer("none", none=1)

    results = advised.Results(options.out)
    with pytest.raises(NotUsable):
        advised._measure(options, results, ask)
    advised._measure(options, results, ask)
    assert [place.workers for place in asked] == [2, 4, 4]
    assert {cell.workers for cell in ran} == {2, 4}
    assert all(place.link == "100mbit" for place in advised.read(tmp_path / "advice.jsonl"))


def test_half_of_the_repeats_are_measured_after_advise_was_asked(tmp_path, monkeypatch):
    words = ["--tasks", "vision", "--links", "1gbit", "--workers", "2", "--repeats", "5"]
    options, events = options_of(tmp_path, *words), []

    def run(cells, *_):
        events.append({cell.repeat for cell in cells})

    def ask(place):
        events.append("advise")
        return answer("none", none=1)

    monkeypatch.setattr(advised.runner, "run", run)
    advised._measure(options, advised.Results(options.out), ask)
    assert events == [{0, 1}, "advise", {0, 1, 2, 3, 4}]  # the runner leaves out what has a result


def test_a_table_of_nothing_says_so(tmp_path):
    with pytest.raises(NotUsable, match="Nothing has been measured"):
        advised.show([], {})


def test_the_table_names_the_recommended_method(tmp_path, capsys):
    append(tmp_path / "advice.jsonl", answer("bf16", none=90, bf16=60))
    answers = advised.read(tmp_path / "advice.jsonl")
    advised.show(measured(none=100, bf16=50), answers)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 cells in 1 places")
    assert lines[3].split() == "vision, 2 workers, 100mbit bf16 * 50 60 +20 %".split()


def test_every_place_has_a_model_of_that_name():
    source = (doc_tables.ROOT / "benchmarks/suite/advised_worker.py").read_text(encoding="utf-8")
    for task in advised.TASKS:
        for workers in plan.WORKERS:
            assert f"{task}_{workers}" in source
