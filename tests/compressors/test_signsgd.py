"""Signs and votes."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.testing import Workers, cases


class SignSGDTest(tf.test.TestCase):
    def test_the_majority_decides_and_a_tie_gives_zero(self):
        votes = np.array(
            [[1, 1, -1, -1], [1, -1, -1, 1], [1, -1, -1, -1], [1, 1, -1, 1]], np.float32
        )
        got = Workers(4, "signsgd")([[row] for row in votes])
        self.assertAllEqual(got[2][0], [1, 0, -1, 0])

    def test_the_vote_is_not_divided_by_the_workers(self):
        # GRACE's TensorFlow code gave ±1/N.
        grads = [[cases.normal((257,), w)] for w in range(3)]
        got = Workers(3, "signsgd")(grads)[0][0]
        self.assertAllEqual(got, np.sign(np.sum([np.sign(g[0]) for g in grads], 0)))
        self.assertAllEqual(np.unique(got), [-1, 1])

    def test_zero_of_either_sign_counts_as_positive(self):
        x = np.array([0.0, -0.0, 1e-40, -1e-40], np.float32)
        self.assertAllEqual(Workers(1, "signsgd")([[x]])[0][0], [1, 1, 1, -1])

    def test_the_words_hold_a_bit_an_element(self):
        # GRACE sent a byte an element.
        x = np.where(np.arange(40) % 3 == 0, 1.0, -1.0).astype(np.float32)
        compressor = grace_tf.get("signsgd")
        words = compressor.compress(tf.constant(x), None)["signs"].numpy()
        expected = np.packbits(np.pad(x > 0, (0, 24)), bitorder="little").view("<i4")
        self.assertAllEqual(words, expected)
        self.assertEqual(compressor.nbytes(tf.TensorSpec([10**6], tf.float32)), 125_000)
