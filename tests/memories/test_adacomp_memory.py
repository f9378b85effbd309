"""Accumulated gradients, of which each bin sends those that the last step made large."""

import numpy as np
import pytest

from grace_tf.memories.adacomp import AdaComp
from grace_tf.testing import Workers, cases

SHAPES = ((40, 30), (257,), (3,))


def chosen(x, rest, length):
    """(what is compressed, G) of one variable, by the paper's algorithm."""
    grown = (x + rest).reshape(-1)
    last = grown + x.reshape(-1)
    bins = [slice(i, i + length) for i in range(0, grown.size, length)]
    largest = [np.abs(grown[b]).max() for b in bins]
    scale = np.float32(np.mean(largest))
    out = np.zeros_like(grown)
    for b, top in zip(bins, largest):
        out[b] = np.where(np.abs(last[b]) >= top, scale * np.sign(grown[b]), 0)
    return out.reshape(x.shape), grown.reshape(x.shape)


@pytest.mark.parametrize("length", [50, 7, 500])
def test_a_step_is_the_algorithm(length):
    workers = Workers(2, "adaq:ratio=1.0", memory=AdaComp(length))
    rest = [[np.zeros(shape, np.float32) for shape in SHAPES] for _ in range(2)]
    for step in range(4):
        grads = [
            [cases.normal(shape, 100 * step + 10 * w + i) for i, shape in enumerate(SHAPES)]
            for w in range(2)
        ]
        got = workers(grads)[0]
        for i in range(len(SHAPES)):
            sent = []
            for w in range(2):
                out, grown = chosen(grads[w][i], rest[w][i], length)
                sent.append(out)
                rest[w][i] = grown - out
            np.testing.assert_allclose(got[i], (sent[0] + sent[1]) / 2, rtol=1e-5, atol=1e-6)
            kept = workers.state.arrays()[f"{i}/memory/residual"]
            np.testing.assert_allclose(kept, [r[i] for r in rest], rtol=1e-4, atol=1e-5)


def test_what_finds_no_room_stays_in_the_residual_and_nothing_is_lost():
    workers = Workers(1, "adaq:ratio=0.16", memory="adacomp:bin=50")
    given, arrived = np.zeros(2000), np.zeros(2000)
    for step in range(30):
        x = cases.normal((2000,), step)
        given += x
        total = workers([[x]])[0][0].numpy()
        arrived += total
        assert 0 < np.count_nonzero(total) <= 8 / 50 * 2000
        kept = workers.state.arrays()["0/memory/residual"][0]
        np.testing.assert_allclose(given, arrived + kept, atol=1e-4)
    # In the first step a fifth of all elements is chosen, for which there is no room.
    first, _ = chosen(cases.normal((2000,), 0), np.zeros(2000, np.float32), 50)
    assert np.count_nonzero(first) > 8 / 50 * 2000


def test_a_bin_of_zeros_sends_nothing():
    x = np.zeros(150, np.float32)
    x[:50] = 1.0
    total = Workers(1, "adaq:ratio=1.0", memory=AdaComp(50))([[x]])[0][0].numpy()
    assert not total[50:].any() and total[:50].any()
