"""The line: order, mean convention, dense lanes, and steps that are refused."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.core.memory import Memory
from grace_tf.core.rounds import Sum
from grace_tf.testing import Workers, cases
from grace_tf.transports.loopback import Loopback

SHAPES = ((40, 30), (33,), ())


def grads(size, seed=0, shapes=SHAPES, dtype=np.float32):
    return [
        [cases.normal(s, seed + 10 * w + i).astype(dtype) for i, s in enumerate(shapes)]
        for w in range(size)
    ]


def tensors(grads_):
    return [[tf.constant(g) for g in mine] for mine in grads_]


def arrays_equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


class OrderTest(tf.test.TestCase):
    def test_a_gradient_passes_every_station_in_order(self):
        passed = []
        self.addCleanup(registry._MEMORIES.pop, "noting")

        @grace_tf.register("noting")
        class Noting(Memory):
            def init_state(self, spec):
                return {"kept": tf.zeros(spec.shape)}

            def compensate(self, x, state, ctx):
                passed.append("compensate")
                return x + state["kept"], x

            def settle(self, carry, sent, total, state, ctx):
                passed.append("settle")
                return total, {"kept": carry - sent}

        class Noted(type(grace_tf.get("fp16"))):
            def rounds(self, xs, states, ctx):
                passed.append("compress")
                replies = yield Sum([self.compress(x, ctx.lane(i)) for i, x in enumerate(xs)])
                passed.append("aggregate")
                totals = [self.decompress(r, ctx.lane(i)) for i, r in enumerate(replies)]
                return totals, totals, list(states)

        class Noter(Loopback):
            def _sum(self, buffers, key):
                passed.append("sum")
                return super()._sum(buffers, key)

        for size in 2, 1:
            passed.clear()
            workers = Workers(size, Noted(), memory=Noting(), transport=Noter(size))
            workers.step([[tf.ones([4])]] * size)
            carried = ["sum"] if size > 1 else []  # alone nothing is carried
            sent, received = ["compensate", "compress"], ["aggregate", "settle"]
            self.assertEqual(passed, [*size * sent, *carried, *size * received])

    def test_the_aggregate_is_the_mean_of_what_the_workers_sent(self):
        mine = grads(3)
        for w, results in enumerate(Workers(3, "topk:ratio=1.0")(mine)):
            for i, got in enumerate(results):
                self.assertAllClose(got, np.mean([g[i] for g in mine], 0), msg=w)

    def test_a_consensus_is_never_divided(self):
        results = Workers(3, "signsgd")([[np.array([1.0, -2.0, 5.0], np.float32)]] * 3)
        self.assertAllEqual(results[0][0], [1, -1, 1])
        summed = Workers(3, "signsgd", summed=True)([[np.array([1.0, -2.0, 5.0], np.float32)]] * 3)
        self.assertAllEqual(summed[0][0], [1, -1, 1])

    def test_one_worker_still_runs_the_codec_and_its_memory(self):
        workers = Workers(1, "topk:ratio=0.5")
        self.assertAllEqual(workers([[np.array([3.0, 1.0], np.float32)]])[0][0], [3, 0])
        self.assertAllEqual(workers([[np.array([0.0, 1.0], np.float32)]])[0][0], [0, 2])


class MeanTest(tf.test.TestCase):
    def test_a_summed_step_of_divided_gradients_is_the_mean_of_whole_ones(self):
        # A power of two divides without rounding, so nothing may differ.
        for spec in (
            "qsgd",
            "topk:ratio=0.1",
            "threshold:threshold=1.0",
            "randomk:ratio=0.2",
            "fp16",
            "powersgd:rank=1",
        ):
            mean, summed = Workers(4, spec), Workers(4, spec, summed=True)
            for step in range(2):
                mine = grads(4, 100 * step)
                divided = [[g / np.float32(4) for g in worker] for worker in mine]
                for a, b in zip(mean(mine)[1], summed(divided)[1]):
                    np.testing.assert_array_equal(a, b, err_msg=spec)
            self.assertTrue(arrays_equal(mean.state.arrays(), summed.state.arrays()))

    def test_dense_lanes_are_averaged_and_keep_their_dtype(self):
        for dtype in (np.float16, np.float32, np.float64):
            mine = grads(2, dtype=dtype)
            got = Workers(2, "topk", min_elements=10**6)(mine)[1]
            for i, total in enumerate(got):
                self.assertEqual(total.dtype, dtype)
                self.assertAllClose(total, (mine[0][i] + mine[1][i]) / 2)

    def test_compressed_lanes_give_back_the_dtype_they_got(self):
        for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
            mine = [[tf.cast(g, dtype) for g in worker] for worker in grads(2)]
            for spec in ("qsgd:bits=8", "topk:ratio=0.5", "powersgd", "signsgd"):
                got = Workers(2, spec).step(mine)[0]
                self.assertEqual(
                    [(t.dtype, t.shape) for t in got], [(dtype, tf.TensorShape(s)) for s in SHAPES]
                )

    def test_integers_travel_exactly(self):
        big = np.array([2**29, -7], np.int32)
        workers = Workers(2, "qsgd")
        mine = [[big, g[1]] for g in grads(2)]
        self.assertAllEqual(workers(mine)[0][0], big)

    def test_float64_lanes_without_compression_stay_float64(self):
        x = np.array([1.0 + 2.0**-40])
        self.assertAllEqual(Workers(2, "none")([[x], [x]])[0][0], x)


class MergedTest(tf.test.TestCase):
    def test_the_model_as_one_tensor_keeps_one_residual_a_variable(self):
        workers = Workers(2, "topk:ratio=0.1", granularity="model")
        mine = grads(2)
        got = workers(mine)
        arrays = workers.state.arrays()
        for i, shape in enumerate(SHAPES):
            residual = arrays[f"{i}/memory/residual"]
            self.assertEqual(residual.shape, (2, *shape))
            total = 2 * got[0][i].numpy().astype(np.float64)
            self.assertAllClose(
                residual.sum(0) + total, mine[0][i] + mine[1][i].astype(np.float64), atol=1e-6
            )


class RefusedStepTest(tf.test.TestCase):
    SPECS = ("topk:ratio=0.1", "qsgd", "powersgd:rank=1")  # the conformance suite tries all

    def test_one_bad_worker_of_three_stops_all(self):
        for spec in self.SPECS:
            workers, undisturbed = Workers(3, spec), Workers(3, spec)
            workers(grads(3))
            undisturbed(grads(3))
            before = workers.state.arrays()
            mine = grads(3, 100)
            mine[2][1][7] = np.nan
            for results in workers(mine):
                self.assertTrue(all(not np.isfinite(t).any() for t in results), spec)
            self.assertTrue(arrays_equal(workers.state.arrays(), before), spec)
            self.assertEqual(workers.state.step, 1)
            again, expected = workers(grads(3, 200)), undisturbed(grads(3, 200))
            for a, b in zip(again[0], expected[0]):
                self.assertAllEqual(a, b)
            self.assertEqual(workers.state.step, 2)

    def test_a_bad_value_that_no_payload_carries_stops_all(self):
        for spec in ("randomk:ratio=0.01", "signsgd"):
            workers = Workers(2, spec)
            mine = grads(2)
            mine[1][0][:] = np.where(np.arange(30) % 2, np.nan, mine[1][0])
            for results in workers(mine):
                self.assertTrue(all(np.isnan(t).all() for t in results), spec)
            self.assertEqual(workers.state.step, 0)

    def test_a_bad_value_in_one_bucket_stops_all_buckets(self):
        workers = Workers(2, "topk:ratio=0.1", bucket_bytes=1)
        mine = grads(2)
        mine[0][0][0, 0] = np.nan
        for results in workers(mine):
            self.assertTrue(all(np.isnan(t).all() for t in results))
        self.assertFalse(
            any(rows.any() for name, rows in workers.state.arrays().items() if "memory" in name)
        )

    def test_a_bad_value_in_a_dense_lane_counts_too(self):
        workers = Workers(2, {"0": "topk:ratio=0.1", ".*": "none"})
        mine = grads(2)
        mine[1][1][0] = np.inf
        self.assertTrue(np.isnan(workers(mine)[0][0]).all())
        self.assertEqual(workers.state.step, 0)

    def test_a_sum_that_overflows_is_refused(self):
        workers = Workers(2, "fp16", memory="residual")
        for mine in workers([[np.array([40000.0, 1.0], np.float32)]] * 2):
            self.assertFalse(np.isfinite(mine[0]).any())
        self.assertEqual(workers.state.step, 0)
        self.assertFalse(workers.state.arrays()["0/memory/residual"].any())

    def test_gradient_and_residual_that_overflow_together_are_refused(self):
        workers = Workers(1, "topk:ratio=0.5")
        huge = np.array([3e38, 2e38], np.float32)
        workers([[huge]])
        before = workers.state.arrays()
        self.assertFalse(np.isfinite(workers([[huge]])[0][0]).any())
        self.assertTrue(arrays_equal(workers.state.arrays(), before))

    def test_integer_gradients_survive_a_refused_step(self):
        workers = Workers(2, "topk")
        integer, bad = np.array([1, 2], np.int32), np.array([np.nan] * 40, np.float32)
        got = workers([[integer, bad], [integer, bad]])[0]
        self.assertAllEqual(got[0], integer)
        self.assertTrue(np.isnan(got[1]).all())


class RandomnessTest(tf.test.TestCase):
    def test_refused_steps_draw_again_what_they_drew(self):
        workers = Workers(1, "qsgd:bits=2")
        x = cases.normal((64,))
        workers([[np.full([64], np.nan, np.float32)]])
        first = workers([[x]])[0][0]
        self.assertAllEqual(first, Workers(1, "qsgd:bits=2")([[x]])[0][0])
        self.assertNotAllEqual(first, workers([[x]])[0][0])

    def test_the_seed_decides(self):
        x = [[cases.normal((64,))]]
        same = [Workers(1, "qsgd:bits=2", seed=s)(x)[0][0].numpy() for s in (1, 1, 2)]
        self.assertAllEqual(same[0], same[1])
        self.assertNotAllEqual(same[0], same[2])
