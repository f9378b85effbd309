"""Decoders of lists, and what refines them, give the bits of single-tensor operations."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from ops_cases import gradient
from sparse_list_cases import ListsTest, awkward, ks_of, list_key, lists, parts, sent_of, streams

from grace_tf import ops
from grace_tf.ops import cast, selection
from grace_tf.ops.backend import native

pytestmark = [
    pytest.mark.rotated,
    pytest.mark.skipif(not native.available(), reason=native.why_not()),
]


class DecodersTest(ListsTest):
    def decoded(self, fused, totals, shapes, name, factors=(1 / 3, np.nan)):
        """`fused(factor)` is `totals()`, vectors, reshaped and times factor."""
        for factor in factors:
            scale = tf.constant(factor, tf.float32)

            def composed(scale=scale):
                scaled = [tf.reshape(t, shape) * scale for t, shape in zip(totals(), shapes)]
                return scaled, ops.all_finite(scaled)

            self.compare(lambda s=scale: fused(s), composed, f"{name}, factor {factor}")

    def entries(self, arrays, workers):
        ks = ks_of(arrays, 0.1)
        rng = np.random.default_rng(workers)
        indices = [
            [np.sort(rng.choice(x.size, k, replace=False)) for x, k in zip(arrays, ks)]
            for _ in range(workers)
        ]
        indices = tf.constant(np.array([np.concatenate(row) for row in indices]), tf.int32)
        return ks, tf.constant(awkward(workers * sum(ks)).reshape(workers, -1)), indices

    def test_scatter(self):
        for (name, arrays), workers in itertools.product(lists(), (1, 3)):
            ks, values, indices = self.entries(arrays, workers)
            shapes = [x.shape for x in arrays]
            some = np.random.default_rng(1).integers(-1, max(ks) + 2, [workers, len(ks)])
            for counts in (None, tf.constant(some, tf.int32)):

                def totals(counts=counts, ks=ks, values=values, indices=indices, shapes=shapes):
                    for i, (v, at) in enumerate(zip(parts(values, ks), parts(indices, ks))):
                        count = None if counts is None else counts[:, i]
                        yield ops.scatter_sum(v, at, count, math.prod(shapes[i]))

                self.decoded(
                    lambda f, c=counts, k=ks, v=values, i=indices, s=shapes: selection.scatter_list(
                        v, i, c, k, s, f
                    ),
                    totals,
                    shapes,
                    f"{name}, {workers} workers, counted {counts is not None}",
                )

    def test_scatter_random(self):
        for name, arrays in lists():
            ks, shapes = ks_of(arrays, 0.1), [x.shape for x in arrays]
            key, values = list_key(len(ks)), tf.constant(awkward(sum(ks)))

            def totals(ks=ks, key=key, values=values, shapes=shapes):
                for v, k, own, shape in zip(parts(values, ks), ks, streams(key), shapes):
                    n = math.prod(shape)
                    at = ops.random_indices(n, k, own)
                    yield ops.scatter_sum(v[None], at[None], None, n)

            self.decoded(
                lambda f, k=ks, key=key, v=values, s=shapes: selection.scatter_random_list(
                    v, k, s, key, f
                ),
                totals,
                shapes,
                name,
            )

    def test_uncast(self):
        every = tf.bitcast(tf.cast(tf.range(2**16), tf.uint16), tf.float16)
        shapes = [(), (5, 7), (2**16 - 37,), (1,)]
        for dtype in (tf.float16, tf.bfloat16):
            halves = tf.bitcast(every, dtype)

            def totals(halves=halves):
                return tf.split(tf.cast(halves, tf.float32), [math.prod(s) for s in shapes])

            self.decoded(
                lambda f, h=halves: cast.uncast_list(h, shapes, f),
                totals,
                shapes,
                dtype.name,
                (1.0, 1 / 3, -2.0, 1e-3, np.nan),
            )


class RefineTest(ListsTest):
    def test_refine(self):
        for name, arrays in lists():
            xs, ks = [tf.constant(x) for x in arrays], ks_of(arrays, 0.05)
            values, indices, kept, _ = selection.top_k_list(xs, xs, 1.0, ks)
            decoded = values * tf.constant(
                np.resize((1.0, 1 / 3, -2.0, 1e-3, 0.0), sum(ks)), tf.float32
            )

            def composed(values=values, indices=indices, decoded=decoded, xs=xs, ks=ks):
                at = parts(indices, ks)
                accs = [tf.reshape(x + x, [-1]) for x in xs]
                sent = sent_of(parts(decoded, ks), at, accs)
                return [tf.reshape(a - s, x.shape) for a, s, x in zip(accs, sent, xs)]

            self.compare(
                lambda k=kept, i=indices, v=values, d=decoded, ks=ks: selection.refine_list(
                    k, i, v, d, ks
                ),
                composed,
                name,
            )

    def test_what_others_read_stays_as_it_is(self):
        x = tf.constant(gradient(1000))

        def both():
            values, indices, kept, _ = selection.top_k_list([x], [x], 1.0, [10])
            return kept, selection.refine_list(kept, indices, values, 0.5 * values, [10]), values

        for call in (both, tf.function(both)):
            kept, refined, values = call()
            self.assertEqual(int(tf.math.count_nonzero(refined[0] - kept[0])), 10)
            self.assertAllClose(tf.reduce_sum(refined[0] - kept[0]), tf.reduce_sum(values) / 2)


if __name__ == "__main__":
    tf.test.main()
