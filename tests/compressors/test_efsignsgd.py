"""Signs with the mean magnitude."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.testing import Workers, cases

SHAPE = (40, 31)


def formula(x, block=None):
    """Algorithm 1 of the paper, line 4: ‖p‖₁/d · sign(p)."""
    flat = x.reshape(-1)
    out = np.empty_like(flat)
    block = block or flat.size
    for start in range(0, flat.size, block):
        p = flat[start : start + block]
        scale = np.float32(np.abs(p.astype(np.float64)).mean())
        out[start : start + block] = np.where(p >= 0, scale, -scale)
    return out.reshape(x.shape)


def sent(spec, x):
    (got,) = Workers(1, spec, memory="none")([[x]])
    return got[0].numpy()


@pytest.mark.parametrize("shape", [(1613,), (1,), (), (33, 7), (3, 3, 5, 64), (70_001,)])
@pytest.mark.parametrize("block", [None, 32, 512, 4096])
def test_it_is_the_formula(shape, block):
    x = cases.normal(shape, 3)
    got = sent(f"efsignsgd:block={block}" if block else "efsignsgd", x)
    np.testing.assert_array_equal(got, formula(x, block))


@pytest.mark.parametrize("spec", ["efsignsgd", "efsignsgd:block=64"])
def test_nothing_is_lost(spec):
    workers = Workers(3, spec, memory="residual")
    given, arrived = np.zeros(SHAPE), np.zeros(SHAPE)
    for step in range(50):
        grads = [cases.normal(SHAPE, 10 * step + w) for w in range(3)]
        given += sum(g.astype(np.float64) for g in grads)
        arrived += 3 * workers([[g] for g in grads])[0][0].numpy().astype(np.float64)
    rest = workers.state.arrays()["0/memory/residual"].astype(np.float64)
    np.testing.assert_allclose(given, arrived + rest.sum(0), rtol=0, atol=2e-4)
    assert np.abs(rest).max() > 0.1


class EFSignSGDTest(tf.test.TestCase):
    def test_the_aggregate_is_the_mean_over_workers(self):
        # GRACE's Torch code gave the sum.
        grads = [cases.normal(SHAPE, w) for w in range(3)]
        got = Workers(3, "efsignsgd")([[g] for g in grads])[1][0]
        self.assertAllClose(got, np.mean([formula(g) for g in grads], 0), rtol=1e-6)

    def test_the_first_step_is_as_large_as_later_ones(self):
        # GRACE's Torch memory left the learning rate out of the first step, and divided by it.
        x = cases.normal(SHAPE)
        workers = Workers(1, "efsignsgd", memory="residual")
        residual = np.zeros(SHAPE, np.float32)
        for _ in range(3):
            self.assertAllClose(workers([[x]])[0][0], formula(x + residual), rtol=1e-6)
            residual = x + residual - formula(x + residual)

    def test_a_constant_learning_rate_cancels(self):
        # The paper's algorithm 1 with γ = 1/8, and ours with steps multiplied by it.
        rate = np.float32(0.125)
        workers = Workers(1, "efsignsgd", memory="residual")
        error = np.zeros(SHAPE, np.float32)
        for step in range(5):
            g = cases.normal(SHAPE, step)
            p = rate * g + error
            delta = formula(p)
            error = p - delta
            self.assertAllEqual(rate * workers([[g]])[0][0].numpy(), delta)

    def test_bytes(self):
        spec = tf.TensorSpec([10**6], tf.float32)
        self.assertEqual(grace_tf.get("efsignsgd").nbytes(spec), 125_004)
        self.assertEqual(grace_tf.get("efsignsgd:block=512").nbytes(spec), 125_000 + 4 * 1954)

    def test_zeros_and_denormals_are_sent_as_zeros(self):
        for value in (0.0, -0.0, 1e-40, -1e-40, 1e-36):
            x = np.full([70], value, np.float32)
            self.assertAllEqual(sent("efsignsgd", x), np.zeros(70))

    def test_huge_gradients_do_not_overflow(self):
        x = np.array([3e38, -3.4e38, 3e38, -3e38], np.float32)
        self.assertAllEqual(sent("efsignsgd", x), formula(x))

    def test_its_memory_is_the_residual_with_a_decay(self):
        self.assertEqual(grace_tf.core.registry.resolve("efsignsgd")[1], "residual:decay=0.9")

    def test_wrong_blocks_are_refused(self):
        for block in (16, 33, 96, 0):
            with self.assertRaisesRegex(ValueError, "efsignsgd: block is"):
                grace_tf.get("efsignsgd", block=block)
