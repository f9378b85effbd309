"""Uniform quantisation."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers, cases


def roundtrip(spec, x):
    (got,) = Workers(1, spec)([[x]])
    return got[0].numpy()


def nearest(x, levels, block, norm="max"):
    """The formula, block by block."""
    out = np.empty_like(x)
    for start in range(0, x.size, block):
        piece = x[start : start + block]
        c = (
            np.abs(piece).max()
            if norm == "max"
            else np.sqrt(np.sum(piece.astype(np.float64) ** 2)).astype(np.float32)
        )
        inverse, unit = np.float32(levels) / c, c / np.float32(levels)
        q = np.minimum(np.rint(np.abs(piece) * inverse), np.float32(levels))
        out[start : start + block] = np.copysign(q * unit, piece)
    return out


@pytest.mark.parametrize(
    ("spec", "levels", "block", "norm"),
    [
        ("qsgd:bits=4", 7, 512, "max"),
        ("qsgd:bits=2,block=32", 1, 32, "max"),
        ("qsgd:bits=8,block=none,norm=l2", 127, 10**6, "l2"),
        ("qsgd:levels=5,block=64,norm=l2", 5, 64, "l2"),
        ("qsgd:bits=16", 32767, 512, "max"),
    ],
)
def test_nearest_is_the_formula(spec, levels, block, norm):
    x = cases.normal((1613,))
    np.testing.assert_array_equal(
        roundtrip(f"{spec},rounding=nearest", x), nearest(x, levels, block, norm)
    )


class QSGDTest(tf.test.TestCase):
    def test_stochastic_rounding_gives_one_of_two_neighbours(self):
        x = cases.normal((4096,))
        got = roundtrip("qsgd:bits=4", x)
        for start in range(0, 4096, 512):
            piece, sent = x[start : start + 512], got[start : start + 512]
            unit = np.abs(piece).max() / 7
            off = np.abs(sent - piece) / unit
            self.assertLess(off.max(), 1 + 1e-5)
            self.assertGreater(off.max(), 0.6)

    def test_a_block_of_zeros_stays_zero(self):
        # GRACE divided by the norm, 0/0.
        x = np.concatenate([np.zeros(512), cases.normal((512,)), np.zeros(100)]).astype(np.float32)
        for spec in ("qsgd", "qsgd:norm=l2", "qsgd:rounding=nearest"):
            got = roundtrip(spec, x)
            self.assertAllEqual(got[:512], np.zeros(512))
            self.assertAllEqual(got[1024:], np.zeros(100))
            self.assertGreater(np.abs(got[512:1024]).max(), 0)
        self.assertAllEqual(
            roundtrip("qsgd:block=none,norm=l2", np.zeros(100, np.float32)), np.zeros(100)
        )

    def test_the_largest_element_is_exact(self):
        x = cases.normal((512,))
        top = np.argmax(np.abs(x))
        for spec in ("qsgd", "qsgd:bits=2", "qsgd:levels=100"):
            self.assertAllClose(roundtrip(spec, x)[top], x[top], rtol=1e-6)

    def test_bits_announced_are_bits_sent(self):
        for bits, levels in ((2, 1), (3, 2), (4, 7), (5, 8), (8, 127), (9, 128), (16, 32767)):
            wire = grace_tf.get("qsgd", levels=levels, block=None).wire(
                tf.TensorSpec([32_000], tf.float32)
            )
            self.assertEqual(wire["levels"].shape[0], 1000 * bits, levels)
        # 4 bits in blocks of 512: 1/7.8 of float32
        nbytes = grace_tf.get("qsgd").nbytes(tf.TensorSpec([1_024_000], tf.float32))
        self.assertEqual(nbytes, 512_000 + 8_000)

    def test_workers_round_independently(self):
        # GRACE's CUDA code seeded all workers with the clock, alike.
        x = tf.constant(cases.normal((4096,)))
        spec = tf.TensorSpec([4096], tf.float32)
        compressor = grace_tf.get("qsgd:bits=2")
        contexts = [Context((spec,), (0,), 0, 0, 2, w) for w in range(2)]
        errors = [
            compressor.decompress(compressor.compress(x, c), c.public()) - x for c in contexts
        ]
        correlation = np.corrcoef(errors[0], errors[1])[0, 1]
        self.assertLess(abs(correlation), 0.1)

    def test_bug_22_variables_and_steps_round_independently(self):
        # GRACE's CUDA code seeded with the second: tensors of one second were rounded alike.
        x = tf.constant(cases.normal((4096,)))
        compressor = grace_tf.get("qsgd:bits=2")

        def error(variable, step):
            context = Context((tf.TensorSpec([4096], tf.float32),), (variable,), step, 0, 1, 0)
            return compressor.decompress(compressor.compress(x, context), context.public()) - x

        first = error(0, 0)
        for other in (error(1, 0), error(0, 1)):
            self.assertLess(abs(np.corrcoef(first, other)[0, 1]), 0.1)

    def test_bug_22_no_level_overflows(self):
        # GRACE's CUDA code could round 127 up to 128, which is -128 as an int8.
        x = np.concatenate([np.full(500, 1.0), np.full(500, np.nextafter(np.float32(1), 0))])
        x = np.concatenate([x, -x]).astype(np.float32)
        for spec in ("qsgd:bits=8,block=none", "qsgd:bits=2", "qsgd:bits=8,norm=minmax"):
            workers = Workers(1, spec)
            for _ in range(5):
                self.assertAllClose(workers([[x]])[0][0], x, rtol=1e-2)

    def test_the_aggregate_is_the_mean_of_the_workers(self):
        grads = [[cases.normal((700,), w)] for w in range(3)]
        got = Workers(3, "qsgd:rounding=nearest")(grads)[1][0]
        expected = np.mean([nearest(g[0], 7, 512) for g in grads], 0)
        self.assertAllClose(got, expected, rtol=1e-6, atol=1e-7)


def levels_between(x, bits, block):
    """Of each block the element, rounded to the nearest of 2^bits levels from end to end."""
    out = np.empty_like(x)
    for start in range(0, x.size, block):
        piece = x[start : start + block].astype(np.float64)
        low, step = piece.min(), (piece.max() - piece.min()) / (2**bits - 1)
        out[start : start + block] = low + step * np.rint((piece - low) / step)
    return out


@pytest.mark.parametrize(("bits", "block"), [(4, 512), (2, 32), (8, 10**6)])
def test_minmax_is_the_formula(bits, block):
    x = cases.normal((1613,)) + np.float32(0.7)
    options = f"bits={bits},block={block if block < 10**6 else 'none'}"
    got = roundtrip(f"qsgd:norm=minmax,rounding=nearest,{options}", x)
    np.testing.assert_allclose(got, levels_between(x, bits, block), rtol=0, atol=1e-6)
    for start in range(0, x.size, block):
        piece, sent = x[start : start + block], got[start : start + block]
        for extreme in (np.argmin(piece), np.argmax(piece)):
            np.testing.assert_allclose(sent[extreme], piece[extreme], rtol=1e-6)
        assert len(np.unique(sent)) <= 2**bits


def test_minmax_keeps_a_block_of_equal_elements():
    for value in (0.0, 0.3, -1e-20, 7e30):
        x = np.full(700, value, np.float32)
        for rounding in ("nearest", "stochastic", "stratified"):
            np.testing.assert_array_equal(roundtrip(f"qsgd:norm=minmax,rounding={rounding}", x), x)


def test_minmax_bytes_and_traits():
    spec = tf.TensorSpec([1_024_000], tf.float32)
    assert grace_tf.get("qsgd:norm=minmax").nbytes(spec) == 512_000 + 16_000
    assert grace_tf.get("qsgd:norm=minmax,bits=3,block=none").nbytes(spec) == 384_000 + 8
    assert not grace_tf.get("qsgd:norm=minmax,rounding=nearest").nonexpansive
    with pytest.raises(ValueError, match="levels are not given beside"):
        grace_tf.get("qsgd:norm=minmax,levels=7")
    # Zeros between two far elements are rounded away from zero: no contraction.
    x = np.zeros(512, np.float32)
    x[:2] = 1, -1
    error = roundtrip("qsgd:norm=minmax,bits=2,rounding=nearest", x) - x
    assert np.linalg.norm(error) > np.linalg.norm(x)


UNBIASED = [
    f"qsgd:{norm}rounding={rounding}"
    for norm in ("", "norm=minmax,", "norm=l2,bits=8,")
    for rounding in ("stochastic", "stratified")
]


@pytest.mark.parametrize("spec", UNBIASED)
def test_the_mean_is_unbiased(spec):
    grads = [[cases.normal((37,), w)] for w in range(3)]
    workers = Workers(3, spec)
    means = np.stack([workers(grads)[0][0].numpy() for _ in range(2000)])
    error = means.std(0, ddof=1) / np.sqrt(2000) + 1e-7
    assert np.all(np.abs(means.mean(0) - np.mean([g[0] for g in grads], 0)) <= 4 * error)


@pytest.mark.parametrize("norm", ["max", "minmax"])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_stratified_rounding_of_equal_gradients_cancels_errors(size, norm):
    x = cases.normal((4096,), 5)

    def variance(rounding):
        """Of the mean, over steps and elements, in levels."""
        workers = Workers(size, f"qsgd:bits=4,norm={norm},rounding={rounding}")
        errors = [workers([[x]] * size)[0][0].numpy() - x for _ in range(20)]
        assert np.abs(np.mean(errors)) < 0.02
        return np.mean(np.square(errors)), np.abs(errors).max()

    (alone, _), (together, furthest) = variance("stochastic"), variance("stratified")
    # Of a level squared, errors of their own leave 1/(6N) on average, evenly spaced ones 1/(6N²).
    assert together * size < 1.05 * alone
    level = np.abs(x).max() * (2 / 15 if norm == "minmax" else 1 / 7)
    assert furthest < 1.01 * level / size


def test_stratified_rounding_is_each_workers_own_and_common_to_all():
    spec, x = tf.TensorSpec([4096], tf.float32), tf.constant(cases.normal((4096,)))
    compressor = grace_tf.get("qsgd:rounding=stratified")
    contexts = [Context((spec,), (0,), 0, 0, 2, w) for w in range(2)]
    errors = [
        compressor.decompress(compressor.compress(x, c), c.public()).numpy() - x for c in contexts
    ]
    # Half a cycle apart: where the one is rounded up, the other mostly is not.
    assert np.corrcoef(errors[0], errors[1])[0, 1] < -0.4
