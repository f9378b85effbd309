"""Classes of elements by their size."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers, cases

# With room for everything.
WIDE = "inceptionn:bytes=1.0,halves=1.0,wholes=1.0"


def formula(x, least, unit):
    """Li et al.: nothing, 7 or 15 bits in units, cut off, or the float, by the magnitude."""
    out = np.zeros_like(x)
    for i, v in enumerate(x):
        size = abs(float(v))
        if size >= 2**15 * unit:
            out[i] = v
        elif size >= least:
            out[i] = np.copysign(np.floor(size / unit) * unit, v)
    return out


def graces(x):
    """(what GRACE decodes, the bytes it sends): its classes and fixed-point numbers."""
    size = np.abs(x.astype(np.float64))
    whole, half, byte = size >= 1, size >= 2.0**-5, size >= 2.0**-10
    coarse = np.floor(size * 2**6) / 2**6
    coarse = np.where(coarse == 0, 2.0**-7, coarse)  # what it finds no leading bit in
    cut = np.choose(0 + byte + half + whole, [0 * size, coarse, np.floor(size * 2**14) / 2**14, x])
    sent = 4 * whole + 2 * (half & ~whole) + (byte & ~half)
    return np.where(whole, cut, np.copysign(cut, x)), int(sent.sum()) + x.size // 4 + 1


def relative_error(x, got):
    return np.sum((x.astype(np.float64) - got) ** 2) / np.sum(x.astype(np.float64) ** 2)


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


def gradients():
    """(name, gradient): three distributions at many scales, without and with outliers."""
    draw, n = np.random.default_rng(5), 8000
    shapes = {
        "normal": draw.standard_normal(n),
        "Laplace": draw.laplace(size=n),
        "heavy tail": draw.standard_t(3, n),
    }
    for name, x in shapes.items():
        for exponent in (-20, -12, -10, -8, -7, -6, -4, -2, 0, 2, 6, 20):
            for outliers in (0, 5):
                own = x * 2.0**exponent
                own[:outliers] *= 2.0**14
                yield f"{name} * 2^{exponent}, {outliers} outliers", own.astype(np.float32)


class InceptionnTest(tf.test.TestCase):
    def test_it_is_the_formula(self):
        x = np.concatenate([spread(), 2.0 ** -np.arange(25), [0, -0.0, -1, 1.5]])
        x = x.astype(np.float32)
        for room in ("bytes=0.9,halves=0.2,wholes=0.01", "bytes=0.5,halves=0.5,wholes=0.2"):
            got, counts = sent(f"inceptionn:{room}", x)
            known = got != 0
            wanted = formula(x, 0, 2.0 ** (counts[0] - 127))
            self.assertAllEqual(got[known], wanted[known])
            # Of one exponent at most some are sent and some are not.
            exponents = np.frexp(x)[1]
            self.assertLessEqual(exponents[~known & (x != 0)].max(), exponents[known].min())
            self.assertEqual(known.sum(), counts[1:].sum())

    def test_it_loses_no_more_than_grace_in_no_more_bytes(self):
        for name, x in gradients():
            got, nbytes = graces(x)
            room = min(1.0, max(1e-9, (nbytes - len(x) // 4) / 4 / len(x)))
            spec = f"inceptionn:error_bound=2e-10,bytes=1e-9,halves=1e-9,wholes={room!r}"
            # The same room for numbers; counts, rounding and the least room are 24 bytes.
            own = grace_tf.get(spec).nbytes(tf.TensorSpec(x.shape, tf.float32))
            self.assertLessEqual(own, nbytes + 24, name)
            mine = relative_error(x, sent(spec, x)[0])
            self.assertLessEqual(mine, relative_error(x, got), name)

    def test_it_loses_no_more_than_grace_by_default_where_grace_sends_as_much(self):
        # By default 0.89 bytes an element, where GRACE may send fewer, or more than a float.
        default = grace_tf.get("inceptionn")
        for name, x in gradients():
            got, nbytes = graces(x)
            mine = relative_error(x, sent("inceptionn", x)[0])
            self.assertLess(mine, 0.04, name)
            if nbytes <= default.nbytes(tf.TensorSpec(x.shape, tf.float32)):
                self.assertLessEqual(mine, relative_error(x, got), name)

    def test_the_scale_of_a_gradient_does_not_count(self):
        x = cases.normal((3000,))
        wanted, _ = sent("inceptionn", x)
        for exponent in (-100, -30, -1, 50, 110):
            got, _ = sent("inceptionn", x * np.float32(2.0**exponent))
            self.assertAllEqual(got, wanted * np.float32(2.0**exponent))

    def test_bug_13_the_bound_holds_in_base_two(self):
        # GRACE took the logarithm to base 10: for 2e-10 it sent nothing below 2^-10.
        x = np.clip(spread(), -0.9, 0.9)  # the origin is 1
        for bound in (1e-6, 2.0**-10, 0.1, 0.5):
            got, _ = sent(f"inceptionn:bytes=1.0,halves=1.0,wholes=1e-9,error_bound={bound!r}", x)
            power = 2.0 ** np.floor(np.log2(bound))
            self.assertAllEqual(got != 0, np.abs(x) >= power)

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
        # Twelve bytes for eight numbers.
        got, counts = sent("inceptionn:bytes=0.5,halves=1e-9,wholes=1e-9", x)
        self.assertAllEqual(counts, [127 - 10, 4, 3, 0])
        self.assertAllEqual(1024 * got, [1536, -716, 102, -10, 0, 1, -128, 127])

    def test_bug_8_workers_need_not_select_equally_many(self):
        # GRACE reshaped what came from others to its own sizes.
        grads = [[np.float32([1e-5, 2, 1e-5, 1e-5])], [np.float32([0.01, 0.02, 0.5, 3])]]
        got = Workers(2, WIDE)(grads)
        for mine in got:
            self.assertAllClose(mine[0], (grads[0][0] + grads[1][0]) / 2, rtol=1e-4)

    def test_bug_7_more_parts_than_workers(self):
        # GRACE indexed offsets of workers by the number of the payload.
        x = spread(100)
        self.assertAllClose(Workers(1, WIDE)([[x]])[0][0], x, rtol=1e-2, atol=1e-6)

    def test_elements_of_one_size_take_turns(self):
        x = np.full(100, 0.01, np.float32)
        seen = np.zeros(100, int)
        for step in range(4):
            got, counts = sent("inceptionn:bytes=0.19,halves=1e-9,wholes=1e-9", x, step)
            self.assertAllEqual(counts[1:], [28, 0, 0])
            self.assertEqual((got != 0).sum(), 28)
            seen += got != 0
        self.assertAllEqual(np.unique(seen), [1, 2])

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
