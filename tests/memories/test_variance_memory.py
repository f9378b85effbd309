"""Accumulated gradients, sent when they are large beside their variance."""

import numpy as np
import pytest

from grace_tf.memories.variance import Variance
from grace_tf.testing import Workers, cases

THRESHOLD = "threshold:threshold=0,capacity=0.05"


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_a_step_is_the_algorithm(alpha):
    workers = Workers(1, "topk:ratio=1.0", memory=Variance(alpha, 0.9))
    drift = cases.normal((300,), 99)
    r, v = np.zeros(300, np.float32), np.zeros(300, np.float32)
    arrived = 0
    for step in range(6):
        x = drift + cases.normal((300,), step)
        r, v = r + x, v + x * x
        send = r * r > np.float32(alpha) * v
        total = workers([[x]])[0][0].numpy()
        np.testing.assert_allclose(total, np.where(send, r, 0), rtol=1e-5, atol=1e-6)
        arrived += np.count_nonzero(send)
        r, v = np.where(send, 0, r), np.where(send, 0, np.float32(0.9) * v)
        arrays = workers.state.arrays()
        np.testing.assert_allclose(arrays["0/memory/r"][0], r, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(arrays["0/memory/v"][0], v, rtol=1e-5, atol=1e-6)
    assert 0 < arrived < 6 * 300


def test_one_gradient_alone_is_noise_and_a_steady_one_is_sent_after_two_steps():
    workers = Workers(2, "topk:ratio=1.0", memory="variance")
    x = cases.normal((100,))
    assert not workers([[x]] * 2)[0][0].numpy().any()
    np.testing.assert_allclose(workers([[x]] * 2)[0][0], 2 * x, rtol=1e-6)


def test_elements_that_find_no_room_stay_and_nothing_is_lost():
    workers = Workers(1, THRESHOLD, memory="variance:alpha=1.0")
    given, arrived = np.zeros(2000), np.zeros(2000)
    for step in range(12):
        x = cases.normal((2000,), 77) + cases.normal((2000,), step)
        given += x
        total = workers([[x]])[0][0].numpy()
        arrived += total
        assert np.count_nonzero(total) <= 100
        np.testing.assert_allclose(
            given, arrived + workers.state.arrays()["0/memory/r"][0], atol=1e-4
        )
    assert np.count_nonzero(total) == 100  # more stand out than fit
