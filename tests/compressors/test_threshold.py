"""What passes a threshold."""

import numpy as np
import tensorflow as tf
from sums import conserves

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers, cases


def payload(spec, x):
    context = Context((tf.TensorSpec(x.shape, tf.float32),), (0,), 0, 0, 1, 0)
    return {k: v.numpy() for k, v in grace_tf.get(spec).compress(tf.constant(x), context).items()}


class ThresholdTest(tf.test.TestCase):
    def test_it_sends_what_is_strictly_beyond(self):
        x = np.array([0.5, -0.5, 0.51, -3, 0, 0.1], np.float32)
        sent = payload("threshold:threshold=0.5,capacity=1", x)
        self.assertAllEqual(sent["count"], [2])
        self.assertAllEqual(sent["indices"], [0b1100])
        self.assertAllClose(sent["values"], [0.51, -3, 0, 0, 0, 0])
        (got,) = Workers(1, "threshold:threshold=0.5,capacity=1", memory="none")([[x]])
        self.assertAllEqual(got[0], np.where(np.abs(x) > 0.5, x, 0))

    def test_an_all_negative_tensor_is_no_exception(self):
        # GRACE took the maximum without the magnitude, and sent everything.
        x = np.full([10], -0.001, np.float32)
        self.assertAllEqual(payload("threshold:capacity=1", x)["count"], [0])
        self.assertAllEqual(Workers(2, "threshold:capacity=1")([[x], [x]])[0][0], np.zeros(10))

    def test_what_overflows_stays_in_the_residual(self):
        workers = Workers(1, "threshold:threshold=1,capacity=0.2")
        x = np.array([9, -8, 7, -6, 5, 0.5, 0, 0, 0, 0], np.float32)
        sent = [workers([[x if step == 0 else 0 * x]])[0][0].numpy() for step in range(4)]
        self.assertAllEqual(sent[0], [9, -8, 0, 0, 0, 0, 0, 0, 0, 0])
        self.assertAllEqual(sent[1], [0, 0, 7, -6, 0, 0, 0, 0, 0, 0])
        self.assertAllEqual(sent[2], [0, 0, 0, 0, 5, 0, 0, 0, 0, 0])
        self.assertAllEqual(sent[3], np.zeros(10))
        self.assertAllEqual(workers.state.arrays()["0/memory/residual"][0][5], 0.5)

    def test_workers_that_select_differently_many_agree(self):
        # GRACE cut the remote payload to the local one's length.
        grads = [[np.array([2, 3, 4, 0], np.float32)], [np.array([0, 0, 0, 6], np.float32)]]
        got = Workers(2, "threshold:threshold=1,capacity=1", memory="none")(grads)
        for mine in got:
            self.assertAllEqual(mine[0], [1, 1.5, 2, 3])

    def test_entries_beyond_the_count_say_nothing(self):
        x = cases.normal((100,))
        compressor = grace_tf.get("threshold:threshold=2,capacity=0.5")
        context = Context((tf.TensorSpec([100], tf.float32),), (0,), 0, 0, 1)
        sent = payload("threshold:threshold=2,capacity=0.5", x)
        plain = compressor.decompress(sent, context)
        sent["values"][sent["count"][0] :] = 99
        tampered = {k: tf.constant(v) for k, v in sent.items()}
        self.assertAllEqual(compressor.decompress(tampered, context), plain)

    def test_nothing_sent_is_a_payload_as_long(self):
        # GRACE's gather hung where nothing passed.
        x = np.zeros([1000], np.float32)
        sent = payload("threshold", x)
        self.assertFalse(any(part.any() for part in sent.values()))
        self.assertAllEqual(Workers(2, "threshold")([[x], [x]])[0][0], x)

    def test_conservation(self):
        conserves(self, "threshold:threshold=1.5,capacity=0.05")

    def test_the_payload_is_bounded(self):
        # 6.25 bits an index at the default capacity of 1 in 20
        self.assertEqual(
            grace_tf.get("threshold").nbytes(tf.TensorSpec([10**6], tf.float32)),
            200_000 + 39_064 + 4,
        )
