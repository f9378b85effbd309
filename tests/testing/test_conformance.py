"""The suite over the registry, and over compressors that lie."""

import logging
import pathlib
import re
from unittest import mock

import lying_contracts
import lying_memories
import lying_sizes  # noqa: F401  adds to LIES
import lying_workers
import numpy as np
import pytest
import tensorflow as tf
from lying_compressors import LIES, Honest, Whole

import grace_tf
from grace_tf.core import registry
from grace_tf.core.rounds import GATHERED, REDUCED, Gather
from grace_tf.line import wire
from grace_tf.testing import (
    check_compressor,
    conformance,
    contract_checks,
    load,
    memory_checks,
)
from grace_tf.testing.conformance import Report, run_checks
from grace_tf.testing.subject import Subject
from grace_tf.testing.workers import Workers
from grace_tf.transports import ring

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.rotated
@pytest.mark.parametrize("spec", [entry.name for entry in registry.entries()])
def test_registered(spec):
    check_compressor(spec)


@pytest.mark.rotated
@pytest.mark.parametrize("spec", [spec for entry in registry.entries() for spec in entry.examples])
def test_examples_of_what_is_registered(spec):
    # The statistics and the training of the checks that are not quick are those of the name's.
    check_compressor(spec, quick=True)


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_COMPRESSORS", dict(registry._COMPRESSORS))


def test_what_checks_cause_is_not_logged(caplog):
    """A NaN on one worker and a function for each length; other warnings stay."""
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)  # it does not propagate
    told = []

    def check(subject):
        Workers(3, "fp16")([[[np.nan]], [[1.0]], [[1.0]]])
        # TensorFlow itself says this twice in a process, and no more.
        logger.warning("5 out of the last 5 calls to <f> triggered tf.function retracing.")
        logging.getLogger("grace_tf").warning("something else")
        told.append(subject)

    try:
        with mock.patch.object(conformance, "_QUICK", (check,)):
            check_compressor("fp16", quick=True)
            assert [r.getMessage() for r in caplog.records] == ["something else"]
            check(told[0])
    finally:
        logger.removeHandler(caplog.handler)
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "was not finite" in said and "triggered tf.function retracing" in said


SLOW = ("is unbiased", "converges", "graph does not grow")


def named(check):
    return check.__name__.replace("_", " ")


def reported(cls, quick=False) -> Report:
    registered = grace_tf.register(cls.__name__.lower(), family="toy", paper="-")(cls)
    return check_compressor(registered(), quick=quick, report_only=True)


@pytest.mark.parametrize("cls", [Honest, Whole])
def test_the_honest_toys_pass(own_registry, cls):
    report = reported(cls)
    assert report.ok, str(report)


@pytest.mark.rotated
@pytest.mark.parametrize(("cls", "check", "words"), LIES, ids=[cls.__name__ for cls, *_ in LIES])
def test_what_is_wrong_is_named(own_registry, cls, check, words):
    registered = grace_tf.register(cls.__name__.lower(), family="toy", paper="-")(cls)
    _, memory = registry.resolve(registered())
    subject = Subject(registered(), registry.get_memory(memory), quick=check not in SLOW)
    checks = [c for c in conformance._ALL if c in contract_checks.CHECKS or named(c) == check]
    report = Report(str(registered()), tuple(run_checks(checks, subject)))
    assert report.failed == [check], str(report)
    (sentence,) = [found.sentence for found in report.checks if found.name == check]
    assert re.search(words, sentence), sentence


def test_what_quick_leaves_out_is_listed_as_not_tested():
    report = check_compressor("fp16", quick=True)
    assert report.not_tested == ("is unbiased", "graph does not grow", "converges") and report.ok
    passed, total = len(report.checks), len(report.checks) + 3
    assert str(report).startswith(f"fp16: {passed} of {total} checks passed")
    assert str(report).endswith("not tested (quick): is unbiased, graph does not grow, converges")


def test_a_cause_is_told_once(own_registry):
    report = reported(lying_contracts.ShortByOneAtOdd, quick=True)
    assert report.failed == ["shapes hold"] and len(report.not_run) > 20 and not report.ok
    assert str(report).count("decompress returns") == 1
    assert "not run because of 'shapes hold': sums decode, rounds agree" in str(report)


@pytest.mark.parametrize(
    "cls, check, words",
    lying_memories.MEMORY_LIES,
    ids=[cls.__name__ for cls, _, _ in lying_memories.MEMORY_LIES],
)
def test_a_memory_that_lies_is_found(cls, check, words):
    found = run_checks(memory_checks.CHECKS, Subject(grace_tf.get("topk"), cls()))
    failed = {each.name: each.sentence for each in found if each.ran and not each.ok}
    assert set(failed) == {check}
    assert re.search(words, failed[check]), failed[check]


def test_the_checks_of_a_memory_pass_for_those_that_there_are():
    memories = [
        registry.get_memory(spec)
        for name in registry.memories()
        for spec in (name, *registry.get_memory(name).examples)
    ]
    for memory in (*memories, lying_memories.TwoLeaves()):
        for each in run_checks(memory_checks.CHECKS, Subject(grace_tf.get("topk"), memory)):
            assert each.ok, (memory, each)


def test_a_graph_that_grows_is_found(own_registry):
    report = reported(lying_workers.PartialSum)
    assert "graph does not grow" in report.failed
    assert "FAILED  graph does not grow" in str(report)


def test_failures_raise_with_every_sentence(own_registry):
    cls = grace_tf.register("undocumented", family="toy", paper="-")(lying_contracts.Undocumented)
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


def test_the_quantiser_of_the_page_about_writing_a_method_passes(own_registry):
    text = (ROOT / "docs" / "writing.md").read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (methods,) = [s for s in snippets if "def compress" in s and "class" not in s]
    given = {"tf": tf, "grace_tf": grace_tf}
    exec(methods, given)
    claims = {"unbiased": True, "homogeneous": True, "__doc__": Honest.__doc__}
    own = {name: given[name] for name in ("wire", "compress", "decompress")}
    cls = type("Sixteen", (grace_tf.Compressor,), {**own, **claims})
    report = reported(cls)
    assert report.ok, str(report)


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


@pytest.mark.parametrize("name", GATHERED)
def test_what_may_be_gathered_is_gathered(name):
    part = tf.cast(tf.range(5), name)
    buffers = wire.layout([Gather([{"part": part}])], flagged=False)
    words = wire.fuse(buffers[0], [Gather([{"part": part}])])
    replies = [[{}]]
    wire.split(buffers[0], words[None], replies)
    assert replies[0][0]["part"].dtype == part.dtype
    assert replies[0][0]["part"][0].numpy().tolist() == part.numpy().tolist()


def test_what_may_be_reduced_is_what_process_groups_reduce():
    assert set(REDUCED) == set(ring._SUMMED)
