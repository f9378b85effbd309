"""The largest elements, found by a sampled threshold."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf import ops
from grace_tf.core.context import Context
from grace_tf.core.registry import get_memory, resolve
from grace_tf.line.settings import settings
from grace_tf.memories.dgc import MomentumCorrection
from grace_tf.ops import index_sets
from grace_tf.testing import Workers, cases


def payload(spec, x, step=0):
    context = Context((tf.TensorSpec(x.shape, tf.float32),), (0,), step, 0, 1, 0)
    sent = {k: v.numpy() for k, v in grace_tf.get(spec).compress(tf.constant(x), context).items()}
    (count,), most = sent["count"], len(sent["values"])
    indices = index_sets.unpack_list(sent["indices"][None], [x.size], [most]).numpy()
    return sent["values"][:count], indices[0, :count]


def by_numpy(x, k, stride, size, rank, key):
    """(values, indices), written from the page."""
    start = (int(np.uint32(ops.random_words(1, key).numpy()[0])) * stride) >> 32
    threshold = np.sort(np.abs(x[start::stride][:size]))[-rank]
    for _ in range(10):
        if np.sum(np.abs(x) >= threshold) >= 0.8 * k:
            break
        threshold = threshold * np.float32(0.8)
    passing = np.flatnonzero(np.abs(x) >= threshold)
    chosen = np.sort(passing[np.argsort(-np.abs(x[passing]), kind="stable")[:k]])
    return x[chosen], chosen


class DGCTest(tf.test.TestCase):
    def test_it_is_what_its_page_says(self):
        counts = []
        for step in range(20):
            x = cases.normal((30_011,), step) ** 3
            key = ops.Key(0, 0, step, 0, 0)
            # k = 300; 1 % are 301 elements, at a distance of 99; ⌈303·300/30011⌉ = 4.
            wanted = by_numpy(x, 300, 99, 303, 4, key)
            got = payload("dgc:ratio=0.01", x, step)
            self.assertAllEqual(got[1], wanted[1])
            self.assertAllEqual(got[0], wanted[0])
            counts.append(len(got[0]))
        self.assertBetween(min(counts), 240, 299)
        self.assertEqual(max(counts), 300)

    def test_a_small_sample_is_none(self):
        """Two elements of the k largest are expected in a sample; else all are looked at."""
        x = cases.normal((50, 40))
        values, indices = payload("dgc", x)
        self.assertAllEqual(indices, np.sort(np.argsort(-np.abs(x.ravel()))[:2]))
        self.assertAllEqual(values, x.ravel()[indices])
        values, indices = payload("dgc:ratio=0.01,sample=1.0", x)
        self.assertAllEqual(indices, np.sort(np.argsort(-np.abs(x.ravel()))[:20]))

    def test_a_known_vector(self):
        x = np.array([[5, -1, 0, 3], [-4, 2, 0, 0]], np.float32)
        values, indices = payload("dgc:ratio=0.5", x)
        self.assertAllEqual(values, [5, 3, -4, 2])
        self.assertAllEqual(indices, [0, 3, 4, 5])
        self.assertAllEqual(payload("dgc:ratio=0.9", x)[1], [0, 1, 3, 4, 5])  # zeros never go

    def test_the_largest_go_and_not_the_first(self):
        # DGC's code cut what passed beyond k by position; here the largest are the last.
        x = np.linspace(1, 2, 40_000, dtype=np.float32)
        for step in range(8):
            values, indices = payload("dgc:ratio=0.01", x, step)
            self.assertEqual(values[-1], 2)
            self.assertAllEqual(indices, np.arange(40_000 - len(indices), 40_000))
            self.assertBetween(len(indices), 320, 400)

    def test_a_sample_that_misleads_does_no_harm(self):
        # All that is large lies in one place: a sample meets some hundred times less or more of it.
        x = np.full([100_000], 1e-6, np.float32)
        x[500:600] = 1.0
        for step in range(8):
            values, _ = payload("dgc:ratio=0.01", x, step)
            self.assertEqual(np.sum(values == 1), 100)
            self.assertLessEqual(len(values), 1000)
        self.assertAllEqual(payload("dgc:ratio=0.01", 0 * x)[0], [])

    def test_lowering_the_threshold_ends(self):
        # A threshold of 1 would have to fall by a million.
        x = np.full([100_000], 1e-6, np.float32)
        x[::99] = 1.0
        counts = {len(payload("dgc:ratio=0.02", x, step)[0]) for step in range(300)}
        self.assertEqual(counts, {1011, 2000})

    def test_workers_may_select_differently_many(self):
        # GRACE cut the remote payload to the length of the local one (its bug 8).
        grads = [[np.array([[5, 3, 0, 0]], np.float32)], [np.array([[0, 0, 0, 6]], np.float32)]]
        for mine in Workers(2, "dgc:ratio=0.5", memory="residual")(grads):
            self.assertAllEqual(mine[0], [[2.5, 1.5, 0, 3]])

    def test_variables_of_one_dimension_travel_dense(self):
        workers = Workers(2, "dgc:ratio=0.1", memory="residual")
        grads = [[cases.normal(shape, w) for shape in ((10, 30), (300,), ())] for w in range(2)]
        _, vector, scalar = workers(grads)[0]
        self.assertAllClose(vector, (grads[0][1] + grads[1][1]) / 2)
        self.assertAllClose(scalar, (grads[0][2] + grads[1][2]) / 2)
        kept = [name for name in workers.state.arrays() if "/memory/" in name]
        self.assertEqual(kept, ["0/memory/residual"])
        # 30 values, 6 words of indices and a count; two flags at most
        self.assertBetween(workers.bytes_per_step, 4 * 301 + 4 * 37, 4 * 301 + 4 * 37 + 8)

    def test_at_ratio_one_all_variables_travel_dense(self):
        workers = Workers(2, "dgc:ratio=1.0", memory="residual")
        grads = [[cases.normal((10, 30), w)] for w in range(2)]
        self.assertAllClose(workers(grads)[0][0], (grads[0][0] + grads[1][0]) / 2)
        self.assertLessEqual(workers.bytes_per_step, 1204)

    def test_its_memory_comes_with_it_and_neither_needs_the_other(self):
        for spec in ("dgc", "dgc:ratio=0.01", "dgc|values=fp16"):
            self.assertEqual(resolve(spec)[1], "dgc")
            self.assertEqual(settings(spec).routes[0][2], MomentumCorrection())
        # GRACE's compressor worked with its own memory only, and the other way round.
        for spec, memory in (("dgc:ratio=0.1", "residual"), ("topk:ratio=0.1", "dgc")):
            x = cases.normal((40, 30))
            (got,) = Workers(1, spec, memory=memory)([[x]])
            self.assertGreater(np.count_nonzero(got[0]), 90)
        self.assertEqual(
            settings("dgc", memory="dgc:nesterov=true").routes[0][2],
            get_memory("dgc:nesterov=true"),
        )

    def test_nothing_is_lost(self):
        for memory in ("residual", "dgc:momentum=0"):
            workers = Workers(2, "dgc:ratio=0.02", memory=memory)
            given, arrived = np.zeros((60, 50)), np.zeros((60, 50))
            for step in range(50):
                grads = [cases.normal((60, 50), 10 * step + w) for w in range(2)]
                given += sum(g.astype(np.float64) for g in grads)
                arrived += 2 * workers([[g] for g in grads])[0][0].numpy()
            leaf = "residual" if memory == "residual" else "v"
            kept = workers.state.arrays()[f"0/memory/{leaf}"].astype(np.float64)
            self.assertAllClose(given, arrived + kept.sum(0), atol=1e-4, rtol=0)

    def test_bytes(self):
        million = tf.TensorSpec([1000, 1000], tf.float32)
        self.assertEqual(grace_tf.get("dgc").nbytes(million), 5_504)
        self.assertEqual(grace_tf.get("dgc:ratio=0.01").nbytes(million), 50_708)
