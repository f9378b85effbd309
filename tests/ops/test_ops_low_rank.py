"""The operations of low rank: native, reference and NumPy agree, and bases are orthonormal."""

import functools

import numpy as np
import numpy_ops
import pytest
import tensorflow as tf
from ops_cases import SameEverywhere, everywhere, gradient

from grace_tf import ops
from grace_tf.ops import low_rank
from grace_tf.ops.backend import native
from grace_tf.ops.low_rank import MatrixSize

pytestmark = pytest.mark.rotated

needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())

SIZES = [
    MatrixSize(*size)
    for size in ((33, 1, 0), (5, 7, 1), (40, 48, 4), (4, 9, 4), (17, 100, 3), (600, 16, 4))
]
SHAPES = [(33,), (5, 7), (2, 20, 48), (4, 9), (17, 100), (600, 16)]


def ps(kind):
    """A P for each matrix, normal or of a kind that strains the basis; float32."""
    rng = np.random.default_rng(5)
    each = []
    for rows, _, rank in SIZES:
        p = rng.standard_normal((rows, rank))
        if rank:
            p = {
                "normal": p,
                "zero": 0 * p,
                "equal": p[:, :1] + 0 * p,
                "nearly equal": p[:, :1] + 1e-6 * p,
                "one row": p * (np.arange(rows) == 2)[:, np.newaxis],
                "huge": np.clip(p, -2, 2) * 1.7e38,
                "denormal": 1e-40 * p,
                "of all sizes": p * 2.0 ** rng.integers(-100, 100, p.shape),
            }[kind]
        each.append(p.astype(np.float32))
    return each


KINDS = ("normal", "zero", "equal", "nearly equal", "one row", "huge", "denormal", "of all sizes")


def flat(each):
    return tf.constant(np.concatenate([np.reshape(x, [-1]) for x in each]).astype(np.float32))


def split(joined, axis):
    ends = np.cumsum([size[axis] * size.rank for size in SIZES])[:-1]
    parts = np.split(np.asarray(joined), ends)
    return [part.reshape(-1, max(1, size.rank)) for part, size in zip(parts, SIZES)]


class LowRankTest(SameEverywhere):
    def test_the_basis_is_orthonormal_and_the_same_everywhere(self):
        for kind in KINDS:
            given = flat(ps(kind))
            (basis,) = self.same_everywhere(
                functools.partial(low_rank.orthonormal, given, SIZES), kind
            )
            for own, size in zip(split(basis, 0), SIZES):
                if size.rank:
                    gram = own.astype(np.float64).T @ own
                    self.assertAllClose(gram, np.eye(size.rank), atol=1e-5, msg=f"{kind}, {size}")

    def test_the_basis_spans_what_it_is_given(self):
        for kind in ("normal", "equal", "huge"):
            given = ps(kind)
            for own, p, size in zip(
                split(low_rank.orthonormal(flat(given), SIZES), 0), given, SIZES
            ):
                if size.rank:
                    p = p.astype(np.float64)
                    self.assertAllClose(
                        own @ (own.T @ p) / np.abs(p).max(), p / np.abs(p).max(), atol=1e-5
                    )

    def test_the_basis_is_that_of_numpy(self):
        for kind in ("normal", "zero", "equal", "nearly equal", "one row"):
            given = ps(kind)
            basis = low_rank.orthonormal(flat(given), SIZES)
            for own, p, size in zip(split(basis, 0), given, SIZES):
                if size.rank:
                    self.assert_same_bits(own, numpy_ops.orthonormal(p), f"{kind}, {size}")

    def test_expand_is_the_same_everywhere_and_in_numpy(self):
        p, q = ps("normal"), [gradient(size.columns * size.rank + 1)[1:] for size in SIZES]
        dense = tf.constant(gradient(33))
        q = [x.reshape(-1, max(1, size.rank)) for x, size in zip(q, SIZES)]
        for factor in (1.0, 0.5):
            expand = functools.partial(
                low_rank.expand, flat(p), flat(q), dense, factor, SIZES, SHAPES
            )
            *totals, finite = self.same_everywhere(expand, f"factor {factor}")
            self.assertTrue(finite)
            for total, mine, other, shape, size in zip(totals, p, q, SHAPES, SIZES):
                wanted = numpy_ops.product(mine, other) if size.rank else dense.numpy()
                wanted = numpy_ops.flush(wanted * np.float32(factor)).reshape(shape)
                # NumPy keeps denormals on the way.
                self.assertAllClose(total, wanted, rtol=0, atol=4e-38)

    def test_unit_columns_are_the_same_everywhere(self):
        for kind in KINDS:
            q = [np.resize(p, [size.columns, size.rank]) for p, size in zip(ps(kind), SIZES)]
            units = self.same_everywhere(
                functools.partial(low_rank.unit_columns, flat(q), SIZES), kind
            )
            for unit in units:
                largest = np.abs(unit).max(0)
                self.assertTrue(np.isin(largest, [0, 1]).all(), kind)

    def test_the_products_with_gradients_are_near_those_of_numpy_and_the_same_natively(self):
        xs = [np.asarray(gradient(int(np.prod(s)) + 1)[1:]).reshape(s) for s in SHAPES]
        residuals = [0.5 * x[::-1] for x in xs]
        qs = [p for p, size in zip(ps("normal"), SIZES) if size.rank]
        qs = [tf.constant(np.resize(q, [s.columns, s.rank])) for q, s in zip(qs, SIZES[1:])]
        basis = low_rank.orthonormal(flat(ps("normal")), SIZES)

        def both():
            p, dense, accs, finite = low_rank.project(xs, residuals, 0.7, qs, SIZES, keeps=True)
            q, kept = low_rank.reproject(accs, 1.0, basis, SIZES, keeps=True)
            q_alone, none = low_rank.reproject(xs, 0.7, basis, SIZES)
            self.assertIsNone(none)
            return p, dense, finite, q, kept, q_alone

        accs = [np.float32(0.7) * x + r for x, r in zip(xs, residuals)]
        wanted_p = [a.reshape(s[:2]) @ q.numpy() for a, s, q in zip(accs[1:], SIZES[1:], qs)]
        bases = split(basis, 0)[1:]
        wanted_q = [a.reshape(s[:2]).T @ p for a, s, p in zip(accs[1:], SIZES[1:], bases)]
        first = None
        alone = [(np.float32(0.7) * x).reshape(s[:2]).T for x, s in zip(xs[1:], SIZES[1:])]
        for name, (p, dense, finite, q, kept, q_alone) in everywhere(both):
            self.assertTrue(finite, name)
            self.assertAllClose(p, flat(wanted_p), atol=1e-3, msg=name)
            self.assertAllClose(q, flat(wanted_q), atol=1e-4, msg=name)
            self.assertAllClose(q_alone, flat([x @ p for x, p in zip(alone, bases)]), atol=1e-4)
            self.assertAllClose(dense, numpy_ops.flush(accs[0]), atol=1e-6, msg=name)
            self.assertAllEqual(kept[0], np.zeros_like(accs[0]))
            for rest, acc, own, other in zip(kept[1:], accs[1:], bases, wanted_q):
                self.assertAllClose(rest, acc - (own @ other.T).reshape(acc.shape), atol=1e-4)
            if "reference" in name:
                continue
            first = first or [p, dense, q, *kept, q_alone]
            for got, want in zip([p, dense, q, *kept, q_alone], first):
                self.assert_same_bits(got, want, name)

    def test_what_is_not_finite_is_flagged(self):
        for bad in (np.nan, np.inf, -np.inf):
            for i, size in enumerate(SIZES):
                xs = [np.ones(shape, np.float32) for shape in SHAPES]
                xs[i].flat[-1] = bad
                qs = [tf.ones([s.columns, s.rank]) for s in SIZES if s.rank]
                p, q = (
                    tf.ones([sum(s.rows * s.rank for s in SIZES)]),
                    flat([np.full(s.columns * s.rank, bad if s is size else 1.0) for s in SIZES]),
                )
                dense = tf.fill([33], np.float32(1.0 if size.rank else bad))
                for name in ("native", "reference"):
                    if name == "native" and not native.available():
                        continue
                    with ops.using(name):
                        *_, finite = low_rank.project(xs, None, 1.0, qs, SIZES)
                        self.assertFalse(finite, f"{name}, {bad} in {size}")
                        *_, finite = low_rank.expand(p, q, dense, 1.0, SIZES, SHAPES)
                        self.assertFalse(finite, f"{name}, {bad} in the total of {size}")

    def test_what_does_not_fit_is_refused(self):
        x, size = tf.ones([4, 5]), MatrixSize(4, 5, 1)
        q, none = tf.ones([5, 1]), tf.zeros([0])
        for call in (
            lambda: low_rank.project([x], None, 1.0, [q], [MatrixSize(5, 5, 1)]),
            lambda: low_rank.project([x], [x[1:]], 1.0, [q], [size]),
            lambda: low_rank.reproject([x], 1.0, tf.ones([5]), [size]),
            lambda: low_rank.expand(tf.ones([4]), tf.ones([4]), none, 1.0, [size], [[4, 5]]),
            lambda: low_rank.expand(tf.ones([4]), tf.ones([5]), q[0], 1.0, [size], [[4, 5]]),
            lambda: low_rank.orthonormal(tf.ones([5]), [size]),
            lambda: low_rank.unit_columns(tf.ones([4]), [size]),
        ):
            with self.assertRaises(ValueError):
                call()
        if native.available():
            for qs in ([], [tf.ones([4, 1])]):
                with ops.using("native"), self.assertRaises(tf.errors.InvalidArgumentError):
                    low_rank.project([x], None, 1.0, qs, [size])


if __name__ == "__main__":
    tf.test.main()
