"""A few singular triples, drawn at random."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.compressors import atomo
from grace_tf.testing import Workers, cases

SHAPE = (30, 20)


def probabilities(sigma, s):
    """Algorithm 1 of the paper: the largest have p = 1, the others share what is left."""
    p, left = np.ones(len(sigma)), s
    for i in range(len(sigma)):
        p[i:] = left * sigma[i:] / sigma[i:].sum()
        if p[i] <= 1:
            break
        p[i], left = 1, left - 1
    return p


def drawn(sigma, s, uniform):
    """(numbers, σ/p)."""
    numbers, factors = atomo._drawn(tf.constant(sigma, tf.float32), s, tf.constant([uniform]))
    return numbers.numpy(), factors.numpy()


class AtomoTest(tf.test.TestCase):
    def test_each_triple_comes_as_often_as_its_probability_and_always_as_many(self):
        for sigma in ([9, 2, 1, 1, 0.5, 0.1], [9, 7, 0.2, 0.1, 0.1, 0.05], [1, 1, 1, 1, 1, 1]):
            wanted = probabilities(np.array(sigma, np.float64), 3)
            self.assertAllClose(wanted.sum(), 3)
            counts = np.zeros(6)
            grid = (np.arange(400, dtype=np.float32) + 0.5) / 400
            for uniform in grid:
                numbers, factors = drawn(sigma, 3, uniform)
                self.assertLen(set(numbers), 3)
                self.assertAllClose(factors, np.array(sigma)[numbers] / wanted[numbers], rtol=1e-5)
                counts[numbers] += 1
            # One uniform number: on a grid the share is the probability to one point a triple.
            self.assertAllClose(counts / 400, wanted, atol=2 / 400)

    def test_where_fewer_values_are_not_zero_all_of_them_are_sent(self):
        numbers, factors = drawn([5, 2, 0, 0], 3, 0.3)
        self.assertAllEqual(numbers[:2], [0, 1])
        self.assertAllClose(factors, [5, 2, 0])
        self.assertAllEqual(drawn([0, 0, 0], 2, 0.5)[1], [0, 0])

    def test_a_matrix_of_as_many_triples_comes_back(self):
        x = cases.normal((60, 3), 1) @ cases.normal((3, 40), 2)
        got = Workers(2, "atomo:atoms=3")([[x], [x]])[1][0]
        self.assertAllClose(got, x, atol=1e-4)

    def test_what_it_sends_has_these_singular_values(self):
        x = cases.normal(SHAPE)
        sigma = np.linalg.svd(x, compute_uv=False).astype(np.float64)
        got = Workers(1, "atomo:atoms=4")([[x]])[0][0].numpy()
        found = np.linalg.svd(got, compute_uv=False)[:5]
        possible = sigma / probabilities(sigma, 4)
        self.assertLess(found[4], 1e-4)
        for value in found[:4]:
            self.assertLess(np.abs(possible - value).min(), 1e-3)

    def test_short_vectors_travel_dense_and_exact(self):
        grads = [[cases.normal(s, w) for s in ((100,), (3, 3))] for w in range(2)]
        for got, a, b in zip(Workers(2, "atomo")(grads)[0], *grads):
            self.assertAllEqual(got, (a + b) / 2)
        spec = tf.TensorSpec([30, 20], tf.float32)
        self.assertEqual(grace_tf.get("atomo").nbytes(spec), 4 * 3 * 50)
        with self.assertRaisesRegex(ValueError, "atoms is at least 1, not 0"):
            grace_tf.get("atomo:atoms=0")
