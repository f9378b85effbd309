"""float16."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.testing import Workers, cases


class FP16Test(tf.test.TestCase):
    def test_it_rounds_and_keeps_the_shape(self):
        # GRACE cast a list and got a leading axis more.
        x = cases.normal((3, 3, 2, 4))
        (got,) = Workers(1, "fp16")([[x]])
        self.assertAllEqual(got[0], x.astype(np.float16).astype(np.float32))

    def test_the_sum_is_taken_in_float16(self):
        grads = [[np.array([2048.0, 1.0], np.float32)], [np.array([1.0, 1.0], np.float32)]]
        self.assertAllEqual(Workers(2, "fp16")(grads)[0][0], [1024.0, 1.0])

    def test_half_the_bytes(self):
        self.assertEqual(grace_tf.get("fp16").nbytes(tf.TensorSpec([1000], tf.float32)), 2000)
        self.assertEqual(grace_tf.get("fp16").nbytes(tf.TensorSpec([3], tf.float32)), 8)

    def test_values_beyond_its_range_stop_the_step(self):
        workers = Workers(2, "fp16")
        got = workers([[np.array([70000.0], np.float32)], [np.array([0.0], np.float32)]])
        self.assertFalse(np.isfinite(got[1][0]).any())
        self.assertEqual(workers.state.step, 0)
