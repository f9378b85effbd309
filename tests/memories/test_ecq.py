"""A part of the accumulated error of an unbiased quantiser."""

import numpy as np
import pytest

from grace_tf.core import registry
from grace_tf.line.settings import settings
from grace_tf.testing import Workers, cases


def test_a_step_is_the_formula():
    workers = Workers(1, "qsgd:bits=3", memory="ecq:alpha=0.2,beta=0.8")
    kept = np.zeros(500, np.float32)
    for step in range(4):
        x = cases.normal((500,), step)
        sent = workers([[x]])[0][0].numpy()
        wanted = x + np.float32(0.2) * kept
        top = np.argmax(np.abs(wanted))
        np.testing.assert_allclose(sent[top], wanted[top], rtol=1e-6)
        assert np.abs(sent - wanted).max() < 1.001 * np.abs(wanted).max() / 3
        kept = np.float32(0.8) * kept + (x - sent)
        found = workers.state.arrays()["0/memory/residual"][0]
        np.testing.assert_allclose(found, kept, rtol=1e-5, atol=1e-6)
    assert np.abs(kept).max() > 0.1


@pytest.mark.parametrize(
    ("spec", "memory"),
    [
        ("qsgd:bits=2", "ecq"),
        ("qsgd:bits=2,norm=minmax", "ecq"),
        ("natural", "ecq:alpha=1.0,beta=1.0"),
        ("terngrad:clip=none", "ecq:alpha=0.02"),
        ("wangni", "ecq"),
    ],
)
def test_the_errors_stay_bounded(spec, memory):
    workers = Workers(2, spec, memory=memory)
    norms = []
    for step in range(60):
        workers([[cases.normal((1024,), 10 * step + w)] for w in range(2)])
        norms.append(np.linalg.norm(workers.state.arrays()["0/memory/residual"]))
    assert max(norms[30:]) < 1.2 * max(norms[10:30])


@pytest.mark.parametrize(
    ("spec", "memory", "words"),
    [
        ("qsgd:bits=2", "ecq:alpha=0.2", ("alpha²·22.6", "= 1.4, which")),
        ("qsgd:bits=4", "ecq:alpha=1.0,beta=1.0", ("= 2.61, which must be below 1",)),
        ("qsgd:bits=4,block=none", "ecq", ("would grow without bound",)),
        ("qsgd:norm=minmax,block=none", "ecq", ("would grow without bound",)),
        ("atomo", "ecq", ("alpha²·340",)),
        ("terngrad:clip=none", "ecq", ("alpha²·512", "smaller alpha")),
        ("randomk:ratio=0.001,scaled=true", "ecq", ("would grow without bound",)),
        ("terngrad:clip=none,shared=true", "ecq", ("gives none as relative_bound",)),
        ("randomk:scaled=true|values=qsgd", "ecq", ("gives none as relative_bound",)),
        ("topk", "ecq", ("needs a compressor that is unbiased",)),
    ],
)
def test_what_would_grow_without_bound_is_refused(spec, memory, words):
    with pytest.raises(ValueError) as raised:
        settings(spec, memory=memory)
    assert [part for part in words if part not in str(raised.value)] == []


def test_what_stays_bounded_is_taken():
    for spec, memory in (
        ("qsgd:bits=2", "ecq"),
        ("qsgd:bits=8,rounding=stratified", "ecq:alpha=0.9"),
        ("qsgd:norm=minmax", "ecq"),
        ("natural", "ecq:alpha=1.0,beta=1.0"),
        ("terngrad:clip=none", "ecq:alpha=0.02"),
        ("wangni", "ecq"),
        ("atomo", "ecq:alpha=0.02"),
        ("randomk:ratio=0.1,scaled=true", "ecq"),
    ):
        ((_, _, taken),) = settings(spec, memory=memory).routes
        assert taken == registry.get_memory(memory)
    for wrong in ("alpha=0", "beta=1.5"):
        with pytest.raises(ValueError, match="is a fraction"):
            registry.get_memory(f"ecq:{wrong}")
