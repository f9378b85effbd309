"""A random subset."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers


def indices(n, ratio, step=0, variable=0, worker=None, seed=0):
    context = Context((tf.TensorSpec([n], tf.float32),), (variable,), step, seed, 2, worker)
    return grace_tf.get("randomk", ratio=ratio)._indices(context).numpy()


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

    def test_global_random_state_is_left_alone(self):
        # GRACE set the graph's seed.
        tf.random.set_seed(1)
        first = tf.random.uniform([4])
        tf.random.set_seed(1)
        Workers(1, "randomk:ratio=0.2")([[np.ones([10], np.float32)]])
        self.assertAllEqual(tf.random.uniform([4]), first)

    def test_only_values_travel(self):
        self.assertEqual(grace_tf.get("randomk").nbytes(tf.TensorSpec([10**6], tf.float32)), 40_000)
