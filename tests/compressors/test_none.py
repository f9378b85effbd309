"""No compression."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.testing import Workers, cases


class NoCompressionTest(tf.test.TestCase):
    def test_it_is_the_mean(self):
        grads = [[cases.normal((7, 5), w)] for w in range(4)]
        got = Workers(4, "none")(grads)
        self.assertAllEqual(got[3][0], np.sum(grads, 0)[0] / np.float32(4))

    def test_it_sends_what_it_gets(self):
        workers = Workers(2, "none")
        workers([[cases.normal((7, 5))]] * 2)
        self.assertEqual(grace_tf.get("none").nbytes(tf.TensorSpec([7, 5], tf.float32)), 140)
        self.assertEqual(workers.bytes_per_step, 140 + 4)
