"""The largest elements of the sum over workers."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry, rounds
from grace_tf.ops.backend import native
from grace_tf.testing import Workers, cases

SIZE, SHAPES, K = 3, ((40, 30), (257,)), (60, 12)


def largest(x, k):
    """x where it is among its k largest magnitudes, ties to the lower index, else 0."""
    out, flat = np.zeros(x.size, x.dtype), x.reshape(-1)
    chosen = np.argsort(-np.abs(flat), kind="stable")[:k]
    out[chosen] = flat[chosen]
    return out.reshape(x.shape)


def formula(compensated, k):
    """The sum's k largest, and what each worker keeps."""
    sent = [largest(x, k) for x in compensated]
    total = largest(sum(sent[1:], sent[0]), k)
    return total, [x - np.where(total != 0, s, 0) for x, s in zip(compensated, sent)]


def test_it_is_the_formula_and_nothing_is_lost_over_fifty_steps():
    workers = Workers(SIZE, "gtopk:ratio=0.05")
    residuals = [[np.zeros(shape, np.float32) for _ in range(SIZE)] for shape in SHAPES]
    given, got = [np.zeros(s) for s in SHAPES], [np.zeros(s) for s in SHAPES]
    for step in range(50):
        grads = [[cases.normal(s, 1000 * w + step) for s in SHAPES] for w in range(SIZE)]
        results = workers(grads)
        for i, k in enumerate(K):
            mine = [grads[w][i] for w in range(SIZE)]
            total, residuals[i] = formula([g + r for g, r in zip(mine, residuals[i])], k)
            for each in results:
                np.testing.assert_array_equal(each[i], total * np.float32(1 / SIZE))
            kept = workers.state.arrays()[f"{i}/memory/residual"]
            np.testing.assert_array_equal(kept, np.stack(residuals[i]))
            given[i] += sum(g.astype(np.float64) for g in mine)
            got[i] += SIZE * results[0][i].numpy().astype(np.float64)
    for i in range(len(SHAPES)):
        np.testing.assert_allclose(got[i] + np.sum(residuals[i], 0), given[i], atol=1e-3)


class GTopKTest(tf.test.TestCase):
    def test_what_the_sum_drops_goes_back_to_those_who_sent_it(self):
        # The workers' largest are 5 and -4, and both have sent 3: the sum's largest is 6.
        grads = [[np.array([5, 0, 3, 0], np.float32)], [np.array([-4, 0, 3, 0], np.float32)]]
        workers = Workers(2, "gtopk:ratio=0.5")
        self.assertAllEqual(workers(grads)[0][0], [0.5, 0, 3, 0])
        workers = Workers(2, "gtopk:ratio=0.25")
        self.assertAllEqual(workers(grads)[0][0], [0.5, 0, 0, 0])
        self.assertAllEqual(
            workers.state.arrays()["0/memory/residual"], [[0, 0, 3, 0], [0, 0, 3, 0]]
        )
        grads = [[np.array([5, 0, 0, 0], np.float32)], [np.array([0, 0, 0, 7], np.float32)]]
        workers = Workers(2, "gtopk:ratio=0.25")
        self.assertAllEqual(workers(grads)[1][0], [0, 0, 0, 3.5])
        self.assertAllEqual(
            workers.state.arrays()["0/memory/residual"], [[5, 0, 0, 0], [0, 0, 0, 0]]
        )

    def test_alone_it_is_topk(self):
        mine, others = Workers(1, "gtopk:ratio=0.05"), Workers(1, "topk:ratio=0.05")
        for step in range(4):
            x = cases.normal((50, 40), step)
            if step == 3:  # fewer than are sent are not zero
                x[2:] = 0
            self.assertAllEqual(mine([[x]])[0][0], others([[x]])[0][0])
            for name, kept in others.state.arrays().items():
                self.assertAllEqual(mine.state.arrays()[name], kept)

    def test_parts_that_cancel_are_sent(self):
        # A sum of 0 that was kept is an exchange like any other.
        grads = [[np.array([2, 0], np.float32)], [np.array([-2, 0], np.float32)]]
        workers = Workers(2, "gtopk:ratio=0.5")
        self.assertAllEqual(workers(grads)[0][0], [0, 0])
        self.assertAllEqual(workers.state.arrays()["0/memory/residual"], np.zeros((2, 2)))

    def test_the_bytes_on_the_wire(self):
        spec = tf.TensorSpec([10**6], tf.float32)
        self.assertEqual(grace_tf.get("gtopk").nbytes(spec), 40_000 + 10_704)
        workers = Workers(2, "gtopk")
        workers([[cases.normal((10**5,), w)] for w in range(2)])
        flag = 4
        self.assertEqual(
            workers.bytes_per_step,
            grace_tf.get("topk").nbytes(tf.TensorSpec([10**5], tf.float32)) + flag,
        )

    def test_wrong_ratios_are_refused(self):
        for ratio in (0.0, 1.5, -1):
            with self.assertRaisesRegex(ValueError, "gtopk: ratio"):
                grace_tf.get("gtopk", ratio=ratio)
        with self.assertRaisesRegex(ValueError, "one round"):
            grace_tf.get("gtopk|values=fp16")

    @pytest.mark.skipif(not native.available(), reason=native.why_not())
    def test_it_is_fused_with_its_memory(self):
        compressor, memory = registry.resolve("gtopk")
        memory = registry.get_memory(memory)
        self.assertEqual(memory.name, "residual")
        self.assertIsNotNone(rounds.fused(compressor, memory, [tf.zeros([10])]))
