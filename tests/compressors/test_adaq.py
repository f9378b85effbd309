"""Two means."""

import math

import numpy as np
import tensorflow as tf
from sums import conserves

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers, cases


def sent(x, ratio, workers=1):
    return np.asarray(Workers(workers, "adaq", ratio=ratio, memory="none")([[x]] * workers)[0][0])


def by_hand(x, ratio):
    """The paper's rule with exact counts: the largest of each side become their side's mean."""
    flat, k = x.ravel(), max(1, int(ratio * x.size))
    positive, negative = int((flat > 0).sum()), int((flat < 0).sum())
    shares = positive, negative
    if positive + negative > k:
        share = int(np.floor(k * positive / (positive + negative) + 0.5))
        shares = share, k - share
    out = np.zeros_like(flat)
    for sign, share in zip((1, -1), shares):
        if share:
            chosen = np.argsort(-sign * flat, kind="stable")[:share]
            out[chosen] = flat[chosen].mean(dtype=np.float64)
    return out.reshape(x.shape)


class AdaQTest(tf.test.TestCase):
    def test_known_vector(self):
        x = np.array([5, -1, 3, -8, 1, 0, -2, 0.5, -4, 1], np.float32)
        # Five positive and four negative ones: of four, two each.
        self.assertAllEqual(sent(x, 0.4), [4, 0, 4, -6, 0, 0, 0, 0, -6, 0])

    def test_it_is_the_formula(self):
        for shape, ratio in (((257,), 0.1), ((40, 30), 0.01), ((33,), 1.0), ((5,), 0.01), ((), 1)):
            x = cases.normal(shape) + np.float32(0.3)
            self.assertAllClose(sent(x, ratio), by_hand(x, ratio), rtol=2e-7, atol=0)
        x = cases.normal((70_001,))
        self.assertAllClose(sent(x, 0.01), by_hand(x, 0.01), rtol=2e-7, atol=0)

    def test_bug_24_an_empty_side_is_no_nan(self):
        # GRACE took the mean of nothing, and drew below a bound of 0.
        for x in (np.zeros(50), np.arange(1, 51), -np.arange(1, 51), np.eye(1, 50, 7)[0]):
            x = x.astype(np.float32)
            self.assertAllEqual(sent(x, 0.1), by_hand(x, 0.1))
            self.assertTrue(np.isfinite(sent(x, 0.1, workers=2)).all())

    def test_bug_8_workers_that_select_differently_many_agree(self):
        # GRACE cut the remote payload to the local one's length.
        grads = [[np.array([2, 4, -6, 0], np.float32)], [np.array([0, 0, 0, 6], np.float32)]]
        for mine in Workers(2, "adaq:ratio=1", memory="none")(grads):
            self.assertAllEqual(mine[0], [1.5, 1.5, -3, 3])

    def test_it_is_a_projection(self):
        # What is left is orthogonal to what was sent.
        x = cases.normal((999,)) - np.float32(0.2)
        got = sent(x, 0.2).astype(np.float64)
        self.assertLess(abs(got @ (x - got)), 1e-6 * (got @ got))

    def test_conservation(self):
        conserves(self, "adaq:ratio=0.05")

    def test_the_bytes_on_the_wire(self):
        n, k = 10**6, 10**4
        nbytes = grace_tf.get("adaq").nbytes(tf.TensorSpec([n], tf.float32))
        self.assertEqual(nbytes, 8 + 4 * 313 + 10_704 + 4)
        entropy = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        entropy = (entropy / math.log(2) + k) / 8
        self.assertBetween(nbytes, entropy, 1.06 * entropy)

    def test_the_payload_says_no_more_than_the_places_signs_and_means(self):
        x = np.array([5, -1, 3, -8, 1, 0, -2, 0.5, -4, 1], np.float32)
        context = Context((tf.TensorSpec([10], tf.float32),), (0,), 0, 0, 1, 0)
        payload = grace_tf.get("adaq:ratio=0.4").compress(tf.constant(x), context)
        self.assertAllEqual(payload["means"], [4, -6])
        self.assertAllEqual(payload["indices"], [0b100001101])
        self.assertAllEqual(payload["signs"], [0b0011])
        self.assertAllEqual(payload["count"], [4])


if __name__ == "__main__":
    tf.test.main()
