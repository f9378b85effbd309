"""The dynamic tree."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers, cases


def numbers():
    """Dettmers' data type from its bits: z zeros, a one, a fraction; and zero."""
    found = [0.0]
    for z in range(7):
        steps = 2 ** (6 - z)
        found += [10.0**-z * (0.1 + 0.9 * (f + 1) / steps) for f in range(steps)]
    return np.sort(found)


def nearest(x):
    scale = np.abs(x).max().astype(np.float64)
    table = numbers() * scale
    chosen = np.abs(np.abs(x)[..., None].astype(np.float64) - table).argmin(-1)
    return np.copysign(table[chosen], x)


def roundtrip(spec, x):
    (got,) = Workers(1, spec, memory="none")([[x]])
    return got[0].numpy()


def sent_codes(x):
    context = Context((tf.TensorSpec(x.shape, tf.float32),), (0,), 0, 0, 1, 0)
    words = grace_tf.get("u8bit").compress(tf.constant(x), context)["codes"]
    return words.numpy().view(np.uint8)[: x.size]


SPREAD = cases.normal((5003,)) * np.float32(10.0) ** -np.random.default_rng(1).uniform(
    0, 7, 5003
).astype(np.float32)


class U8BitTest(tf.test.TestCase):
    def test_each_element_becomes_the_nearest_number(self):
        for x in (cases.normal((1613,)), SPREAD, np.float32(1e-20) * SPREAD):
            scale = np.abs(x).max()
            np.testing.assert_allclose(roundtrip("u8bit", x), nearest(x), rtol=3e-7)
            # And none is nearer, to the rounding of the search.
            error = np.abs(roundtrip("u8bit", x) - x.astype(np.float64))
            table = numbers() * np.float64(scale)
            best = np.abs(np.abs(x)[:, None].astype(np.float64) - table).min(-1)
            self.assertTrue((error <= best * (1 + 1e-4) + 1e-7 * np.abs(x)).all())

    def test_known_codes(self):
        x = np.array([1, -1, 0.1, -0.01, 1e-6, -4e-7, 0, 0.109, 0.5, 0.55], np.float32)
        codes = [0b1111111, 0b11111111, 0b0111111, 0b10011111, 0b0000001, 0b10000000, 0]
        codes += [0b1000000, 0b1011011, 0b1011111]
        self.assertAllEqual(sent_codes(x), codes)

    def test_bug_12_the_largest_element_is_sent_exactly(self):
        # GRACE's bins ended at 0.9957, and find_bins gives NaN beyond them: it was lost.
        for x in (SPREAD, -SPREAD, np.float32([3e-30, -1e-31]), np.float32([3.3e38, -1e38, 1])):
            top = np.argmax(np.abs(x))
            self.assertEqual(roundtrip("u8bit", x)[top], x[top])
            self.assertEqual(roundtrip("u8bit:block=32", x)[top], x[top])

    def test_bug_12_what_is_below_the_smallest_number_rounds_to_the_nearest_too(self):
        # GRACE cast NaN for everything below 1.5e-6 of the largest.
        x = np.array([1, 1.4e-6, -6e-7, 4e-7, -4e-7], np.float32)
        np.testing.assert_allclose(roundtrip("u8bit", x), [1, 1e-6, -1e-6, 0, 0], rtol=1e-6)

    def test_the_sign_of_every_code_survives(self):
        # GRACE multiplied the sign into an index, so index 0 had none.
        codes = sent_codes(SPREAD)
        self.assertAllEqual(codes >> 7, np.signbit(SPREAD))
        got = roundtrip("u8bit", SPREAD)
        self.assertAllEqual(np.sign(got)[got != 0], np.sign(SPREAD)[got != 0])

    def test_it_rounds_to_both_sides(self):
        # GRACE took the lower end of each bin, so everything shrank.
        x = np.abs(cases.normal((20_000,)))
        off = roundtrip("u8bit", x).astype(np.float64) - x
        self.assertLess(abs(off.mean()), 5 * off.std() / np.sqrt(x.size))

    def test_a_block_has_its_own_scale(self):
        x = np.concatenate([cases.normal((512,)), 1e-9 * cases.normal((100,))]).astype(np.float32)
        got = roundtrip("u8bit:block=512", x)
        np.testing.assert_allclose(got[:512], nearest(x[:512]), rtol=3e-7)
        np.testing.assert_allclose(got[512:], nearest(x[512:]), rtol=3e-7)
        self.assertAllEqual(roundtrip("u8bit", x)[512:], np.zeros(100))

    def test_zeros_stay_zero(self):
        self.assertAllEqual(roundtrip("u8bit", np.zeros(9, np.float32)), np.zeros(9))
        x = np.array([0, 1e-34, -1e-40, 0], np.float32)  # a scale below 2^-110
        self.assertAllEqual(roundtrip("u8bit", x), np.zeros(4))

    def test_a_byte_an_element(self):
        spec = tf.TensorSpec([10**6], tf.float32)
        self.assertEqual(grace_tf.get("u8bit").nbytes(spec), 10**6 + 4)
        self.assertEqual(grace_tf.get("u8bit:block=512").nbytes(spec), 10**6 + 4 * 1954)
        self.assertEqual(grace_tf.get("u8bit").nbytes(tf.TensorSpec([5], tf.float32)), 12)

    def test_nothing_is_lost_in_fifty_steps(self):
        draw = np.random.default_rng(3)
        workers = Workers(2, "u8bit")
        given, taken = np.zeros([2, 700]), np.zeros(700)
        for _ in range(50):
            grads = draw.normal(size=(2, 700)).astype(np.float32) * 10.0 ** draw.uniform(-6, 0, 700)
            grads = grads.astype(np.float32)
            given += grads
            taken += workers([[g] for g in grads])[0][0].numpy()
        (left,) = (v for k, v in workers.state.arrays().items() if k.endswith("residual"))
        np.testing.assert_allclose(given.mean(0), taken + left.mean(0), atol=1e-5)


@pytest.mark.parametrize("block", [0, 31, 48, -32])
def test_a_block_is_whole_groups(block):
    with pytest.raises(ValueError, match="u8bit: block is"):
        grace_tf.get("u8bit", block=block)
