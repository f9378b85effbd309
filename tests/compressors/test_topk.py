"""The largest elements."""

import numpy as np
import pytest
import tensorflow as tf
from sums import conserves

import grace_tf
from grace_tf.core import registry, rounds
from grace_tf.core.context import Context
from grace_tf.ops import index_sets
from grace_tf.ops.backend import native
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
        indices = index_sets.unpack_list(payload["indices"][None], [1000], [50])[0].numpy()
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

    def test_conservation(self):
        # Every gradient is sent or kept, whatever refines the values: per worker, over 50 steps.
        for spec in ("topk:ratio=0.05", "topk:ratio=0.05|values=fp16"):
            conserves(self, spec)

    def test_the_bytes_on_the_wire(self):
        spec = tf.TensorSpec([10**6], tf.float32)
        for name, size in (
            ("topk", 40_000 + 10_704),
            ("topk|values=fp16", 20_000 + 10_704),
            ("topk|values=bf16", 20_000 + 10_704),
            ("topk|values=qsgd:bits=4", 5_008 + 80 + 10_704),
            ("topk:ratio=0.5", 2_000_000 + 125_000),
        ):
            self.assertEqual(grace_tf.get(name).nbytes(spec), size, name)

    @pytest.mark.skipif(not native.available(), reason=native.why_not())
    def test_refined_values_stay_fused(self):
        # On GRACE's wire every index takes 32 bits, and the values always 32 too.
        for stage in ("fp16", "bf16", "qsgd:bits=4,rounding=nearest", "topk:ratio=0.5"):
            compressor = grace_tf.get("topk").then(values=stage)
            memory = registry.get_memory("residual")
            self.assertIsNotNone(rounds.fused(compressor, memory, [tf.zeros([10])]), stage)
