"""Low rank."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.testing import Workers, cases


def low_rank(shape, rank, seed=0):
    a, b = int(np.prod(shape[:-1])), shape[-1]
    return (cases.normal((a, rank), seed) @ cases.normal((rank, b), seed + 1)).reshape(shape)


class PowerSGDTest(tf.test.TestCase):
    def test_a_matrix_of_that_rank_comes_back(self):
        for shape in ((60, 40), (3, 3, 16, 24)):
            x = low_rank(shape, 2)
            (got,) = Workers(1, "powersgd:rank=2")([[x]])
            self.assertAllClose(got[0], x, atol=1e-4)

    def test_the_formula(self):
        grads = [cases.normal((30, 20), w) for w in range(3)]
        workers = Workers(3, "powersgd:rank=2", memory="none", seed=4)
        workers.prepare([tf.zeros((30, 20))])
        q = workers.state.arrays()["0/compressor/q"][0].astype(np.float64)
        got = workers([[g] for g in grads])[0][0]
        mean = np.mean(grads, 0).astype(np.float64)
        p = np.linalg.qr(mean @ q)[0]
        self.assertAllClose(got, p @ p.T @ mean, atol=1e-5)
        # the next start, up to the signs of the columns
        kept, start = workers.state.arrays()["0/compressor/q"][0], mean.T @ p
        self.assertAllClose(np.abs(kept), np.abs(start) / np.abs(start).max(0), atol=1e-5)

    def test_convolution_kernels_are_matrices_of_their_last_axis(self):
        # GRACE reshaped on axis 0, the kernel's height, and hardly compressed.
        spec = tf.TensorSpec([3, 3, 64, 128], tf.float32)
        compressor = grace_tf.get("powersgd:rank=4")
        self.assertEqual(compressor.nbytes(spec), 4 * 4 * (3 * 3 * 64 + 128))
        self.assertLess(compressor.nbytes(spec), 4 * 3 * 3 * 64 * 128 // 25)
        pointwise = tf.TensorSpec([1, 1, 256, 64], tf.float32)
        self.assertEqual(compressor.nbytes(pointwise), 4 * 4 * (256 + 64))

    def test_what_factors_would_not_shorten_travels_dense_and_exact(self):
        shapes = ((100,), (), (3, 3), (8, 1))
        grads = [[cases.normal(s, 10 * w) for s in shapes] for w in range(2)]
        workers = Workers(2, "powersgd:rank=4")
        for i, got in enumerate(workers(grads)[1]):
            self.assertAllEqual(got, (grads[0][i] + grads[1][i]) / 2)
        self.assertFalse([name for name in workers.state.arrays() if "compressor" in name])

    def test_all_workers_start_from_the_same_q_and_keep_it_alike(self):
        # GRACE's Torch code drew a Q per worker and step.
        workers = Workers(3, "powersgd:rank=2")
        workers.prepare([tf.zeros((30, 20))])
        start = workers.state.arrays()["0/compressor/q"]
        self.assertAllEqual(start[0], start[1])
        self.assertGreater(np.linalg.matrix_rank(start[0]), 1)
        for step in range(3):
            workers([[cases.normal((30, 20), 10 * step + w)] for w in range(3)])
        kept = workers.state.arrays()["0/compressor/q"]
        self.assertAllEqual(kept[0], kept[2])
        self.assertNotAllEqual(kept[0], start[0])

    def test_the_warm_start_makes_it_better(self):
        x = low_rank((60, 40), 6) + 0.1 * cases.normal((60, 40), 9)
        workers = Workers(1, "powersgd:rank=3", memory="none")
        errors = [np.linalg.norm(workers([[x]])[0][0] - x) for _ in range(6)]
        singular = np.linalg.svd(x, compute_uv=False)
        best = np.sqrt(np.sum(singular[3:] ** 2))
        self.assertLess(errors[-1], 1.02 * best)
        self.assertGreater(errors[0], 1.05 * best)

    def test_further_iterations_are_as_many_steps_on_the_same_gradient(self):
        x = low_rank((60, 40), 6) + 0.1 * cases.normal((60, 40), 9)
        once, thrice = (
            Workers(1, f"powersgd:rank=3,iterations={n}", memory="none", seed=2) for n in (1, 3)
        )
        for _ in range(3):
            wanted = once([[x]])[0][0]
        self.assertAllClose(thrice([[x]])[0][0], wanted, atol=1e-4)

    def test_further_iterations_are_a_projection_on_the_mean_of_several_workers(self):
        grads = [cases.normal((30, 20), w) for w in range(3)]
        workers = Workers(3, "powersgd:rank=2,iterations=2", memory="none", seed=4)
        workers.prepare([tf.zeros((30, 20))])
        q = workers.state.arrays()["0/compressor/q"][0].astype(np.float64)
        got = workers([[g] for g in grads])[0][0]
        mean = np.mean(grads, 0).astype(np.float64)
        for _ in range(2):
            p = np.linalg.qr(mean @ q)[0]
            q = mean.T @ p
        self.assertAllClose(got, p @ q.T, atol=1e-5)

    def test_an_iteration_costs_two_rounds_of_as_many_bytes(self):
        once = 4 * 2 * (30 + 20)
        for iterations in (1, 2, 16):
            compressor = grace_tf.get(f"powersgd:rank=2,iterations={iterations}")
            spec = tf.TensorSpec([30, 20], tf.float32)
            self.assertEqual(compressor.nbytes(spec), iterations * once)
            workers = Workers(2, compressor)
            workers([[cases.normal((30, 20), w)] for w in range(2)])
            self.assertLen(workers.handed, 2 * iterations)
            self.assertEqual(workers.bytes_per_step, iterations * once + 4)
        with self.assertRaisesRegex(ValueError, "iterations is from 1 to 16, not 17"):
            grace_tf.get("powersgd:iterations=17")

    def test_what_is_not_compressed_by_the_minimum_travels_dense(self):
        spec = tf.TensorSpec([30, 20], tf.float32)  # 600 elements, whose factors are 50 and 50
        for least, elements in ((1, 100), (5.9, 100), (6, 600), (1000, 600)):
            compressor = grace_tf.get("powersgd:rank=2", min_compression=least)
            self.assertEqual(compressor.nbytes(spec), 4 * elements)
        got = Workers(2, compressor)([[cases.normal((30, 20), w)] for w in range(2)])[0][0]
        wanted = cases.normal((30, 20), 0) + cases.normal((30, 20), 1)
        self.assertAllEqual(got, wanted / 2)
        with self.assertRaisesRegex(ValueError, "min_compression is at least 1, not 0.5"):
            grace_tf.get("powersgd:min_compression=0.5")

    def test_the_residual_is_this_workers_own(self):
        workers = Workers(2, "powersgd:rank=1")
        grads = [cases.normal((30, 20), w) for w in range(2)]
        got = workers([[g] for g in grads])[0][0].numpy()
        residuals = workers.state.arrays()["0/memory/residual"]
        self.assertAllClose(residuals.sum(0) + 2 * got, grads[0] + grads[1], atol=1e-5)
        for residual, grad in zip(residuals, grads):
            self.assertLess(np.linalg.norm(residual), np.linalg.norm(grad))

    def test_deficient_and_extreme_matrices_stay_finite(self):
        for x in (
            np.zeros((30, 20)),
            np.ones((30, 20)),
            1e30 * cases.normal((30, 20)),
            1e-37 * cases.normal((30, 20)),
        ):
            workers = Workers(1, "powersgd:rank=4")
            for _ in range(3):
                self.assertTrue(np.isfinite(workers([[x.astype(np.float32)]])[0][0]).all())
            self.assertEqual(workers.state.step, 3)

    def test_tiny_matrices_are_not_lost(self):
        x = (1e-25 * low_rank((30, 20), 1)).astype(np.float32)
        (got,) = Workers(1, "powersgd:rank=1")([[x]])
        self.assertLess(
            np.linalg.norm(got[0] / 1e-25 - x / 1e-25), 1e-3 * np.linalg.norm(x / 1e-25)
        )
