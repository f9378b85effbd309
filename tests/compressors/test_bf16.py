"""bfloat16."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.testing import Workers, cases


def rounded(x):
    """x to the upper 16 bits, to nearest, ties to even."""
    bits = x.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


class BF16Test(tf.test.TestCase):
    def test_it_rounds_to_even(self):
        x = np.concatenate([cases.normal((1001,)), [1.00390625, 1.01171875]]).astype(np.float32)
        (got,) = Workers(1, "bf16")([[x]])
        self.assertAllEqual(got[0], rounded(x))
        self.assertAllEqual(got[0][-2:], [1.0, 1.015625])

    def test_the_range_is_that_of_float32(self):
        x = np.array([1e38, -1e-37], np.float32)
        self.assertAllClose(Workers(1, "bf16")([[x]])[0][0] / x, [1.0, 1.0], rtol=2.0**-8)

    def test_half_the_bytes(self):
        self.assertEqual(grace_tf.get("bf16").nbytes(tf.TensorSpec([1000], tf.float32)), 2000)
