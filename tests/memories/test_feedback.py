"""What residual and lowpass share: decay, resets, and the form between steps."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry, rounds
from grace_tf.line import exchange
from grace_tf.line.settings import settings
from grace_tf.ops.backend import native
from grace_tf.testing import Workers, cases

SHAPES = ((40, 30), (257,), ())
DECAYING = "residual:decay=0.9"
FORGETTING = (
    DECAYING,
    "residual:reset=2",
    "residual:dtype=int8,decay=0.5,reset=3",
    "lowpass:reset=2",
    "lowpass:beta=0.2,dtype=int8,reset=3",
    "lowpass:dtype=bf16",
)
METHODS = ("topk:ratio=0.1", "topk:ratio=0.1|values=fp16", "qsgd:rounding=nearest", "efsignsgd")
ITERATED = ("powersgd:rank=2", "acpsgd:rank=2", "gtopk:ratio=0.1", "chunktopk:ratio=0.1,chunk=32")


def gradients(size, step):
    return [
        [cases.normal(shape, 100 * step + 10 * w + i) for i, shape in enumerate(SHAPES)]
        for w in range(size)
    ]


def told(workers, steps):
    """The bits that the optimizer gets and that the state holds, step by step."""
    for step in steps:
        yield [total.numpy().tobytes() for mine in workers(gradients(2, step)) for total in mine]
        arrays = workers.state.arrays()
        yield [arrays[k].tobytes() for k in sorted(arrays) if arrays[k].dtype != object]


@pytest.mark.skipif(not native.available(), reason="the native operations are not there")
@pytest.mark.parametrize("memory", FORGETTING)
@pytest.mark.parametrize("method", METHODS)
def test_fused_forms_decay_reset_and_store_as_the_composition_does(method, memory):
    zeros = [tf.zeros(shape) for shape in SHAPES]
    kept = registry.get_memory(memory)
    form = rounds.fused(grace_tf.get(method), kept, zeros)
    assert form.__qualname__.startswith("_followed") == (kept != registry.get_memory(DECAYING))
    found = list(told(Workers(2, method, memory=memory), range(3)))
    with mock.patch.object(exchange, "fused", lambda *_: None):
        assert found == list(told(Workers(2, method, memory=memory), range(3)))


@pytest.mark.skipif(not native.available(), reason="the native operations are not there")
@pytest.mark.parametrize("method", ITERATED)
def test_fused_forms_of_several_passes_add_a_residual_that_decays(method):
    found = list(told(Workers(2, method, memory=DECAYING), range(3)))
    with mock.patch.object(exchange, "fused", lambda *_: None):
        wanted = list(told(Workers(2, method, memory=DECAYING), range(3)))
    assert found == wanted


@pytest.mark.skipif(not native.available(), reason="the native operations are not there")
@pytest.mark.parametrize("memory", ["residual", "residual:dtype=int8", "residual:decay=0.9"])
def test_a_residual_without_reset_takes_no_further_pass(memory):
    for method in ("topk", "efsignsgd"):
        form = rounds.fused(grace_tf.get(method), registry.get_memory(memory), [tf.zeros([9])])
        assert form is rounds._encoded


@pytest.mark.parametrize("decay", [0.9, 0.25])
def test_a_residual_decays_by_the_formula(decay):
    workers = Workers(2, "topk:ratio=0.1", memory=f"residual:decay={decay}")
    kept = np.zeros((2, 40, 30), np.float32)
    for step in range(4):
        grads = [mine[0] for mine in gradients(2, step)]
        sent = []
        for w, g in enumerate(grads):
            x = g + np.float32(decay) * kept[w]
            best = np.argsort(-np.abs(x).reshape(-1), kind="stable")[:120]
            sent.append(np.zeros_like(x))
            sent[w].flat[best] = x.flat[best]
            kept[w] = x - sent[w]
        ((mean,), _) = workers([[g] for g in grads])
        np.testing.assert_allclose(mean, (sent[0] + sent[1]) / 2, rtol=1e-6)
        np.testing.assert_allclose(workers.state.arrays()["0/memory/residual"], kept, rtol=1e-6)


@pytest.mark.parametrize(
    "memory, scale", [("residual:reset=3", 1), ("lowpass:beta=0.5,reset=3", 2)]
)
def test_nothing_is_lost_from_one_reset_to_the_next(memory, scale):
    workers = Workers(2, "topk:ratio=0.1", memory=memory)
    unsent = np.zeros((40, 30))
    for step in range(6):
        grads = [mine[0] for mine in gradients(2, step)]
        ((mean,), _) = workers([[g] for g in grads])
        unsent += sum(g.astype(np.float64) for g in grads) - 2 * mean.numpy().astype(np.float64)
        kept = workers.state.arrays()["0/memory/residual"].astype(np.float64).sum(0)
        if step % 3 == 2:
            assert not kept.any()
            unsent[...] = 0
        np.testing.assert_allclose(scale * kept, unsent, atol=1e-5)
        assert step % 3 == 2 or np.abs(kept).max() > 0.1


@pytest.mark.parametrize("memory", ["lowpass:beta=0.2,dtype=int8,reset=3", "residual:reset=3"])
def test_a_training_that_goes_on_between_two_resets_resets_in_the_same_step(memory):
    whole = list(told(Workers(2, "qsgd:rounding=nearest", memory=memory), range(5)))
    first = Workers(2, "qsgd:rounding=nearest", memory=memory)
    before = list(told(first, range(2)))
    second = Workers(2, "qsgd:rounding=nearest", memory=memory)
    second.state.restore(first.state.arrays())
    assert before + list(told(second, range(2, 5))) == whole


def test_a_filter_of_8_bits_takes_a_quarter_of_the_bytes_and_is_right_on_average():
    narrow = Workers(1, "topk:ratio=0.1", memory="lowpass:dtype=int8")
    wide = Workers(1, "topk:ratio=0.1", memory="lowpass")
    for workers in (narrow, wide):
        workers([[cases.normal((300, 400), 1)]])
    stored = narrow.state.arrays()["0/memory/residual"]
    exact = wide.state.arrays()["0/memory/residual"][0]
    assert stored.dtype == np.int8 and stored.nbytes < 0.26 * exact.nbytes
    specs = [tf.TensorSpec([300, 400], tf.float32)]
    kept = registry.get_memory("lowpass:dtype=int8")
    back = kept.load([{"residual": tf.constant(stored[0])}], specs)[0]["residual"].numpy()
    level = np.abs(exact).max() / 127
    assert np.abs(back - exact).max() <= level * (1 + 1e-4)
    assert abs(np.mean(back - exact)) < 4 * level / 2 / exact.size**0.5


def test_rows_of_a_table_decay_where_a_gradient_touches_them_and_a_reset_needs_all_rows():
    assert registry.get_memory("residual:decay=0.9").by_rows
    assert not registry.get_memory("residual:reset=10").by_rows


@pytest.mark.parametrize(
    ("memory", "error", "words"),
    [
        ("residual:decay=0", ValueError, r"decay is a fraction in \(0, 1\]"),
        ("residual:reset=0", ValueError, "reset is at least 1, not 0"),
        ("lowpass:reset=1.5", TypeError, "reset is an integer"),
        ("lowpass:dtype=fp8", ValueError, "dtype is one of float32, bf16, int8"),
    ],
)
def test_what_no_residual_can_do_is_refused(memory, error, words):
    with pytest.raises(error, match=words):
        registry.get_memory(memory)


@pytest.mark.parametrize("memory", FORGETTING)
def test_a_forgetting_memory_comes_back_from_its_configuration(memory):
    wanted = settings("topk", memory=memory)
    assert wanted.config()["memory"] == memory
    assert settings(**wanted.config()) == wanted
