"""qsgd, and a decaying part of the error that it made."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.core.specs import spec_of
from grace_tf.line.settings import settings
from grace_tf.testing import Workers, cases


def test_levels_are_sent_as_they_are_and_leave_no_error():
    x = np.array([7, -3, 1, 0, -7, 2, 5, -1], np.float32)
    workers = Workers(1, "ecqsgd")
    for _ in range(3):
        np.testing.assert_array_equal(workers([[x]])[0][0], x)
    assert not workers.state.arrays()["0/memory/residual"].any()


def test_the_second_step_sends_a_part_of_the_first_one_s_error():
    first, second = cases.normal((2048,)), cases.normal((2048,), 1)
    ours, plain = Workers(1, "ecqsgd:alpha=0.25"), Workers(1, "qsgd")
    sent = ours([[first]])[0][0].numpy()
    np.testing.assert_array_equal(plain([[first]])[0][0], sent)
    compensated = second + np.float32(0.25) * (first - sent)
    # Both draw the same numbers, so that only elements on the edge of a draw may differ.
    wanted = plain([[compensated]])[0][0].numpy()
    got = ours([[second]])[0][0].numpy()
    assert np.mean(np.abs(got - wanted) > 1e-5) < 0.002


def test_the_name_resolves_to_qsgd_and_the_memory():
    compressor, memory = registry.resolve("ecqsgd:bits=3,block=128,alpha=0.2,beta=0.8")
    assert str(compressor) == "qsgd:bits=3,block=128"
    assert spec_of(memory) == "ecq:alpha=0.2,beta=0.8"


def test_the_bytes_are_those_of_qsgd():
    spec = tf.TensorSpec([10**6], tf.float32)
    assert grace_tf.get("ecqsgd").nbytes(spec) == grace_tf.get("qsgd").nbytes(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ecqsgd:bits=1", "qsgd: bits is from 2 to 16"),
        ("ecqsgd:block=33", "multiple of 32"),
        ("ecqsgd:alpha=0.0", "ecq: alpha is a fraction"),
        ("ecqsgd:beta=1.5", "ecq: beta is a fraction"),
        ("ecqsgd:bits=2,alpha=0.2", "would grow without bound"),
        ("ecqsgd:block=none", "would grow without bound"),
    ],
)
def test_what_is_wrong_or_not_stable_is_refused_at_construction(spec, words):
    with pytest.raises(ValueError, match=words):
        settings(spec)
