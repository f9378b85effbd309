"""Powers of two."""

import dataclasses

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers, cases

SMALLEST, LARGEST = 2.0**-94, 2.0**32


def draws(x, steps, worker=0):
    """What is decoded of x on each of so many steps, [steps, n]."""
    compressor = grace_tf.get("natural")
    spec = tf.TensorSpec(x.shape, tf.float32)

    @tf.function
    def roundtrip(step):
        context = Context((spec,), (0,), step, 7, 2, worker)
        return compressor.decompress(compressor.compress(x, context), context.public())

    return np.stack([roundtrip(tf.constant(step, tf.int64)) for step in range(steps)])


def once(x):
    return draws(np.asarray(x, np.float32), 1)[0]


class NaturalTest(tf.test.TestCase):
    def test_each_element_becomes_a_power_of_two_beside_it(self):
        x = cases.normal((4001,)) * np.float32(2.0) ** np.random.default_rng(0).integers(
            -60, 20, 4001
        ).astype(np.float32)
        below = np.copysign(2.0 ** np.floor(np.log2(np.abs(x.astype(np.float64)))), x)
        seen = draws(x, 40)
        self.assertTrue(((seen == below) | (seen == 2 * below)).all())
        # An element is missed by one side on all 40 steps with a chance of 1/41 on average.
        self.assertGreater((seen == below).any(0).mean(), 0.95)
        self.assertGreater((seen != below).any(0).mean(), 0.95)

    def test_it_is_unbiased_with_the_variance_of_the_paper(self):
        x = np.concatenate([cases.normal((24,)), np.linspace(1, 2, 24), [-1e-20, 3e8, 0]])
        x = x.astype(np.float32)
        seen = draws(x, 2000).astype(np.float64)
        error = seen.std(0) / np.sqrt(len(seen))
        self.assertTrue((np.abs(seen.mean(0) - x) <= 4 * error + 1e-9 * np.abs(x)).all())
        self.assertTrue((seen.var(0) <= 1.05 / 8 * x.astype(np.float64) ** 2 + 1e-45).all())

    def test_the_probability_is_exact_to_16_bits(self):
        # Each element is 2^-14 away from a power of two, and is rounded to the other one with that
        # probability: of 2^23 draws about 512.
        n = 2**20
        x = np.full(n, 2 - 2.0**-14, np.float32)
        x[: n // 2] = 1 + 2.0**-14
        seen = draws(x, 16)
        ups = (seen[:, : n // 2] == 2).sum()
        downs = (seen[:, n // 2 :] == 1).sum()
        for count in (ups, downs):  # Poisson
            self.assertAllClose(count, 512, atol=5 * 512**0.5)

    def test_powers_of_two_and_zeros_are_exact(self):
        x = np.float32([1, -2, 0.5, SMALLEST, LARGEST, -SMALLEST, 0, -0.0])
        for seen in draws(x, 20):
            self.assertAllEqual(seen, x)

    def test_beyond_its_range(self):
        x = np.float32([3e38, -1e10, LARGEST * 1.5, 1e-30, -1e-38, 1e-40, -1e-45])
        for seen in draws(x, 20):
            self.assertAllEqual(seen, [LARGEST, -LARGEST, LARGEST, 0, 0, 0, 0])

    def test_bug_21_negative_denormals_are_zero(self):
        # GRACE's CUDA table gave +131072 for -1e-40, and read before the table for 1e-40.
        x = np.float32([-1e-40, 1e-40, -(2.0**-127), -1.1754942e-38, 2.0**-126])
        self.assertAllEqual(draws(x, 50), np.zeros([50, 5]))
        for value in (np.nan, np.inf, -np.inf):
            workers = Workers(2, "natural")
            got = workers([[np.float32([value, 1])], [np.float32([1, 1])]])
            self.assertTrue(np.isnan(got[0][0]).all() and np.isnan(got[1][0]).all())

    def test_bug_32_words_with_the_top_bit_set_are_codes(self):
        # GRACE counted on an int32 to wrap around, which NumPy 2 refuses.
        x = -np.ones(7, np.float32)
        context = Context((tf.TensorSpec([7], tf.float32),), (0,), 0, 0, 1, 0)
        words = grace_tf.get("natural").compress(tf.constant(x), context)["codes"].numpy()
        self.assertAllEqual(words.view(np.uint8), [0x80 | 95] * 7 + [0])

    def test_bug_33_there_is_one_format(self):
        # GRACE's two codes were a factor of two apart: code 95 is 1, wherever it is decoded.
        context = Context((tf.TensorSpec([4], tf.float32),), (0,), 0, 0, 1)
        words = np.array([95, 96, 0x80 | 94, 1], np.uint8).view(np.int32)
        got = grace_tf.get("natural").decompress({"codes": tf.constant(words)}, context)
        self.assertAllEqual(got, [1, 2, -0.5, SMALLEST])

    def test_bug_22_workers_round_independently(self):
        x = cases.normal((4096,))
        errors = [draws(x, 1, worker)[0] - x for worker in range(2)]
        self.assertLess(abs(np.corrcoef(errors[0], errors[1])[0, 1]), 0.1)

    def test_no_error_exceeds_its_element(self):
        x = np.float32(2.0) ** np.random.default_rng(2).uniform(-149, 127, 5000)
        x = np.concatenate([x, -x]).astype(np.float32)
        for seen in draws(x, 20).astype(np.float64):
            self.assertTrue((np.abs(seen - x) <= np.abs(x.astype(np.float64))).all())

    def test_a_byte_an_element(self):
        compressor = grace_tf.get("natural")
        self.assertEqual(compressor.nbytes(tf.TensorSpec([10**6], tf.float32)), 10**6)
        self.assertEqual([f.name for f in dataclasses.fields(compressor)], [])

    def test_nothing_is_lost_in_fifty_steps(self):
        draw = np.random.default_rng(3)
        workers = Workers(2, "natural", memory="residual")
        given, taken = np.zeros([2, 700]), np.zeros(700)
        for _ in range(50):
            grads = draw.normal(size=(2, 700)).astype(np.float32)
            given += grads
            taken += workers([[g] for g in grads])[0][0].numpy()
        (left,) = (v for k, v in workers.state.arrays().items() if k.endswith("residual"))
        np.testing.assert_allclose(given.mean(0), taken + left.mean(0), atol=1e-4)


if __name__ == "__main__":
    tf.test.main()
