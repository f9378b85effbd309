"""Whole chunks, chosen alike by all workers."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.cli.bench import step as bench_step
from grace_tf.core import registry, rounds
from grace_tf.ops.backend import native
from grace_tf.testing import Workers, cases


def of_chunks(x, chunk, chosen):
    """x in these chunks of its elements, else 0."""
    kept = np.isin(np.arange(x.size) // chunk, chosen)
    return np.where(kept, x.reshape(-1), 0).reshape(x.shape)


def norms(x, chunk):
    """The norms of the chunks of x."""
    starts = range(0, x.size, chunk)
    return [np.linalg.norm(x.reshape(-1)[i : i + chunk].astype(np.float64)) for i in starts]


class ChunkTopKTest(tf.test.TestCase):
    def test_it_sends_the_chunks_with_the_largest_sums_of_norms(self):
        for shape, chunk, k in (((40, 30), 16, 7), ((257,), 16, 1), ((100,), 25, 1), ((7,), 16, 1)):
            grads = [[cases.normal(shape, w)] for w in range(3)]
            workers = Workers(3, "chunktopk", ratio=0.1, chunk=chunk, memory="none")
            sums = np.sum([norms(x, chunk) for (x,) in grads], 0)
            chosen = np.argsort(-sums, kind="stable")[:k]
            mean = np.mean(grads, 0, dtype=np.float64)[0]
            for (got,) in workers(grads):
                self.assertAllClose(got, of_chunks(mean, chunk, chosen), rtol=1e-6, atol=1e-7)

    def test_a_last_chunk_that_is_shorter_is_sent_whole(self):
        for n in (33, 47, 48):
            x = np.where(np.arange(n) >= 32, 5.0, cases.normal((n,))).astype(np.float32)
            workers = Workers(2, "chunktopk:ratio=0.4,chunk=16")
            (got,), _ = workers([[x], [x]])
            self.assertAllEqual(got, of_chunks(x, 16, [2]))
            kept = workers.state.arrays()["0/memory/residual"]
            self.assertAllEqual(kept, [of_chunks(x, 16, [0, 1])] * 2)

    def test_bytes_do_not_grow_with_the_number_of_workers(self):
        for score in ("norm", "sketch"):
            handed = {}
            for size in (2, 4, 16, 64):
                workers = Workers(size, f"chunktopk:score={score}")
                shapes = (300, 400), (2000,)
                # Eager: a graph of 64 workers takes long to trace.
                workers.step(
                    [[tf.constant(cases.normal(s, w)) for s in shapes] for w in range(size)]
                )
                handed[size] = workers.bytes_per_step
            self.assertLessEqual(max(handed.values()), 1.01 * min(handed.values()))
            specs = [tf.TensorSpec(shape, tf.float32) for shape in ((300, 400), (2000,))]
            announced = sum(grace_tf.get(f"chunktopk:score={score}").nbytes(s) for s in specs)
            self.assertEqual(handed[64], announced + 4)  # and the flag

    def test_where_gradients_cancel_the_sketch_chooses_better(self):
        chunk, chunks, size = 32, 64, 4
        draw = np.random.default_rng(0)
        cancels = np.repeat(np.arange(chunks) % 2, chunk)  # every second chunk
        signal = draw.standard_normal(chunk * chunks) * (1 - cancels)
        noise = 3 * draw.standard_normal((size // 2, chunk * chunks)) * cancels
        grads = (signal + np.concatenate([noise, -noise])).astype(np.float32)
        mean = grads.mean(0, dtype=np.float64)
        kept = {}
        for score in ("norm", "sketch"):
            spec = f"chunktopk:ratio=0.25,chunk={chunk},score={score}"
            ((got,), *_) = Workers(size, spec, memory="none")([[g] for g in grads])
            kept[score] = 1 - np.sum((mean - got.numpy()) ** 2) / np.sum(mean**2)
        self.assertLess(kept["norm"], 0.01)
        self.assertGreater(kept["sketch"], 0.5)  # of at most one half and a bit

    def test_workers_without_anything_in_common_choose_alike(self):
        grads = [[np.float32([9, 9, 0, 0, 0, 0])], [np.float32([0, 0, 0, 0, 5, 5])]]
        workers = Workers(2, "chunktopk:ratio=0.34,chunk=2")
        self.assertAllEqual(workers(grads)[1][0], [4.5, 4.5, 0, 0, 0, 0])
        self.assertAllEqual(
            workers.state.arrays()["0/memory/residual"], [[0] * 6, [0, 0, 0, 0, 5, 5]]
        )

    def test_conservation(self):
        # All workers choose together, so each of them is alone with its gradients.
        for spec in ("chunktopk:ratio=0.1,chunk=16", "chunktopk:ratio=0.1,chunk=16,score=sketch"):
            workers = Workers(2, spec)
            given, got = np.zeros([2, 257]), np.zeros(257)
            for step in range(50):
                grads = np.stack([cases.normal((257,), 100 * w + step) for w in range(2)])
                given += grads
                got += workers([[g] for g in grads])[0][0].numpy()
            kept = workers.state.arrays()["0/memory/residual"]
            self.assertAllClose(got + kept.mean(0), given.mean(0), atol=1e-4)

    def test_variables_that_gain_nothing_travel_dense(self):
        compressor = grace_tf.get("chunktopk")
        self.assertFalse(compressor.wants(tf.TensorSpec([256], tf.float32)))
        self.assertTrue(compressor.wants(tf.TensorSpec([512], tf.float32)))

    def test_the_bytes_on_the_wire(self):
        spec = tf.TensorSpec([2560, 100], tf.float32)
        self.assertEqual(grace_tf.get("chunktopk").nbytes(spec), 4 * (1000 + 10 * 256))
        sketch = grace_tf.get("chunktopk:score=sketch,rank=4")
        self.assertEqual(sketch.nbytes(spec), 4 * (4000 + 10 * 256))

    def test_what_does_not_make_sense_is_refused(self):
        for wrong in ("ratio=0", "chunk=0", "rank=0", "score=max"):
            with self.assertRaises(ValueError):
                grace_tf.get(f"chunktopk:{wrong}")


@pytest.mark.skipif(not native.available(), reason=native.why_not())
@pytest.mark.parametrize("score", ["norm", "sketch"])
def test_a_step_has_at_most_eight_nodes_for_each_variable(score):
    spec = f"chunktopk:score={score}"
    compressor, memory = grace_tf.get(spec), registry.get_memory("residual")
    assert rounds.fused(compressor, memory, [tf.zeros([10])])

    def nodes(count):
        grads = [tf.zeros((40 + i, 50)) for i in range(count)]
        return count * bench_step.traced(spec, grads).nodes

    assert (nodes(30) - nodes(10)) / 20 <= 8
