"""The largest elements, quantised."""

import numpy as np
import tensorflow as tf
from sums import conserves

import grace_tf
from grace_tf.core import registry
from grace_tf.testing import Workers, cases

SHAPE, BLOCK = (60, 50), 512


def quantised(x, k, bits):
    """Q of the k largest elements: of each 512 of them, in order, the nearest of 2s + 1 levels."""
    out, flat = np.zeros(x.size, np.float64), x.reshape(-1).astype(np.float64)
    chosen = np.sort(np.argsort(-np.abs(flat), kind="stable")[:k])
    levels = 2 ** (bits - 1) - 1
    for start in range(0, k, BLOCK):
        places = chosen[start : start + BLOCK]
        scale = np.abs(flat[places]).max()
        out[places] = scale * np.round(flat[places] / scale * levels) / levels
    return out.reshape(x.shape)


class QsparseTest(tf.test.TestCase):
    def test_it_is_the_formula(self):
        for ratio, bits in ((0.05, 4), (0.5, 4), (0.5, 8)):
            x = cases.normal(SHAPE)
            workers = Workers(1, "qsparse", ratio=ratio, bits=bits)
            wanted = quantised(x, int(ratio * x.size), bits)
            self.assertAllClose(workers([[x]])[0][0], wanted, rtol=1e-5, atol=1e-6)
            kept = workers.state.arrays()["0/memory/residual"][0]
            self.assertAllClose(kept, x - wanted, rtol=1e-5, atol=1e-6)

    def test_the_mean_of_workers(self):
        grads = [cases.normal(SHAPE, w) for w in range(3)]
        wanted = np.mean([quantised(g, 150, 4) for g in grads], 0)
        for each in Workers(3, "qsparse:ratio=0.05")([[g] for g in grads]):
            self.assertAllClose(each[0], wanted, rtol=1e-5, atol=1e-6)

    def test_conservation(self):
        conserves(self, "qsparse:ratio=0.05")

    def test_the_bytes_on_the_wire(self):
        spec = tf.TensorSpec([10**6], tf.float32)
        self.assertEqual(grace_tf.get("qsparse").nbytes(spec), 5_008 + 80 + 10_704)
        self.assertEqual(grace_tf.get("qsparse:bits=8").nbytes(spec), 10_016 + 80 + 10_704)

    def test_the_name_resolves_to_the_composite_and_the_memory(self):
        compressor, memory = registry.resolve("qsparse:ratio=0.1,bits=3")
        self.assertEqual(
            compressor,
            grace_tf.get("topk:ratio=0.1|values=qsgd:bits=3,rounding=nearest"),
        )
        self.assertEqual(memory, "residual")
        with self.assertRaisesRegex(ValueError, "bits"):
            grace_tf.get("qsparse:bits=1")
        with self.assertRaisesRegex(TypeError, "no hyperparameter 'levels'"):
            grace_tf.get("qsparse:levels=3")
