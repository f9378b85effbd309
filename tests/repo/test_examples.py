"""Every example, run as a user runs it, with short settings."""

import json
import re
from pathlib import Path

import launch
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow  # any of them may be the first, which runs the demo for all


def run(workers, example, *arguments):
    """What a run of an example printed, on success."""
    return launch.launch(EXAMPLES / example, *arguments, workers=workers).succeeded().text


@pytest.fixture(scope="module")
def digits():
    """(what two workers printed, their results, the picture) of a short run of the demo."""
    folder = launch.SHARED / "digits"  # of all processes of pytest, as the run is
    picture, numbers = folder / "new" / "digits.png", folder / "digits.jsonl"
    methods = ["none", "qsgd", "powersgd", "topk:ratio=0.05|values=qsgd:bits=4,rounding=nearest"]
    where = ["--out", picture, "--json", numbers]
    words = [str(EXAMPLES / "digits.py"), "--epochs", "4", *where, "--methods", *methods]
    printed = launch.launch_once(*words, cold=True).succeeded().text  # as a user starts it
    results = [json.loads(line) for line in numbers.read_text().splitlines()]
    assert [r["method"] for r in results] == methods
    return printed, results, picture


def test_digits_hands_over_the_bytes_it_announces(digits):
    _, results, _ = digits
    for result in results:
        assert result["workers"] == 2
        assert result["bytes_per_step"] == result["announced_bytes"], result["method"]
    dense = results[0]["bytes_per_step"]
    assert all(r["bytes_per_step"] < dense / 7 for r in results[1:])


def test_digits_learns_with_every_method(digits):
    _, results, _ = digits
    for result in results:
        assert len(result["curve"]) == 4
        assert result["accuracy"] == result["curve"][-1]
        assert result["accuracy"] > 0.8, result


def test_digits_ends_with_a_table_and_a_picture(digits):
    printed, results, picture = digits
    for result in results:
        row = next(
            line
            for line in printed.splitlines()
            if line.startswith(f"[0] {result['method']} ") and line.endswith(" ms")
        )
        assert f"{result['accuracy']:.4f}" in row
    assert "[1] none" not in printed  # worker 0 reports alone
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_digits_alone_reports_what_it_would_send(tmp_path, digits):
    numbers = tmp_path / "alone.jsonl"
    where = ["--out", str(tmp_path / "alone.png"), "--json", str(numbers)]
    run(1, "digits.py", "--epochs", "1", "--methods", "qsgd", *where)
    (alone,) = [json.loads(line) for line in numbers.read_text().splitlines()]
    assert alone["workers"] == 1
    assert alone["bytes_per_step"] == digits[1][1]["bytes_per_step"]


def test_mirrored_learns_in_under_80_lines():
    printed = run(1, "mirrored.py", "--epochs", "4")
    accuracy, sent = re.search(r"accuracy ([\d.]+), (\d+) bytes", printed).groups()
    assert float(accuracy) > 0.8
    assert int(sent) > 0
    assert len((EXAMPLES / "mirrored.py").read_text().splitlines()) < 80


def test_custom_loop_learns_in_under_60_lines():
    printed = run(2, "custom_loop.py", "--epochs", "4")
    accuracy, sent = re.search(r"accuracy ([\d.]+), (\d+) bytes", printed).groups()
    assert float(accuracy) > 0.8
    assert int(sent) > 0
    assert len((EXAMPLES / "custom_loop.py").read_text().splitlines()) < 60


def test_the_transformer_sends_a_twentieth_after_the_warm_up(tmp_path):
    numbers = tmp_path / "transformer.jsonl"
    names = ["--optimizers", "adam", "1-bit adam"]
    run(2, "transformer.py", "--steps", "8", "--text", "20000", "--json", str(numbers), *names)
    adam, signs = [json.loads(line) for line in numbers.read_text().splitlines()]
    assert adam["workers"] == signs["workers"] == 2
    assert adam["bytes_per_step"] == adam["dense_bytes"] + 4
    assert signs["bytes_per_step"] < adam["bytes_per_step"] / 20
    assert max(adam["bits"], signs["bits"]) < 6.3  # of about 6.6 before the first step


def test_every_example_is_run_by_a_test():
    sources = [path.read_text() for path in Path(__file__).parents[1].glob("*/test_*.py")]
    for example in EXAMPLES.glob("*.py"):
        assert any(example.name in source for source in sources), example.name
