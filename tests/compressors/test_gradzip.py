"""Low rank by ridge regressions."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.testing import Workers, cases

SHAPE = (30, 20)


class GradZipTest(tf.test.TestCase):
    def test_it_is_the_ridge_regression_on_the_space_of_powersgd(self):
        grads = [cases.normal(SHAPE, w) for w in range(3)]
        mean = np.mean(grads, 0).astype(np.float64)
        workers = Workers(3, "gradzip:rank=2,ridge=0.5", memory="none", seed=4)
        workers.prepare([tf.zeros(SHAPE)])
        q = workers.state.arrays()["0/compressor/q"][0].astype(np.float64)
        got = workers([[g] for g in grads])[0][0]
        paper = mean @ q @ np.linalg.inv(q.T @ q + 0.5 * np.eye(2))
        p = np.linalg.qr(paper)[0]
        wanted = p @ np.linalg.inv(p.T @ p + 0.5 * np.eye(2)) @ p.T @ mean
        self.assertAllClose(got, wanted, atol=1e-5)

    def test_what_the_ridge_takes_stays_in_the_residual(self):
        workers = Workers(2, "gradzip:rank=2")
        grads = [cases.normal(SHAPE, w) for w in range(2)]
        got = workers([[g] for g in grads])[0][0].numpy()
        kept = workers.state.arrays()["0/memory/residual"]
        self.assertAllClose(kept.sum(0) + 2 * got, grads[0] + grads[1], atol=1e-5)

    def test_it_is_powersgd_with_a_ridge_and_the_residual(self):
        compressor, memory = registry.resolve("gradzip")
        self.assertEqual(str(compressor), "powersgd:ridge=0.1")
        self.assertEqual(memory, "residual")
        with self.assertRaisesRegex(ValueError, "ridge is at least 0, not -1"):
            grace_tf.get("gradzip:ridge=-1")
