"""The largest elements."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers, cases


def largest(x, k):
    """x where it is among its k largest magnitudes, ties to the lower index, else 0."""
    flat = x.reshape(-1)
    chosen = np.argsort(-np.abs(flat), kind="stable")[:k]
    out = np.zeros_like(flat)
    out[chosen] = flat[chosen]
    return out.reshape(x.shape)


class TopKTest(tf.test.TestCase):
    def test_it_sends_the_largest(self):
        for shape, ratio in (
            ((257,), 0.1),
            ((40, 30), 0.01),
            ((33,), 1.0),
            ((3, 3, 4, 8), 0.5),
            ((5,), 0.01),
            ((), 0.5),
        ):
            x = cases.normal(shape)
            (got,) = Workers(1, grace_tf.get("topk", ratio=ratio), memory="none")([[x]])
            self.assertAllEqual(got[0], largest(x, max(1, int(ratio * x.size))))

    def test_ties_go_to_the_lower_index(self):
        x = np.array([1, -2, 2, -2, 1, 2], np.float32)
        (got,) = Workers(1, "topk:ratio=0.5", memory="none")([[x]])
        self.assertAllEqual(got[0], [0, -2, 2, -2, 0, 0])

    def test_indices_ascend_and_values_keep_their_bits(self):
        x = cases.normal((1000,))
        context = Context((tf.TensorSpec([1000], tf.float32),), (0,), 0, 0, 1, 0)
        payload = grace_tf.get("topk:ratio=0.05").compress(tf.constant(x), context)
        indices = payload["indices"].numpy()
        self.assertTrue((np.diff(indices) > 0).all())
        self.assertAllEqual(payload["values"], x[indices])

    def test_workers_need_not_select_alike(self):
        # GRACE's gather broke where workers selected differently.
        grads = [[np.array([5, 0, 1, 0], np.float32)], [np.array([0, 1, 0, 7], np.float32)]]
        self.assertAllEqual(
            Workers(2, "topk:ratio=0.25", memory="none")(grads)[0][0], [2.5, 0, 0, 3.5]
        )

    def test_what_is_left_comes_later(self):
        workers = Workers(1, "topk:ratio=0.25")
        x = np.array([4, 3, 2, 1], np.float32)
        sent = [workers([[x if step == 0 else 0 * x]])[0][0].numpy() for step in range(4)]
        self.assertAllEqual(sent, np.diag(x))

    def test_nan_is_not_selected_away(self):
        workers = Workers(3, "topk:ratio=0.01")
        grads = [[cases.normal((500,), w)] for w in range(3)]
        grads[1][0][499] = np.nan
        self.assertTrue(np.isnan(workers(grads)[0][0]).all())
        self.assertFalse(workers.state.arrays()["0/memory/residual"].any())

    def test_eight_bytes_an_element_kept(self):
        self.assertEqual(grace_tf.get("topk").nbytes(tf.TensorSpec([10**6], tf.float32)), 80_000)
