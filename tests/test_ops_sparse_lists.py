"""Operations on lists give the bits of single-tensor ones and TensorFlow's arithmetic."""

import functools
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from ops_cases import SameBits, gradient

from grace_tf import ops
from grace_tf.ops import cast_lists, native, sparse_lists

pytestmark = pytest.mark.skipif(not native.available(), reason=native.why_not())

KEY = ops.Key(seed=7, worker=3, step=5, variable=2, draw=1)


def list_key(tensors):
    variables = tuple(2 * i + 1 for i in range(tensors))
    return sparse_lists.ListKey(seed=7, worker=3, step=5, variables=variables, draw=1)


def isas():
    for name in ("generic", "avx2", "avx512"):
        try:
            native.set_isa(name)
        except ValueError:
            continue
        yield name


def awkward(n):
    """Values of every kind, but NaN."""
    bits = np.random.default_rng(n).integers(0, 2**32, n, dtype=np.uint32)
    values = bits.view(np.float32).copy()
    values[~np.isfinite(values)] = np.inf
    return values


def clustered(n):
    """The largest in one place, where a sample finds too many or none of them."""
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32) * np.float32(1e-6)
    x[n // 2 : n // 2 + n // 20] *= np.float32(1e6)
    return x


def sized(*shapes, make=gradient):
    return [make(math.prod(shape)).reshape(shape).copy() for shape in shapes]


def lists():
    """Lists of arrays, by name: what may go wrong in a list."""
    yield "short", sized(*[(n,) for n in range(1, 131)])
    yield "shapes", sized((), (4095,), (64, 64), (17, 241), (), (1, 1), (3, 5, 7, 11), ())
    yield "large", sized((5,), (2**16 + 1,), (300007,), (2, 3), (131072,))
    yield "awkward", sized((70,), (4097,), (), (2**16 + 1,), (1000, 100), make=awkward)
    yield "clustered", sized((100003,), (200, 1000), (9000,), make=clustered)
    yield "equal", [np.full(n, -2.0, np.float32) for n in (1, 100, 4096, 70000, 200003)]
    yield "zeros", [np.where(gradient(n) > 0, 0.0, -0.0).astype(np.float32) for n in (9, 70001)]
    nan = sized((50,), (5000,), (100000,))
    for x in nan:
        x[3::40] = np.nan
        x[5::200] = -np.inf
    yield "nan", nan


def ks_of(xs, ratio):
    return [max(1, int(ratio * x.size)) for x in xs]


def parts(values, ks):
    return tf.split(values, ks, axis=-1)


class ListsTest(SameBits):
    def assert_same(self, got, wanted, name):
        got, wanted = tf.nest.flatten(got), tf.nest.flatten(wanted)
        self.assertLen(got, len(wanted), name)
        for i, (g, w) in enumerate(zip(got, wanted)):
            if w is None:
                self.assertIsNone(g, name)
                continue
            g, w = np.asarray(g), np.asarray(w)
            if w.dtype in (np.float32, np.float16, tf.bfloat16.as_numpy_dtype):
                # Which NaN it is depends on the order of operands.
                self.assertEqual((g != g).tobytes(), (w != w).tobytes(), f"{name}, part {i}")
                g, w = (np.where(x != x, np.ones_like(x), x) for x in (g, w))
            self.assert_same_bits(g, w, f"{name}, part {i}")

    def compare(self, fused, composed, name):
        """Both are functions without arguments; the composition is of reference operations."""
        with ops.using("reference"):
            wanted = composed()
        traced = tf.function(fused)
        for isa, threads in itertools.product(isas(), (1, 3)):
            native.set_isa(isa)
            native.set_threads(threads)
            for way, call in (("eager", fused), ("traced", traced)):
                self.assert_same(call(), wanted, f"{name} on {isa}, {threads} threads, {way}")

    def encoded(self, encode, compose, ratios=(0.01,), chosen=None):
        """`encode(xs, residuals, multiplier, ks)` is `compose(accs, ks)` over every list."""
        for (name, arrays), ratio in itertools.product(lists(), ratios):
            if chosen and name not in chosen:
                continue
            ks = ks_of(arrays, ratio)
            xs = [tf.constant(x) for x in arrays]
            flipped = [
                tf.constant(0.3 * x.ravel()[::-1].reshape(x.shape), tf.float32) for x in arrays
            ]
            for args in ((None, 1.0), (None, 0.7), (flipped, 1.0), (flipped, 3.7)):
                self.compare(
                    functools.partial(encode, xs, *args, ks),
                    functools.partial(self.composition, xs, *args, ks, compose),
                    f"{name}, ratio {ratio}, {args[1]}, {args[0] is not None}",
                )

    def composition(self, xs, residuals, multiplier, ks, compose):
        accs = xs if multiplier == 1.0 else [x * multiplier for x in xs]
        if residuals is not None:
            accs = [acc + residual for acc, residual in zip(accs, residuals)]
        payload, sent = compose([tf.reshape(acc, [-1]) for acc in accs], ks)
        kept = None
        if residuals is not None:
            kept = [acc - tf.reshape(s, acc.shape) for acc, s in zip(accs, sent)]
        return *payload, kept, ops.all_finite(accs)


def sent_of(values, indices, accs):
    return [
        ops.scatter_sum(v[None], i[None], None, acc.shape[0])
        for v, i, acc in zip(values, indices, accs)
    ]


def composed_top_k(accs, ks):
    values, indices = zip(*(ops.top_k(acc, k) for acc, k in zip(accs, ks)))
    return [tf.concat(values, 0), tf.concat(indices, 0)], sent_of(values, indices, accs)


def composed_threshold(threshold):
    def compose(accs, ks):
        values, indices, counts, sent = [], [], [], []
        for acc, m in zip(accs, ks):
            value, index = ops.top_k(acc, m)
            passes = tf.abs(value) > threshold
            count = tf.reduce_sum(tf.cast(passes, tf.int32))
            padding = [[0, m - int(count)]]
            values.append(tf.pad(value[passes], padding))
            indices.append(tf.pad(index[passes], padding))
            counts.append(count)
            sent.append(
                ops.scatter_sum(values[-1][None], indices[-1][None], count[None], acc.shape[0])
            )
        return [tf.concat(values, 0), tf.concat(indices, 0), tf.stack(counts)], sent

    return compose


def streams(key):
    return [ops.Key(key.seed, key.worker, key.step, v, key.draw) for v in key.variables]


def composed_random_k(accs, ks):
    indices = [
        ops.random_indices(acc.shape[0], k, key)
        for acc, k, key in zip(accs, ks, streams(list_key(len(ks))))
    ]
    values = [ops.gather(acc, i) for acc, i in zip(accs, indices)]
    return [tf.concat(values, 0)], sent_of(values, indices, accs)


def composed_cast(dtype):
    def compose(accs, ks):
        halves = [tf.cast(acc, dtype) for acc in accs]
        return [tf.concat(halves, 0)], [tf.cast(half, tf.float32) for half in halves]

    return compose


class EncodersTest(ListsTest):
    def test_top_k(self):
        self.encoded(sparse_lists.top_k_list, composed_top_k)

    def test_top_k_of_few_and_of_all(self):
        short = ("short", "shapes", "zeros", "nan")
        self.encoded(sparse_lists.top_k_list, composed_top_k, (0.0, 0.3, 1.0), short)

    def test_threshold(self):
        # Few, many and nearly all pass; a denormal counts as zero.
        for threshold in (1.5, 0.05, 0.0, 1e-40):
            self.encoded(
                lambda xs, rs, m, ks, t=threshold: sparse_lists.threshold_list(xs, rs, m, t, ks),
                composed_threshold(threshold),
                (0.2,),
                ("shapes", "large", "awkward", "zeros", "nan", "equal"),
            )

    def test_threshold_with_room_for_all(self):
        self.encoded(
            lambda xs, rs, m, ks: sparse_lists.threshold_list(xs, rs, m, 0.3, ks),
            composed_threshold(0.3),
            (1.0,),
            ("short", "large", "nan"),
        )

    def test_random_k(self):
        self.encoded(
            lambda xs, rs, m, ks: sparse_lists.random_k_list(xs, rs, m, ks, list_key(len(ks))),
            composed_random_k,
            (0.01, 1.0),
            ("short", "shapes", "large", "awkward", "zeros", "nan"),
        )

    def test_casts(self):
        for dtype in (tf.float16, tf.bfloat16):
            self.encoded(
                lambda xs, rs, m, ks, dtype=dtype: cast_lists.cast_list(xs, rs, m, dtype),
                composed_cast(dtype),
            )

    def test_lists_that_bypass_the_caches(self):
        xs = [tf.constant(x) for x in sized((2**21 + 5,), (3,))]
        rs = [0.5 * x for x in xs]
        ks, key = ks_of([np.empty(x.shape) for x in xs], 0.01), list_key(2)
        for fused, compose in [
            (lambda: sparse_lists.top_k_list(xs, rs, 1.0, ks), composed_top_k),
            (lambda: sparse_lists.random_k_list(xs, rs, 1.0, ks, key), composed_random_k),
            (lambda: cast_lists.cast_list(xs, rs, 1.0, tf.float16), composed_cast(tf.float16)),
        ]:
            self.compare(fused, lambda c=compose: self.composition(xs, rs, 1.0, ks, c), "long")


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
                    lambda f, c=counts, k=ks, v=values, i=indices, s=shapes: (
                        sparse_lists.scatter_list(v, i, c, k, s, f)
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
                lambda f, k=ks, key=key, v=values, s=shapes: sparse_lists.scatter_random_list(
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
                lambda f, h=halves: cast_lists.uncast_list(h, shapes, f),
                totals,
                shapes,
                dtype.name,
                (1.0, 1 / 3, -2.0, 1e-3, np.nan),
            )


class RefineTest(ListsTest):
    def test_refine(self):
        for name, arrays in lists():
            xs, ks = [tf.constant(x) for x in arrays], ks_of(arrays, 0.05)
            values, indices, kept, _ = sparse_lists.top_k_list(xs, xs, 1.0, ks)
            decoded = values * tf.constant(
                np.resize((1.0, 1 / 3, -2.0, 1e-3, 0.0), sum(ks)), tf.float32
            )

            def composed(values=values, indices=indices, decoded=decoded, xs=xs, ks=ks):
                at = parts(indices, ks)
                accs = [tf.reshape(x + x, [-1]) for x in xs]
                sent = sent_of(parts(decoded, ks), at, accs)
                return [tf.reshape(a - s, x.shape) for a, s, x in zip(accs, sent, xs)]

            self.compare(
                lambda k=kept, i=indices, v=values, d=decoded, ks=ks: sparse_lists.refine_list(
                    k, i, v, d, ks
                ),
                composed,
                name,
            )

    def test_what_others_read_stays_as_it_is(self):
        x = tf.constant(gradient(1000))

        def both():
            values, indices, kept, _ = sparse_lists.top_k_list([x], [x], 1.0, [10])
            return kept, sparse_lists.refine_list(kept, indices, values, 0.5 * values, [10]), values

        for call in (both, tf.function(both)):
            kept, refined, values = call()
            self.assertEqual(int(tf.math.count_nonzero(refined[0] - kept[0])), 10)
            self.assertAllClose(tf.reduce_sum(refined[0] - kept[0]), tf.reduce_sum(values) / 2)


class GraphTest(ListsTest):
    def test_a_list_is_one_node_whatever_its_length(self):
        def nodes(tensors):
            specs = [tf.TensorSpec([4, 5])] * tensors

            @tf.function
            def step(xs, residuals):
                ks, shapes = [3] * tensors, [(4, 5)] * tensors
                values, indices, kept, _ = sparse_lists.top_k_list(xs, residuals, 1.0, ks)
                kept = sparse_lists.refine_list(kept, indices, values, values, ks)
                factor = tf.constant(1.0)
                totals, _ = sparse_lists.scatter_list(
                    values[None], indices[None], None, ks, shapes, factor
                )
                self.assertEqual([t.shape for t in (*kept, *totals)], [(4, 5)] * 2 * tensors)
                return kept, totals

            graph = step.get_concrete_function(specs, specs).graph
            return [op for op in graph.get_operations() if op.type != "Placeholder"]

        # Beside them only the identities of what a function returns.
        few, many = nodes(2), nodes(20)
        self.assertEqual(
            len([op for op in few if op.type != "Identity"]),
            len([op for op in many if op.type != "Identity"]),
        )
        self.assertNotIn("Reshape", {op.type for op in many})

    def test_the_step_of_a_key_may_be_a_tensor(self):
        x = tf.constant(gradient(500))

        @tf.function
        def draw(step):
            key = sparse_lists.ListKey(7, 3, step, (2,), 1)
            return sparse_lists.random_k_list([x], None, 1.0, [9], key)[0]

        for step in (0, 5, 2**31 + 1):
            wanted = ops.gather(x, ops.random_indices(500, 9, KEY._replace(step=step)))
            self.assert_same_bits(draw(tf.constant(step, tf.int64)), wanted)


class RefusalsTest(ListsTest):
    def scatter(self, indices, counts=None):
        return sparse_lists.scatter_list(
            tf.ones([1, 5]),
            tf.constant([indices]),
            counts,
            [2, 3],
            [(2, 2), (7,)],
            tf.constant(1.0),
        )[0]

    def test_a_bad_index_is_named(self):
        for indices, fault in [
            ([0, 3, 1, 2, 7], "Index 7 is outside tensor 1 of the list, which has 7 elements"),
            ([0, 4, 1, 2, 3], "Index 4 is outside tensor 0 "),
            ([0, 3, -1, 2, 3], "Index -1 is outside tensor 1 "),
            ([0, 3, 5, 9, 6], "Index 9 is outside tensor 1 "),
            ([3, 0, 1, 2, 3], "tensor 0 of the list do not ascend"),
            ([0, 1, 2, 2, 3], "tensor 1 of the list do not ascend"),
        ]:
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, fault):
                self.scatter(indices)
            kept = [tf.zeros([2, 2]), tf.zeros([7])]
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, fault):
                one = tf.ones([5])
                sparse_lists.refine_list(kept, tf.constant(indices), one, one, [2, 3])
        unused = self.scatter([0, 9, 4, -1, 9], tf.constant([[1, 1]]))
        self.assertAllEqual(unused[0], [[1, 0], [0, 0]])
        self.assertAllEqual(unused[1], [0, 0, 0, 0, 1, 0, 0])

    def test_what_does_not_fit_is_refused(self):
        x, key, one = tf.zeros([4]), list_key(1), tf.constant(1.0)
        values, indices = tf.zeros([1, 2]), tf.constant([[0, 1]])
        top_k, scatter = sparse_lists.top_k_list, sparse_lists.scatter_list
        for call in [
            lambda: top_k([], None, 1.0, []),
            lambda: top_k([x], None, 1.0, [0]),
            lambda: top_k([x], None, 1.0, [5]),
            lambda: top_k([x], None, 1.0, [1, 1]),
            lambda: top_k([x], [x, x], 1.0, [1]),
            lambda: top_k([x], [tf.zeros([2, 2])], 1.0, [1]),
            lambda: top_k([tf.zeros([0])], None, 1.0, [1]),
            lambda: sparse_lists.threshold_list([x], None, 1.0, -1.0, [1]),
            lambda: sparse_lists.threshold_list([x], None, 1.0, np.nan, [1]),
            lambda: sparse_lists.random_k_list([x], None, 1.0, [1], list_key(2)),
            lambda: sparse_lists.random_k_list([x], None, 1.0, [1], key._replace(draw=256)),
            lambda: sparse_lists.scatter_random_list(x, [3], [(4,)], key, one),
            lambda: scatter(values, indices, None, [3], [(4,)], one),
            lambda: scatter(values, indices, None, [2], [(1,)], one),
            lambda: scatter(values, indices[:, :1], None, [2], [(4,)], one),
            lambda: scatter(values, indices, tf.constant([[1, 1]]), [2], [(4,)], one),
            lambda: cast_lists.uncast_list(tf.zeros([3], tf.float16), [(4,)], one),
        ]:
            with self.assertRaises(ValueError):
                call()
        for call in [
            lambda: top_k([tf.zeros([4], tf.float64)], None, 1.0, [1]),
            lambda: cast_lists.cast_list([x], None, 1.0, tf.float64),
            lambda: cast_lists.uncast_list(x, [(4,)], one),
        ]:
            with self.assertRaises(TypeError):
                call()

    def test_the_kernels_check_for_themselves(self):
        module, x, one = native._ops(), tf.zeros([4]), tf.constant(1.0)
        zero = tf.constant(0, tf.int64)
        stream = dict(seed=zero, worker=zero, step=zero, variables=[0], draw=0)
        values, indices, none = tf.zeros([1, 2]), tf.constant([[0, 1]]), tf.zeros([0, 0], tf.int32)
        sparse = dict(values=values, indices=indices, counts=none, factor=one, N=1)
        half = tf.zeros([3], tf.float16)
        calls = [
            lambda: module.grace_top_k_list(xs=[x], residuals=[x, x], multiplier=1.0, ks=[1]),
            lambda: module.grace_top_k_list(xs=[x], residuals=[x[:3]], multiplier=1.0, ks=[1]),
            lambda: module.grace_top_k_list(xs=[x], residuals=[], multiplier=1.0, ks=[5]),
            lambda: module.grace_top_k_list(xs=[x], residuals=[], multiplier=1.0, ks=[1, 1]),
            lambda: module.grace_threshold_list(
                xs=[x], residuals=[], multiplier=1.0, threshold=-1.0, capacities=[1]
            ),
            lambda: module.grace_random_k_list(
                xs=[x, x], residuals=[], multiplier=1.0, ks=[1, 1], **stream
            ),
            lambda: module.grace_random_indices(n=4, k=5, **stream),
            lambda: module.grace_scatter_random_list(
                values=x, factor=one, N=1, ks=[5], ranks=[1], dims=[5], **stream
            ),
            lambda: module.grace_scatter_list(ks=[3], ranks=[1], dims=[4], counted=False, **sparse),
            lambda: module.grace_scatter_list(ks=[2], ranks=[2], dims=[4], counted=False, **sparse),
            lambda: module.grace_scatter_list(ks=[2], ranks=[1], dims=[4], counted=True, **sparse),
            lambda: module.grace_refine_list(
                kept=[x], indices=indices[0], values=x, decoded=x, ks=[4]
            ),
            lambda: module.grace_uncast_list(halves=half, factor=one, N=1, ranks=[1], dims=[4]),
        ]
        for i, call in enumerate(calls):
            with self.assertRaises(tf.errors.InvalidArgumentError, msg=f"call {i}"):
                call()


if __name__ == "__main__":
    tf.test.main()
