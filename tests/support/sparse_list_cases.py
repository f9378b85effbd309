"""Lists of arrays in which something may go wrong, and a comparison with reference operations."""

import functools
import itertools
import math

import numpy as np
import tensorflow as tf
from ops_cases import SameBits, gradient, isas

from grace_tf import ops
from grace_tf.ops import selection
from grace_tf.ops.backend import native


def list_key(tensors):
    variables = tuple(2 * i + 1 for i in range(tensors))
    return selection.ListKey(seed=7, worker=3, step=5, variables=variables, draw=1)


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


def rare(n):
    """Mostly zeros: of odd n a little more than 1 % are not, of even n a little less."""
    x = np.zeros(n, np.float32)
    x[:: 97 if n % 2 else 103] = 1.0
    return x * gradient(n)


def sized(*shapes, make=gradient):
    return [make(math.prod(shape)).reshape(shape).copy() for shape in shapes]


def lists():
    """Lists of arrays, by name: what may go wrong in a list."""
    yield "short", sized(*[(n,) for n in range(1, 131)])
    yield "shapes", sized((), (4095,), (64, 64), (17, 241), (), (1, 1), (3, 5, 7, 11), ())
    yield "large", sized((5,), (2**16 + 1,), (300007,), (2, 3), (131072,))
    yield "awkward", sized((70,), (4097,), (), (2**16 + 1,), (1000, 100), make=awkward)
    yield "clustered", sized((100003,), (200, 1000), (9000,), make=clustered)
    yield "rare", sized((5000,), (100_002,), (300_007,), make=rare)
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


def streams(key):
    return [ops.Key(key.seed, key.worker, key.step, v, key.draw) for v in key.variables]
