"""The signs of the largest elements, and one magnitude for all of them."""

import numpy as np
import tensorflow as tf
from sums import conserves

import grace_tf
from grace_tf.core import registry
from grace_tf.testing import Workers, cases

SIZE, SHAPE, K = 3, (40, 30), 60


def ternary(x, k):
    """The paper's formula: μ·sign(x) on the k largest, μ being the mean of their magnitudes."""
    out, flat = np.zeros(x.size, np.float32), x.reshape(-1)
    chosen = np.argsort(-np.abs(flat), kind="stable")[:k]
    mean = np.abs(flat[chosen].astype(np.float64)).mean().astype(np.float32)
    out[chosen] = mean * np.sign(flat[chosen])
    return out.reshape(x.shape)


class STCTest(tf.test.TestCase):
    def test_it_is_the_formula(self):
        workers = Workers(SIZE, "stc:ratio=0.05")
        residuals = [np.zeros(SHAPE, np.float32)] * SIZE
        for step in range(10):
            grads = [cases.normal(SHAPE, 100 * w + step) for w in range(SIZE)]
            compensated = [g + r for g, r in zip(grads, residuals)]
            sent = [ternary(x, K) for x in compensated]
            residuals = [x - s for x, s in zip(compensated, sent)]
            mean = (sent[0] + sent[1] + sent[2]) * np.float32(1 / SIZE)
            for each in workers([[g] for g in grads]):
                self.assertAllClose(each[0], mean, rtol=1e-6, atol=1e-7)
            kept = workers.state.arrays()["0/memory/residual"]
            self.assertAllClose(kept, np.stack(residuals), rtol=1e-5, atol=1e-6)
            residuals = list(kept)  # a rounding may decide between two elements later on

    def test_a_known_vector(self):
        x = np.array([1, -5, 0.5, 3, -0.25, 0, 1, 2], np.float32)
        workers = Workers(1, "stc:ratio=0.25")
        self.assertAllEqual(workers([[x]])[0][0], [0, -4, 0, 4, 0, 0, 0, 0])
        kept = workers.state.arrays()["0/memory/residual"][0]
        self.assertAllEqual(kept, [1, -1, 0.5, -1, -0.25, 0, 1, 2])

    def test_conservation(self):
        conserves(self, "stc:ratio=0.05")

    def test_the_bytes_on_the_wire(self):
        # k signs, one float32 and the indices, each rounded up to words.
        spec = tf.TensorSpec([10**6], tf.float32)
        self.assertEqual(grace_tf.get("stc").nbytes(spec), 316 + 4 + 3_304)
        self.assertEqual(grace_tf.get("stc:ratio=0.01").nbytes(spec), 1_252 + 4 + 10_704)

    def test_the_name_resolves_to_the_composite_and_the_memory(self):
        compressor, memory = registry.resolve("stc:ratio=0.1")
        self.assertEqual(str(compressor), "topk:ratio=0.1|values=efsignsgd")
        self.assertEqual(memory, "residual")
        with self.assertRaisesRegex(ValueError, "ratio"):
            grace_tf.get("stc:ratio=0")
