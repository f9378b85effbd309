"""The suite over the registry, and over compressors that lie."""

import pathlib

import pytest
from lying_compressors import LIES, Honest, PartialSum, Undocumented

import grace_tf
from grace_tf.core import registry
from grace_tf.testing import check_compressor, load
from grace_tf.testing.conformance import Report

ROOT = pathlib.Path(__file__).parents[1]
SPECS = [spec for entry in registry.entries() for spec in (entry.name, *entry.examples)]


@pytest.mark.parametrize("spec", SPECS)
def test_registered(spec):
    check_compressor(spec)


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_COMPRESSORS", dict(registry._COMPRESSORS))


SLOW = ("is unbiased", "converges", "graph does not grow")


def reported(cls, quick=False) -> Report:
    registered = grace_tf.register(cls.__name__.lower(), family="toy", paper="-")(cls)
    return check_compressor(registered(), quick=quick, report_only=True)


def test_the_honest_toy_passes(own_registry):
    assert reported(Honest).failed == []


@pytest.mark.parametrize(("cls", "check"), LIES)
def test_a_declared_trait_is_a_tested_trait(own_registry, cls, check):
    assert check in reported(cls, quick=check not in SLOW).failed


def test_a_graph_that_grows_is_found(own_registry):
    report = reported(PartialSum)
    assert "graph does not grow" in report.failed
    assert "FAILED  graph does not grow" in str(report)


def test_failures_raise_with_every_sentence(own_registry):
    cls = grace_tf.register("undocumented", family="toy", paper="-")(Undocumented)
    with pytest.raises(
        AssertionError, match="undocumented fails 1 of .*\n  documents: The docstring of"
    ):
        check_compressor(cls(), quick=True)


def test_an_unregistered_compressor_is_told_how(own_registry):
    with pytest.raises(ValueError, match="Honest is not registered; decorate it"):
        check_compressor(Honest())


def test_the_example_passes(own_registry):
    example = load(f"{ROOT / 'examples' / 'write_a_compressor.py'}:MaxScale")
    report = check_compressor(example)
    assert report.ok and str(report).startswith(
        f"maxscale: {len(report.checks)} of {len(report.checks)}"
    )


def test_load_takes_specs_and_modules():
    assert load("topk:ratio=0.1|values=fp16") == grace_tf.get("topk:ratio=0.1|values=fp16")
    assert load("grace_tf.compressors.topk:TopK") == grace_tf.get("topk")


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nosuch", "is no method"),
        ("nosuch:Thing", "There is no module 'nosuch'"),
        ("nosuch.py:Thing", "There is no file 'nosuch.py'"),
        ("grace_tf.compressors.topk:Top", "has no compressor 'Top'; it has: TopK"),
    ],
)
def test_load_says_what_is_missing(target, sentence):
    with pytest.raises(ValueError, match=sentence):
        load(target)
