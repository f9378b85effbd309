"""Low rank by alternating power iterations."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.testing import Workers, cases

SHAPE, WORKERS = (30, 20), 3


def gradients(step, shape=SHAPE):
    return [cases.normal(shape, 10 * step + w) for w in range(WORKERS)]


def low_rank(shape, rank, seed=0):
    return cases.normal((shape[0], rank), seed) @ cases.normal((rank, shape[1]), seed + 1)


def transcribed(p, q, steps):
    """(aggregate, residuals of all workers) of each step, by the formula, in double precision."""
    errors = np.zeros((WORKERS, *SHAPE))
    for step in range(steps):
        ms = [g.astype(np.float64) + e for g, e in zip(gradients(step), errors)]
        a, b = np.linalg.qr(p)[0], np.linalg.qr(q)[0]
        left, right = np.eye(len(a)) - a @ a.T, np.eye(len(b)) - b @ b.T
        sent = np.stack([m - left @ m @ right for m in ms])
        errors = ms - sent
        p, q = sum(m @ b for m in ms), sum(m.T @ a for m in ms)
        p, q = (left @ p, q) if step % 2 else (p, right @ q)
        yield sent.mean(0), errors


class ACPSGDTest(tf.test.TestCase):
    def state(self, workers):
        return workers.state.arrays()["0/compressor/factors"]

    def test_the_formula(self):
        for rank in (2, 6):
            workers = Workers(WORKERS, f"acpsgd:rank={rank}", seed=4)
            workers.prepare([tf.zeros(SHAPE)])
            p, q = np.split(self.state(workers)[0].reshape(-1, rank // 2), [SHAPE[0]])
            for step, (wanted, errors) in enumerate(transcribed(p, q, 6)):
                got = workers([[g] for g in gradients(step)])[0][0]
                self.assertAllClose(got, wanted, atol=1e-4, msg=f"rank {rank}, step {step}")
                residuals = workers.state.arrays()["0/memory/residual"]
                self.assertAllClose(residuals, errors, atol=2e-4)

    def test_every_step_sends_the_same_in_one_collective(self):
        workers = Workers(WORKERS, "acpsgd:rank=4")
        shapes = (300, 20), (7,), (3, 3, 8, 16)
        for step in range(4):
            workers.step(
                [
                    [tf.constant(g[w]) for g in (gradients(step, s) for s in shapes)]
                    for w in range(3)
                ]
            )
            (handed,) = workers.handed
            self.assertEqual(handed.elements, 2 * (300 + 20) + 7 + 2 * (72 + 16) + 1)
        specs = [tf.TensorSpec(s, tf.float32) for s in shapes]
        announced = grace_tf.get("acpsgd:rank=4").group_nbytes(specs)
        self.assertEqual(workers.bytes_per_step, announced + 4)

    def test_bytes_of_a_million_elements(self):
        spec = tf.TensorSpec([1000, 1000], tf.float32)
        acpsgd, powersgd = (grace_tf.get(f"{name}:rank=4") for name in ("acpsgd", "powersgd"))
        self.assertEqual(acpsgd.nbytes(spec), 16_000)
        self.assertEqual(powersgd.nbytes(spec), 32_000)

    def test_a_matrix_of_that_rank_comes_back_on_the_third_step(self):
        for shape in ((60, 40), (20, 90)):
            x = low_rank(shape, 4)
            workers = Workers(1, "acpsgd:rank=4", memory="none")
            errors = [np.abs(workers([[x]])[0][0] - x).max() for _ in range(5)]
            self.assertGreater(errors[0], 1)
            self.assertLess(max(errors[2:]), 1e-3)

    def test_it_comes_near_the_best_of_that_rank(self):
        x = low_rank((60, 40), 6) + 0.1 * cases.normal((60, 40), 9)
        workers = Workers(1, "acpsgd:rank=4", memory="none")
        errors = [np.linalg.norm(workers([[x]])[0][0] - x) for _ in range(20)]
        best = np.sqrt(np.sum(np.linalg.svd(x, compute_uv=False)[4:] ** 2))
        self.assertLess(errors[-1], 1.02 * best)
        self.assertGreater(errors[0], 1.2 * best)

    def test_what_was_received_is_the_next_start(self):
        workers = Workers(WORKERS, "acpsgd:rank=2")
        starts = []
        for step in range(3):
            workers([[g] for g in gradients(step)])
            starts.append(self.state(workers))
            self.assertAllEqual(starts[-1][0], starts[-1][2])
        self.assertNotAllEqual(starts[0], starts[1])

    def test_a_refused_step_does_not_change_whose_turn_it_is(self):
        def run(*steps):
            workers = Workers(WORKERS, "acpsgd:rank=2")
            for step in steps:
                grads = gradients(abs(step))
                grads[1][3, 4] = np.nan if step < 0 else grads[1][3, 4]
                got = workers([[g] for g in grads])
            return got[0][0], workers.state

        wanted, state = run(0, 1, 2)
        got, refused = run(0, -5, 1, -5, -5, 2)
        self.assertAllEqual(got, wanted)
        self.assertEqual((state.step, refused.step), (3, 3))

    def test_it_goes_on_from_saved_state(self):
        whole = Workers(WORKERS, "acpsgd:rank=2")
        for step in range(3):
            whole([[g] for g in gradients(step)])
        resumed = Workers(WORKERS, "acpsgd:rank=2", seed=9)
        resumed.state.restore(whole.state.arrays())
        for step in range(3, 5):
            grads = [[g] for g in gradients(step)]
            self.assertAllEqual(resumed(grads)[0][0], whole(grads)[0][0])

    def test_buckets_change_nothing(self):
        shapes = (30, 20), (9,), (16, 40), (50, 12)
        results = []
        for keywords in ({}, {"bucket_bytes": 1}, {"bucket_bytes": 3000}):
            workers = Workers(WORKERS, "acpsgd:rank=2", **keywords)
            for step in range(3):
                grads = [gradients(step, s) for s in shapes]
                got = workers([[g[w] for g in grads] for w in range(WORKERS)])
            results.append(got[0])
        for other in results[1:]:
            for a, b in zip(results[0], other):
                self.assertAllEqual(a, b)

    def test_variables_merged_to_a_vector_travel_dense(self):
        workers = Workers(2, "acpsgd", granularity="model")
        grads = [[cases.normal(s, 10 * w) for s in ((30, 20), (9,))] for w in range(2)]
        for got, a, b in zip(workers(grads)[0], *grads):
            self.assertAllEqual(got, (a + b) / 2)

    def test_odd_ranks_are_refused(self):
        for rank in (3, 1, 0):
            with self.assertRaisesRegex(ValueError, "acpsgd: rank is"):
                grace_tf.get(f"acpsgd:rank={rank}")
