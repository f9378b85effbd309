"""Classes of elements by their size."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers, cases

# With room for everything.
WIDE = "inceptionn:bytes=1.0,halves=1.0,wholes=1.0"


def formula(x, b):
    """Li et al.: classes by exponent, fixed-point numbers that are cut off."""
    out = np.zeros_like(x)
    for i, v in enumerate(x):
        size = abs(float(v))
        if size >= 2.0 ** min(0, 15 - b):
            out[i] = v
            continue
        for bits in (7, 15):
            top = 2.0 ** min(0, bits - b)
            if 2.0**-b <= size < top:
                unit = top / 2**bits
                out[i] = np.copysign(np.floor(size / unit) * unit, v)
                break
    return out


def sent(spec, x, step=0):
    """(what is decoded, the counts of the payload)."""
    context = Context((tf.TensorSpec(x.shape, tf.float32),), (0,), step, 0, 1, 0)
    compressor = grace_tf.get(spec)
    payload = compressor.compress(tf.constant(x), context)
    decoded = compressor.decompress(payload, context.public())
    return decoded.numpy(), payload["counts"].numpy()


def spread(n=4001):
    return cases.normal((n,)) * np.float32(10.0) ** -np.random.default_rng(1).uniform(
        0, 6, n
    ).astype(np.float32)


class InceptionnTest(tf.test.TestCase):
    def test_it_is_the_formula(self):
        for bound, b in ((2.0**-10, 10), (2.0**-8, 8), (2.0**-6, 6), (1e-3, 10), (1e-6, 20)):
            x = np.concatenate([spread(), 2.0 ** -np.arange(25), [0, -0.0, -1, 1.5]])
            x = x.astype(np.float32)
            got, counts = sent(f"{WIDE},error_bound={bound}", x)
            self.assertAllEqual(got, formula(x, b))
            self.assertEqual(counts[0], 0)

    def test_bug_13_the_bound_holds_in_base_two(self):
        # GRACE took the logarithm to base 10: for 2e-10 it sent nothing below 2^-10.
        for bound in (2e-10, 1e-6, 2.0**-10, 0.1, 0.5):
            x = spread()
            got, _ = sent(f"{WIDE},error_bound={bound!r}", x)
            error = np.abs(got.astype(np.float64) - x)
            self.assertLess(error.max(), bound)
            self.assertTrue((got[np.abs(x) >= bound] != 0).all())

    def test_bug_13_no_step_makes_a_variable(self):
        # GRACE's decoder made new variables on each call.
        context = Context((tf.TensorSpec([100], tf.float32),), (0,), 0, 0, 1, 0)
        compressor = grace_tf.get(WIDE)
        with tf.Graph().as_default() as graph:
            payload = compressor.compress(tf.constant(spread(100)), context)
            compressor.decompress(payload, context.public())
            self.assertFalse(tf.compat.v1.global_variables())
        kinds = {op.type for op in graph.get_operations()}
        self.assertFalse([kind for kind in kinds if "Variable" in kind or "VarHandle" in kind])

    def test_known_numbers(self):
        x = np.float32([1.5, -0.7, 0.1, -0.01, 0.0009, 2.0**-10, -(2.0**-3), 0.12499])
        got, counts = sent(WIDE, x)
        unit = 2.0**-15
        expected = [1.5, -22937 * unit, 102 / 1024, -10 / 1024, 0, 1 / 1024, -0.125, 127 / 1024]
        self.assertAllEqual(got, expected)
        self.assertAllEqual(counts, [0, 4, 2, 1])

    def test_bug_8_workers_need_not_select_equally_many(self):
        # GRACE reshaped what came from others to its own sizes.
        grads = [[np.float32([1e-5, 2, 1e-5, 1e-5])], [np.float32([0.01, 0.02, 0.5, 3])]]
        got = Workers(2, WIDE)(grads)
        expected = (formula(grads[0][0], 10) + formula(grads[1][0], 10)) / 2
        for mine in got:
            self.assertAllEqual(mine[0], expected)

    def test_bug_7_more_parts_than_workers(self):
        # GRACE indexed offsets of workers by the number of the payload.
        x = spread(100)
        self.assertAllEqual(Workers(1, WIDE)([[x]])[0][0], formula(x, 10))

    def test_too_many_floats_and_halves_double_the_bound_and_tell(self):
        x = cases.normal((4000,))
        got, counts = sent("inceptionn:bytes=1.0,halves=0.05,wholes=0.01", x)
        self.assertEqual(counts[0], 4)  # at most 1 % above 16, 5 % above 2
        self.assertAllEqual(got, formula(x / 16, 10) * 16)
        self.assertLess(np.abs(got - x).max(), 16 * 2.0**-10)
        self.assertEqual(counts[1] + counts[2] + counts[3], (np.abs(x) >= 2.0**-6).sum())

    def test_too_many_bytes_take_turns(self):
        x = np.full(100, 0.01, np.float32)
        seen = np.zeros(100, int)
        for step in range(4):
            got, counts = sent("inceptionn:bytes=0.25", x, step)
            self.assertAllEqual(counts, [0, 100, 0, 0])
            self.assertEqual((got != 0).sum(), 25)
            seen += got != 0
        self.assertAllEqual(seen, np.ones(100))

    def test_what_does_not_fit_stays_in_the_residual(self):
        draw = np.random.default_rng(3)
        workers = Workers(2, "inceptionn:bytes=0.25", memory="residual")
        given, taken = np.zeros([2, 700]), np.zeros(700)
        for _ in range(50):
            grads = 0.05 * draw.normal(size=(2, 700)).astype(np.float32)
            given += grads
            taken += workers([[g] for g in grads])[0][0].numpy()
        (left,) = (v for k, v in workers.state.arrays().items() if k.endswith("residual"))
        np.testing.assert_allclose(given.mean(0), taken + left.mean(0), atol=1e-5)
        self.assertLess(np.abs(left).max(), 3)

    def test_the_bytes_of_its_room(self):
        spec = tf.TensorSpec([10**6], tf.float32)
        expected = 250_000 + 500_000 + 2 * 50_000 + 4 * 10_000 + 16
        self.assertEqual(grace_tf.get("inceptionn").nbytes(spec), expected)


@pytest.mark.parametrize(
    "wrong", [{"error_bound": 0}, {"error_bound": 0.7}, {"bytes": 0}, {"halves": 1.5}]
)
def test_what_is_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match=f"inceptionn: {next(iter(wrong))} is"):
        grace_tf.get("inceptionn", **wrong)
