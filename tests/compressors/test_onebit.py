"""Signs with the means of both sides."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.testing import Workers, cases

SHAPE = (40, 31)
SPECS = ("onebit", "onebit:columns=true")


def formula(x):
    """Each side's reconstruction value is its mean."""
    side = x >= 0
    values = {
        up: np.float32(x[side == up].astype(np.float64).mean()) if (side == up).any() else 0
        for up in (False, True)
    }
    return np.where(side, values[True], values[False]).astype(np.float32)


def by_columns(x):
    columns = x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(-1, 1)
    return np.stack([formula(column) for column in columns.T], 1).reshape(x.shape)


def sent(spec, x):
    (got,) = Workers(1, spec, memory="none")([[x]])
    return got[0].numpy()


@pytest.mark.parametrize("shape", [(1613,), (1,), (), (33, 7), (3, 3, 5, 64), (130, 70)])
@pytest.mark.parametrize("spec, wanted", [("onebit", formula), ("onebit:columns=true", by_columns)])
def test_it_is_the_formula(spec, wanted, shape):
    x = cases.normal(shape, 3)
    np.testing.assert_array_equal(sent(spec, x), wanted(x))


@pytest.mark.parametrize("spec", SPECS)
def test_each_side_has_its_own_mean(spec):
    # GRACE's decoder inverted the mask as bytes: 255 - mask instead of not mask.
    x = np.array([[-1.0], [-3.0], [2.0], [4.0], [6.0], [-8.0]], np.float32)
    np.testing.assert_array_equal(sent(spec, x)[:, 0], [-4, -4, 4, 4, 4, -4])
    worst = np.abs(sent(spec, cases.normal(SHAPE))).max()
    assert worst <= np.abs(cases.normal(SHAPE)).max()


@pytest.mark.parametrize("spec", SPECS)
def test_an_empty_side_is_zero(spec):
    for sign in (1.0, -1.0):
        x = np.full([5, 3], sign * 2.5, np.float32)
        np.testing.assert_array_equal(sent(spec, x), x)
        parts = grace_tf.get(spec).compress(tf.constant(x), None)
        empty = parts["low" if sign > 0 else "high"]
        np.testing.assert_array_equal(empty, np.zeros_like(empty))


@pytest.mark.parametrize("spec", SPECS)
def test_nothing_is_lost(spec):
    workers = Workers(3, spec, memory="residual")
    given, arrived = np.zeros(SHAPE), np.zeros(SHAPE)
    for step in range(50):
        grads = [cases.normal(SHAPE, 10 * step + w) for w in range(3)]
        given += sum(g.astype(np.float64) for g in grads)
        arrived += 3 * workers([[g] for g in grads])[0][0].numpy().astype(np.float64)
    rest = workers.state.arrays()["0/memory/residual"].astype(np.float64)
    np.testing.assert_allclose(given, arrived + rest.sum(0), rtol=0, atol=2e-4)
    assert np.abs(rest).max() > 0.1


class OneBitTest(tf.test.TestCase):
    def test_the_aggregate_is_the_mean_of_the_workers(self):
        grads = [cases.normal(SHAPE, w) for w in range(3)]
        got = Workers(3, "onebit")([[g] for g in grads])[1][0]
        self.assertAllClose(got, np.mean([formula(g) for g in grads], 0), rtol=1e-6)

    def test_the_residual_is_what_the_projection_leaves(self):
        x = cases.normal(SHAPE)
        for spec in SPECS:
            rest = (x - sent(spec, x)).astype(np.float64)
            # Orthogonal to what was sent, so that it is never longer than x.
            self.assertLess(abs(np.vdot(rest, sent(spec, x))), 1e-6 * np.vdot(x, x))
            self.assertLess(np.linalg.norm(rest), np.linalg.norm(x))

    def test_bytes(self):
        onebit, columns = grace_tf.get("onebit"), grace_tf.get("onebit:columns=true")
        self.assertEqual(onebit.nbytes(tf.TensorSpec([10**6], tf.float32)), 125_008)
        self.assertEqual(onebit.nbytes(tf.TensorSpec([10**3, 10**3], tf.float32)), 125_008)
        self.assertEqual(columns.nbytes(tf.TensorSpec([10**3, 10**3], tf.float32)), 133_000)
        self.assertEqual(columns.nbytes(tf.TensorSpec([10**6], tf.float32)), 125_008)

    def test_its_memory_is_the_residual_with_a_decay(self):
        self.assertEqual(grace_tf.core.registry.resolve("onebit")[1], "residual:decay=0.9")

    def test_what_is_no_bool_is_refused(self):
        with self.assertRaisesRegex(TypeError, "columns is true or false, not 3"):
            grace_tf.get("onebit:columns=3")
