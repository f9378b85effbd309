"""Elements drawn with probabilities that suit their size."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.cli.bench import step as bench_step
from grace_tf.core.context import Context
from grace_tf.ops import index_sets
from grace_tf.testing import Workers, cases

DRAWS = 1000


def probabilities(x, k):
    """min(1, λ|x|) with the sum k, by bisection."""
    size, low, high = np.abs(x.astype(np.float64)), 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, middle * size).sum() < k else (low, middle)
    return np.minimum(1, high * size)


def drawer(xs, ratio, variables):
    """A function of the step: what is sent of each x, and how often it has an index."""
    compressor = grace_tf.get("wangni", ratio=ratio)
    specs = tuple(tf.TensorSpec(x.shape, tf.float32) for x in xs)
    ks = [compressor.count(spec) for spec in specs]

    @tf.function(autograph=False)
    def draw(step):
        context = Context(specs, variables, step, 3, 1, 0)
        payload = compressor.encode([tf.constant(x) for x in xs], None, 1.0, context).payload
        lengths = context.lengths
        places = index_sets.unpack_list(payload["indices"][None], lengths, ks)[0]
        return compressor.decompress_list(payload, context.public()), tf.split(places, ks)

    return lambda step: draw(tf.constant(step, tf.int64))


class WangniTest(tf.test.TestCase):
    def test_probabilities_are_exact_and_the_number_is_always_the_same(self):
        scales = np.random.default_rng(1).uniform(-1, 0.5, 60)
        xs = [cases.normal((37,)), (cases.normal((60,)) * 10.0**scales).astype(np.float32)]
        draw, ks = drawer(xs, 0.2, (0, 5)), (7, 12)
        counts, sums = ([np.zeros(x.shape) for x in xs] for _ in range(2))
        for step in range(DRAWS):
            sent, places = draw(step)
            for i, x in enumerate(xs):
                found = np.unique(places[i])
                self.assertEqual(len(found), ks[i])
                self.assertLess(found[-1], len(x))
                counts[i][found] += 1
                sums[i] += sent[i].numpy()
        for x, k, count, total in zip(xs, ks, counts, sums):
            p = probabilities(x, k)
            off = (count / DRAWS - p) / np.sqrt(p * (1 - p) / DRAWS + 1e-9)
            self.assertLess(np.abs(off).max(), 4.5)
            # Where it is sent, it is x / p: so the mean is x wherever the rate is p.
            # p is rounded up to 2^-24 of the largest, and so exact to 2^-10 of what is drawn here.
            drawn = count > 0
            self.assertAllClose((total / np.maximum(count, 1))[drawn], (x / p)[drawn], rtol=1e-3)

    def test_the_largest_are_always_sent_as_they_are(self):
        x = np.where(np.arange(100) % 25 == 0, 50.0, cases.normal((100,))).astype(np.float32)
        draw = drawer([x], 0.1, (0,))
        for step in range(20):
            (sent,), _ = draw(step)
            self.assertAllEqual(sent.numpy()[::25], x[::25])
            self.assertEqual(np.count_nonzero(sent), 10)

    def test_fewer_than_fit_are_all_sent(self):
        for some in ([], [3], [3, 5, 70]):
            x = np.zeros(100, np.float32)
            x[some] = [7, -1e-8, 1e-20][: len(some)]
            (sent,), _ = drawer([x], 0.1, (0,))(1)
            self.assertAllEqual(sent, x)

    def test_a_variable_of_tiny_elements_is_drawn_without_overflow(self):
        x = cases.normal((100,))
        for exponent in (-125, -115, -108, -103, -100):
            tiny = x * np.float32(2.0**exponent)
            sent, places = drawer([tiny, x], 0.1, (0, 1))(1)
            self.assertLen(np.unique(places[0]), 10)
            self.assertAllInSet((sent[0].numpy() != 0).sum(), [10])
            self.assertLen(np.unique(places[1]), 10)

    def test_equal_elements_have_equal_chances(self):
        draw = drawer([np.ones(64, np.float32)], 0.25, (2,))
        counts = sum((draw(step)[0][0].numpy() != 0).astype(int) for step in range(800))
        self.assertLess(np.abs(counts - 200).max(), 4.5 * np.sqrt(800 * 0.25 * 0.75))

    def test_neighbours_and_variables_do_not_share_a_draw(self):
        x = cases.away_from_zero((200,))
        draw = drawer([x, x], 0.2, (0, 1))
        same = [np.mean((a.numpy() != 0) == (b.numpy() != 0)) for (a, b), _ in map(draw, range(9))]
        self.assertLess(np.mean(same), 0.9)

    def test_what_is_not_finite_stops_the_step(self):
        for wrong in (np.nan, np.inf):
            x = cases.normal((300,))
            x[7] = wrong
            workers = Workers(2, "wangni")
            got = workers([[x], [cases.normal((300,), 1)]])
            self.assertTrue(np.isnan(got[0][0]).all() and np.isnan(got[1][0]).all())

    def test_the_bytes_on_the_wire(self):
        spec = tf.TensorSpec([10**6], tf.float32)
        topk = grace_tf.get("topk:ratio=0.05")
        self.assertEqual(grace_tf.get("wangni").nbytes(spec), topk.nbytes(spec))


def test_a_step_has_at_most_eight_nodes_for_each_variable():
    def nodes(count):
        grads = [tf.zeros((40 + i, 50)) for i in range(count)]
        return count * bench_step.traced("wangni", grads).nodes

    assert (nodes(30) - nodes(10)) / 20 <= 8
