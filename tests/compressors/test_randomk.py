"""A random subset."""

import random

import numpy as np
import tensorflow as tf
from sums import conserves

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers


def indices(n, ratio, step=0, variable=0, worker=None, seed=0):
    context = Context((tf.TensorSpec([n], tf.float32),), (variable,), step, seed, 2, worker)
    ones = {
        "values": tf.ones(grace_tf.get("randomk", ratio=ratio).wire(context.spec)["values"].shape)
    }
    decoded = grace_tf.get("randomk", ratio=ratio).decompress(ones, context)
    return np.flatnonzero(decoded.numpy())


class RandomKTest(tf.test.TestCase):
    def test_indices_are_unique_and_in_range(self):
        # GRACE drew with replacement, and sometimes index n.
        for n, ratio in ((10, 0.3), (257, 0.5), (33, 1.0), (1, 0.01)):
            for step in range(20):
                drawn = indices(n, ratio, step)
                self.assertLen(set(drawn), max(1, int(ratio * n)))
                self.assertTrue((drawn >= 0).all() and (drawn < n).all())

    def test_every_index_is_drawn_alike_the_first_and_the_last_too(self):
        counts = np.zeros(20)
        for step in range(600):
            counts[indices(20, 0.25, step)] += 1
        self.assertAllClose(counts, np.full(20, 150), atol=5 * np.sqrt(600 * 0.25 * 0.75), rtol=0)

    def test_all_workers_draw_alike_and_variables_do_not(self):
        first = indices(1000, 0.1)
        self.assertAllEqual(first, indices(1000, 0.1, worker=1))
        for other in (
            indices(1000, 0.1, step=1),
            indices(1000, 0.1, variable=1),
            indices(1000, 0.1, seed=1),
        ):
            self.assertNotAllEqual(first, other)

    def test_the_sum_over_workers_is_exact_on_the_subset(self):
        grads = [[np.arange(1, 101, dtype=np.float32) * (w + 1)] for w in range(2)]
        got = Workers(2, "randomk:ratio=0.2", memory="none")(grads)[0][0].numpy()
        kept = np.flatnonzero(got)
        self.assertLen(kept, 20)
        self.assertAllEqual(got[kept], 1.5 * (kept + 1))

    def test_scaled_it_is_unbiased(self):
        draws, n = 2000, 12
        x = np.linspace(-3, 3, n).astype(np.float32)
        compressor = grace_tf.get("randomk:ratio=0.25,scaled=true")

        def sent(step):
            context = Context((tf.TensorSpec([n], tf.float32),), (0,), step, 0, 1, 0)
            return compressor.decompress(compressor.compress(x, context), context.public())

        sents = tf.function(
            lambda: tf.map_fn(sent, tf.range(draws, dtype=tf.int64), fn_output_signature=tf.float32)
        )().numpy()
        self.assertAllEqual((sents != 0).sum(1), np.full(draws, 3))
        self.assertTrue(((sents == 0) | (sents == 4 * x)).all())
        # The variance of an element is x² (n/k − 1).
        error = np.abs(x) * np.sqrt(3 / draws)
        self.assertTrue((np.abs(sents.mean(0) - x) <= 4 * error).all())

    def test_scaled_it_takes_no_residual(self):
        compressor = grace_tf.get("randomk:scaled=true")
        self.assertTrue(compressor.unbiased and not compressor.nonexpansive)
        self.assertEqual(str(compressor), "randomk:scaled=true")
        with self.assertRaisesRegex(ValueError, "nonexpansive"):
            Workers(1, compressor, memory="residual")
        workers = Workers(1, compressor)
        workers([[np.ones([200], np.float32)]])
        self.assertFalse([name for name in workers.state.arrays() if "residual" in name])
        with self.assertRaisesRegex(TypeError, "scaled is true or false, not 1"):
            grace_tf.get("randomk", scaled=1)

    def test_conservation(self):
        conserves(self, "randomk:ratio=0.1")

    def test_global_random_state_is_left_alone(self):
        # GRACE set the graph's seed, to 1.
        tf.random.set_seed(5)
        first, second = tf.random.uniform([4]), tf.random.uniform([4])
        tf.random.set_seed(5)
        self.assertAllEqual(tf.random.uniform([4]), first)
        # Eager, since a trace gives the seed back when it ends.
        Workers(1, "randomk:ratio=0.2").step([[tf.ones([10])]])
        self.assertAllEqual(tf.random.uniform([4]), second)

    def test_bug_15_names_and_the_order_of_calls_draw_nothing(self):
        # GRACE's Torch code seeded with the sum of a name's letters and a count of its calls: names
        # of the same letters drew alike, and workers that called in another order differently.
        grads = [[np.ones([400], np.float32)] * 2] * 2
        together = Workers(2, "randomk:ratio=0.1", paths=["ab", "ba"])(grads)[0]
        self.assertNotAllEqual(together[0], together[1])
        apart = Workers(2, "randomk:ratio=0.1", paths=["ba", "ab"], bucket_bytes=1)(grads)
        for mine in apart:
            self.assertAllEqual(mine[0], together[0])
            self.assertAllEqual(mine[1], together[1])

    def test_bug_15_pythons_and_numpys_generators_are_left_alone(self):
        # GRACE's Torch code set the seed of the program, so that all workers drew alike from then
        # on, in dropout and augmentation too.
        random.seed(4)
        np.random.seed(4)
        before = random.getstate(), np.random.get_state()
        generator = tf.random.get_global_generator()
        state = generator.state.numpy()
        Workers(2, "randomk:ratio=0.2")([[np.ones([10], np.float32)]] * 2)
        self.assertEqual(random.getstate(), before[0])
        for now, then in zip(np.random.get_state(), before[1]):
            np.testing.assert_array_equal(now, then)
        self.assertIs(tf.random.get_global_generator(), generator)
        self.assertAllEqual(generator.state, state)

    def test_only_values_travel(self):
        self.assertEqual(grace_tf.get("randomk").nbytes(tf.TensorSpec([10**6], tf.float32)), 40_000)
