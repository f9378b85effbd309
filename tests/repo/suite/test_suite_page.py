"""docs/benchmarks.md says what was run, what was not, and how good it became."""

import doc_tables  # noqa: F401  with it the benchmarks can be imported
from doc_tables import ROOT
from suite_records import HIGH, LOW, MIDDLE, PLACE, VISION, run_of, time_of

from benchmarks.suite import advised, pictures, report
from benchmarks.suite.__main__ import RESULTS
from benchmarks.suite.arms import ALONE
from benchmarks.suite.plan import Cell
from benchmarks.suite.results import Results, append
from benchmarks.suite.tasks.outline import OUTLINES


def page(tmp_path, records, answers=None, chosen=()):
    file = tmp_path / "results.jsonl"
    for record in records:
        append(file, record)
    report.write(Results(file), answers or {}, chosen, tmp_path)
    return (tmp_path / "benchmarks.md").read_text()


def test_the_page_draws_what_auto_chose_in_every_place_that_nothing_disturbs(tmp_path):
    taken = {"auto": {"first": 1.0, "others": 9.0}, "choice": "auto: eden, a step", "steps": 101}
    methods = {name: {"first": 0.0, "step": 0.2} for name in ("none", "bf16", "fp16", "eden")}
    place = {"task": "vision", "workers": 2, "disturbed": "", "methods": methods, **taken}
    chosen = [{**place, "link": link} for link in ("unshaped", "1gbit")]
    chosen.append({**place, "link": "10gbit", "disturbed": "nice"})
    assert pictures.choices(chosen) == {
        ("vision", 2): [("1gbit", "eden", 0.5), ("unshaped", "eden", 0.5)]
    }
    text = page(tmp_path, [time_of("none", "none", 100)], chosen=chosen)
    assert "![what auto chose, and its seconds](benchmarks-auto.png)" in text
    assert (tmp_path / "benchmarks-auto.png").stat().st_size > 1000


def test_the_page_has_what_was_run_and_names_what_was_not(tmp_path):
    records = [
        *(run_of("none", seed, [90, 98, 98]) for seed in (1, 2, 3)),
        *(run_of("bf16", seed, [90, 97, 98]) for seed in (1, 2, 3)),
        *(run_of("topk", seed, [10, 20, end]) for seed, end in ((1, 30), (2, 98), (3, 30))),
        run_of("eden", 1, [90, 97, 98], HIGH),
        run_of("loco", 1, [90, 97, 98], LOW),
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
    assert f"| `none` | 98.00 | 0 | 3 | {MIDDLE} | 1000 B | 200 |" in text
    assert f"| `topk` | 52.67 | 39.3 | 3 | {MIDDLE} | 1000 B | not reached (1 of 3 runs) |" in text
    assert f"| `eden` | 98.00 |  | 1 | {HIGH} (largest) | 1000 B | 300 |" in text
    assert f"| `loco` | 98.00 |  | 1 | {LOW} (smallest) | 1000 B | 300 |" in text
    assert "| `powersgd` | not run |" in text
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


def test_the_page_says_where_an_engine_was_measured_with_keras_2(tmp_path):
    times = [
        {**time_of("none", "none", 100), "engine": engine, "keras": keras}
        for engine, keras in (("group", "3.15.1"), ("horovod", "2.15.0"))
    ]
    text = page(tmp_path, times)
    assert "| plain processes | `none` | 100 |" in text
    assert "| Horovod, Keras 2 | `none` | 100 |" in text


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


def test_auto_is_as_good_as_none_of_the_same_seeds_within_the_tolerance():
    none = [run_of("none", seed, [90, end]) for seed, end in ((1, 97), (2, 98), (3, 50))]
    for less, said in ((0.2, "-0.20, as good (2 runs)"), (0.4, "-0.40, worse (2 runs)")):
        more = {"link": "1gbit", "choice": "auto: bf16, since"}
        auto = [run_of("auto", seed, [90, 96 + seed - less], **more) for seed in (1, 2)]
        assert f"| {said} |" in report.choices([*none, *auto], VISION, 2)
    assert "| not run |" in report.choices(auto, VISION, 2).splitlines()[3]
