"""Tables of hashed sums that find the largest elements of the sum."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers, cases

SIZE, N = 3, 4000


def spiked(worker, spikes=20):
    """Small noise and, on the same elements of all workers, values that are larger than it."""
    x = 0.01 * cases.normal((N,), worker)
    places = np.random.default_rng(5).permutation(N)[:spikes]
    x[places] += np.linspace(1, 3, spikes, dtype=np.float32)
    return x, places


class CountSketchTest(tf.test.TestCase):
    def test_what_stands_out_of_the_sum_arrives_exactly(self):
        grads = [[spiked(w)[0]] for w in range(SIZE)]
        places = spiked(0)[1]
        workers = Workers(SIZE, "countsketch:ratio=0.005")
        got = workers(grads)[2][0].numpy()
        exact = np.sum([g[0].astype(np.float64) for g in grads], 0) / SIZE
        self.assertAllClose(got[places], exact[places], rtol=1e-5)
        self.assertEqual(np.count_nonzero(got), 20)

    def test_parts_that_cancel_are_not_sent(self):
        # topk would send the largest of each worker, of which nothing is left in the sum.
        x = np.zeros((2, N), np.float32)
        x[0, 7], x[1, 7] = 50, -50
        x[:, 9] = 1
        got = Workers(2, "countsketch:ratio=0.0003")([[x[0]], [x[1]]])[0][0].numpy()
        self.assertAllEqual(np.flatnonzero(got), [9])
        self.assertEqual(got[9], 1)

    def test_the_residual_keeps_all_that_was_not_sent(self):
        grads = [[spiked(w)[0]] for w in range(SIZE)]
        workers = Workers(SIZE, "countsketch:ratio=0.005")
        got = workers(grads)[0][0].numpy()
        kept = workers.state.arrays()["0/memory/residual"]
        for mine, residual in zip(grads, kept):
            self.assertAllEqual(residual, np.where(got != 0, 0, mine[0]))

    def test_a_cell_is_the_sum_of_its_elements_times_their_signs(self):
        compressor = grace_tf.get("countsketch:ratio=0.01,rows=3,columns=2.0")
        spec = tf.TensorSpec([300], tf.float32)
        ctx = Context((spec,), (0,), 0, 0, 1, 0)
        x = cases.normal((300,))
        rounds = compressor.rounds([tf.constant(x)], [{}], ctx)
        table = next(rounds).payloads[0]["table"].numpy().reshape(3, 6)
        places, signs = (each.numpy() for each in compressor._hashes(ctx))
        self.assertAllEqual(np.unique(signs), [-1, 1])
        for row in range(3):
            own = places[row] - 6 * row
            self.assertAllEqual(np.unique(own), np.arange(6))
            wanted = [np.sum((signs[row] * x)[own == cell]) for cell in range(6)]
            self.assertAllClose(table[row], wanted, atol=1e-4)
        self.assertGreater(np.abs(np.corrcoef(signs)[0, 1:]).max(), 0)
        self.assertLess(np.abs(np.corrcoef(signs)[0, 1:]).max(), 0.3)  # rows are independent

    def test_the_bytes_are_those_of_any_number_of_workers(self):
        spec = tf.TensorSpec([N], tf.float32)
        compressor = grace_tf.get("countsketch")
        self.assertEqual(compressor.nbytes(spec), 4 * 40 * (5 * 5 + 4))
        for size in (2, 5):
            workers = Workers(size, compressor)
            workers([[cases.normal((N,), w)] for w in range(size)])
            self.assertEqual(workers.bytes_per_step, compressor.nbytes(spec) + 4)
            self.assertEqual({h.kind for h in workers.handed}, {"sum"})
        self.assertFalse(grace_tf.get("countsketch:ratio=0.04").wants(spec))

    def test_the_shares_of_the_largest_hundredth_that_it_finds(self):
        draw, n, k = np.random.default_rng(0), 65_536, 655
        workers = Workers(1, "countsketch", memory="none")
        for wanted, make in (
            (0.15, lambda: draw.standard_normal(n)),
            (0.30, lambda: draw.laplace(size=n)),
            (0.48, lambda: draw.standard_t(3, n)),
        ):
            shares = []
            for _ in range(5):
                x = make().astype(np.float32)
                got = workers([[x]])[0][0].numpy()
                self.assertEqual(np.count_nonzero(got), k)
                shares.append(np.count_nonzero(got[np.argsort(-np.abs(x))[:k]]) / k)
            self.assertAllClose(np.mean(shares), wanted, atol=0.03)

    def test_what_it_cannot_do_is_refused(self):
        for wrong, words in (
            ("rows=4", "rows is odd, not 4"),
            ("ratio=0", "ratio"),
            ("columns=0.0", "columns is above 0"),
            ("candidates=0", "candidates"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                grace_tf.get(f"countsketch:{wrong}")
