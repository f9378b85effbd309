"""Products with a basis on either side: native, reference and NumPy agree."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from ops_cases import SameEverywhere, everywhere, gradient
from test_ops_low_rank import KINDS, SIZES, flat, ps, split

from grace_tf import ops
from grace_tf.ops import low_rank, two_sided_low_rank
from grace_tf.ops.backend import native
from grace_tf.ops.low_rank import MatrixSize
from grace_tf.ops.two_sided_low_rank import Bases, Products

pytestmark = pytest.mark.rotated

SHAPES = [(33,), (5, 7), (2, 20, 48), (4, 9), (17, 100), (600, 16)]
TRANSPOSED = [MatrixSize(s.columns, s.rows, s.rank) if s.rank else s for s in SIZES]


def qs(kind):
    return [np.resize(p, [size.columns, max(1, size.rank)]) for p, size in zip(ps(kind), SIZES)]


def factors(kind):
    """P and then Q of each matrix, flat."""
    pairs = zip(ps(kind), qs(kind), SIZES)
    return [tf.constant(np.concatenate([p.ravel(), q.ravel()])) for p, q, s in pairs if s.rank]


def basis(seed=0):
    """Bases of normal columns."""
    return two_sided_low_rank.bases([each + seed for each in factors("normal")], SIZES)


def sums_by_halves(x):
    """The sum over the first axis as the basis' are added up."""
    n = 1 << (len(x) - 1).bit_length()
    x = np.concatenate([x, np.zeros([n - len(x), *x.shape[1:]], np.float32)])
    while n > 1:
        n //= 2
        x = x[:n] + x[n:]
    return x[0]


def removed(w, basis):
    """w - A (Aᵀ w), in float32 and the order of the operations."""
    cosines = sums_by_halves(basis[:, :, np.newaxis] * w[:, np.newaxis])
    share = basis[:, :1] * cosines[:1]
    for k in range(1, basis.shape[1]):
        share = share + basis[:, k : k + 1] * cosines[k : k + 1]
    return w - share


class AlternatingTest(SameEverywhere):
    def test_bases_are_those_of_either_factor(self):
        for kind in ("normal", "denormal"):
            given = factors(kind)
            left, right = self.same_everywhere(
                functools.partial(two_sided_low_rank.bases, given, SIZES), kind
            )
            parts = zip(given, [s for s in SIZES if s.rank])
            pairs = [np.split(f.numpy(), [s.rows * s.rank]) for f, s in parts]
            self.assert_same_bits(left, low_rank.orthonormal(flat([p for p, _ in pairs]), SIZES))
            wanted = low_rank.orthonormal(flat([q for _, q in pairs]), TRANSPOSED)
            self.assert_same_bits(right, wanted)

    def test_removing_is_the_same_everywhere_and_in_numpy(self):
        for kind in KINDS:
            w = [np.clip(p, -1e30, 1e30) for p in ps(kind)]
            left = basis().left
            (rest,) = self.same_everywhere(
                functools.partial(
                    two_sided_low_rank.remove, flat(self.factors_only(w)), left, SIZES
                ),
                kind,
            )
            if kind in ("denormal", "of all sizes"):  # NumPy keeps denormals on the way
                continue
            for own, mine, a, size in zip(split(rest, 0), w, split(left, 0), SIZES):
                if size.rank:
                    self.assert_same_bits(own, removed(mine, a), f"{kind}, {size}")

    def test_a_column_that_overflows_leaves_the_next_ones_alone(self):
        sizes = [MatrixSize(9, 1, 4)]  # 9 rows are filled up to 16
        draw = np.random.default_rng(3)
        w, left = (draw.normal(size=(9, 4)).astype(np.float32) for _ in range(2))
        w[:, 0], left[:, :2] = 3e38, 1
        rest = two_sided_low_rank.remove(flat([w]), flat([left]), sizes).numpy().reshape(9, 4)
        self.assertFalse(np.isfinite(rest[:, 0]).any())
        with ops.using("reference"):
            theirs = two_sided_low_rank.remove(flat([w]), flat([left]), sizes).numpy().reshape(9, 4)
        for own in (rest, theirs):
            self.assert_same_bits(own[:, 1:], removed(w[:, 1:], left))

    @staticmethod
    def factors_only(each):
        return [x if size.rank else x[:0] for x, size in zip(each, SIZES)]

    def products(self):
        p, q = self.factors_only(ps("normal")), self.factors_only(qs("equal"))
        return Products(flat(p), flat(q), tf.constant(gradient(33)))

    def test_products_expand_to_the_same_everywhere_and_in_numpy(self):
        products, bases = self.products(), basis()
        for factor in (1.0, 0.5):
            *totals, finite = self.same_everywhere(
                functools.partial(
                    two_sided_low_rank.expand_sides, bases, products, factor, SIZES, SHAPES
                ),
                f"factor {factor}",
            )
            self.assertTrue(finite)
            each = zip(totals, *(split(f, i % 2) for i, f in enumerate([*bases, *products[:2]])))
            for (total, a, b, p, q), size, shape in zip(each, SIZES, SHAPES):
                wanted = products.dense.numpy()
                if size.rank:
                    a, b, p, q = (x.astype(np.float64) for x in (a, b, p, q))
                    wanted = (p - a @ (a.T @ p)) @ b.T + a @ q.T
                self.assertAllClose(total, factor * wanted.reshape(shape), atol=1e-4)

    def test_turns_are_the_same_everywhere(self):
        products, bases = self.products(), basis()
        whole = zip(*(split(f, i % 2) for i, f in enumerate([*products[:2], *bases])), SIZES)
        whole = [each for each in whole if each[-1].rank]
        for step in (0, 1, 2**33, 2**33 + 1):
            turned = self.same_everywhere(
                functools.partial(
                    two_sided_low_rank.turned, products, bases, tf.constant(step, tf.int64), SIZES
                ),
                f"step {step}",
            )
            for got, (p, q, a, b, size) in zip(turned, whole):
                p, q = (removed(p, a), q) if step % 2 else (p, removed(q, b))
                self.assert_same_bits(got, np.concatenate([p.ravel(), q.ravel()]), f"{size}")

    def test_products_with_gradients_are_near_those_of_numpy_and_the_same_natively(self):
        xs = [np.asarray(gradient(int(np.prod(s)) + 1)[1:]).reshape(s) for s in SHAPES]
        residuals = [0.5 * x[::-1] for x in xs]
        bases = basis()
        accs = [np.float32(0.7) * x + r for x, r in zip(xs, residuals)]
        accs = [acc.reshape(size[:2]).astype(np.float64) for acc, size in zip(accs, SIZES)]
        first = None
        for name, (products, kept, finite) in everywhere(
            lambda: two_sided_low_rank.alternate(xs, residuals, 0.7, bases, SIZES)
        ):
            self.assertTrue(finite, name)
            sides = split(bases.left, 0), split(bases.right, 1)
            mine = split(products.p, 0), split(products.q, 1)
            for acc, a, b, p, q, rest, size in zip(accs, *sides, *mine, kept, SIZES):
                rest = tf.reshape(rest, acc.shape)
                if not size.rank:
                    self.assertAllClose(products.dense, acc[:, 0], atol=1e-6)
                    self.assertAllEqual(rest, np.zeros_like(acc))
                    continue
                self.assertAllClose(p, acc @ b, atol=1e-3, msg=name)
                self.assertAllClose(q, acc.T @ a, atol=1e-3, msg=name)
                left, right = np.eye(size.rows) - a @ a.T, np.eye(size.columns) - b @ b.T
                self.assertAllClose(rest, left @ acc @ right, atol=1e-3, msg=name)
            if "reference" in name:
                continue
            first = first or [*products, *kept]
            for got, want in zip([*products, *kept], first):
                self.assert_same_bits(got, want, name)

    def test_what_is_not_finite_is_flagged(self):
        bases = basis()
        for bad in (np.nan, np.inf, -np.inf):
            for i in range(len(SIZES)):
                xs = [np.ones(shape, np.float32) for shape in SHAPES]
                xs[i].flat[-1] = bad
                for name in ("native", "reference") if native.available() else ("reference",):
                    with ops.using(name):
                        *_, finite = two_sided_low_rank.alternate(xs, None, 1.0, bases, SIZES)
                        self.assertFalse(finite, f"{name}, {bad} in {SIZES[i]}")

    def test_what_does_not_fit_is_refused(self):
        x, sizes = tf.ones([4, 5]), [MatrixSize(4, 5, 1)]
        bases, none = Bases(tf.ones([4]), tf.ones([5])), tf.zeros([0])
        products = Products(tf.ones([4]), tf.ones([5]), none)
        for call in (
            lambda: two_sided_low_rank.alternate([x], None, 1.0, Bases(*bases[::-1]), sizes),
            lambda: two_sided_low_rank.bases([tf.ones([8])], sizes),
            lambda: two_sided_low_rank.remove(tf.ones([5]), tf.ones([4]), sizes),
            lambda: two_sided_low_rank.expand_sides(
                bases, products._replace(dense=tf.ones([1])), 1.0, sizes, [[4, 5]]
            ),
            lambda: two_sided_low_rank.turned(Products(*products[1::-1], none), bases, 0, sizes),
        ):
            with self.assertRaises(ValueError):
                call()


if __name__ == "__main__":
    tf.test.main()
