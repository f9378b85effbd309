"""The operations of signs with levels: native, reference and NumPy agree bit for bit."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from ops_cases import SameEverywhere, gradient

from grace_tf import ops
from grace_tf.ops import signs
from grace_tf.ops.backend import native
from grace_tf.ops.scaled_signs import (
    Cells,
    momentum_sign_list,
    scaled_sign_list,
    sum_scaled_sign_list,
)

pytestmark = pytest.mark.rotated

SHAPES = [(), (1,), (31,), (32,), (33,), (257,), (2048,), (4099,), (1, 7), (33, 5), (7, 3, 65)]
SHAPES += [(131, 3)]
CELLS = [Cells(*each) for each in ((1,), (2,), (1, 32), (2, 512), (2, 4096), (2, None, True))]
CELLS += [Cells(1, None, True)]
LEAST = 2.0**-110


def gradients(seed=0):
    """Normal numbers with zeros, denormals and ties, one tensor of one side only."""
    xs = [np.array(gradient(int(np.prod(s)) + 1 + seed)[1 + seed :]).reshape(s) for s in SHAPES]
    xs[4] = np.abs(xs[4])
    return xs


def flushed(x):
    """Denormals as zeros of their sign, as TensorFlow's sums and products take them."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def halved(values):
    """Sums over the first axis: the upper half onto the lower, zeros filling up."""
    size = 1 << (len(values) - 1).bit_length()
    values = np.concatenate([values, np.zeros((size - len(values), *values.shape[1:]))])
    while len(values) > 1:
        values = values[: len(values) // 2] + values[len(values) // 2 :]
    return values[0]


def summed(values, chunk):
    """Sums over the first axis, chunk by chunk."""
    parts = [halved(values[i : i + chunk]) for i in range(0, len(values), chunk)]
    return halved(np.stack(parts))


def level(mean):
    return np.float32(0) if abs(mean) < LEAST else np.float32(mean)


def levels_of(x, sides, chunk):
    """The levels of one cell."""
    x = np.asarray(x)
    up = x >= 0
    x = np.where(np.abs(x) < np.finfo(np.float32).tiny, 0, x).astype(np.float64)
    if sides == 1:
        return [level(summed(np.abs(x), chunk) * (1.0 / x.size))]
    return [
        level(summed(np.where(up == side, x, 0.0), chunk) / max(1, np.sum(up == side)))
        for side in (False, True)
    ]


def in_numpy(x, cells):
    """(levels, what the bits stand for) of one tensor, in NumPy, cell by cell."""
    columns = cells.columns(x.shape)
    if columns > 1:
        matrix = x.reshape(-1, columns)
        own = [levels_of(column, cells.sides, 32) for column in matrix.T]
        of_element = np.tile(np.arange(columns), len(matrix))
    else:
        flat, block = x.reshape(-1), cells.block or x.size
        starts = range(0, flat.size, block)
        own = [levels_of(flat[i : i + block], cells.sides, 2048) for i in starts]
        of_element = np.arange(flat.size) // block
    levels = np.array(own, np.float32).T
    low, high = (np.float32(0) - levels[0] if cells.sides == 1 else levels[0]), levels[-1]
    sent = np.where(x.reshape(-1) >= 0, high[of_element], low[of_element])
    return levels, sent.reshape(x.shape)


class ScaledSignsTest(SameEverywhere):
    def test_levels_are_those_of_numpy_everywhere(self):
        xs = gradients()
        for cells in CELLS:
            encode = functools.partial(scaled_sign_list, xs, None, 1.0, cells)
            words, *levels, finite = self.same_everywhere(encode, f"{cells}")
            self.assertTrue(finite)
            wanted = zip(*[in_numpy(x, cells)[0] for x in xs])
            for got, want in zip(levels, wanted):
                self.assert_same_bits(got, np.concatenate(want), f"{cells}")
            packed = [ops.pack_signs(tf.constant(x.reshape(-1))) for x in xs]
            self.assertAllEqual(words, np.concatenate(packed))

    def test_what_is_kept_is_the_rest_everywhere(self):
        xs, residuals = gradients(), gradients(3)
        for cells, multiplier in zip(CELLS[1:], itertools.cycle((1.0, 3.0))):
            encode = functools.partial(scaled_sign_list, xs, residuals, multiplier, cells)
            got = self.same_everywhere(encode, f"{cells}, {multiplier}")
            kept = got[1 + cells.sides : -1]
            for x, e, rest in zip(xs, residuals, kept):
                acc = flushed(flushed(np.float32(multiplier) * flushed(x)) + flushed(e))
                wanted = flushed(acc - in_numpy(acc, cells)[1])
                self.assert_same_bits(rest, wanted, f"{cells}, {multiplier}")

    def test_sums_over_workers_are_the_same_everywhere(self):
        workers = [gradients(seed) for seed in (0, 3, 5)]
        for cells in CELLS[1::2]:
            parts = [scaled_sign_list(xs, None, 1.0, cells) for xs in workers]
            words = tf.stack([part.words for part in parts])
            levels = [tf.stack(each) for each in zip(*[part.levels for part in parts])]
            for count, factor in ((1, 1.0), (3, 1 / 3)):
                add = functools.partial(
                    sum_scaled_sign_list,
                    words[:count],
                    [each[:count] for each in levels],
                    SHAPES,
                    tf.constant(factor, tf.float32),
                    cells,
                )
                *totals, finite = self.same_everywhere(add, f"{cells}, {count}")
                self.assertTrue(finite)
                for i, total in enumerate(totals):
                    wanted = np.zeros(SHAPES[i], np.float32)
                    for xs in workers[:count]:
                        wanted = wanted + in_numpy(xs[i], cells)[1]
                    self.assert_same_bits(total, wanted * np.float32(factor), f"{cells}, {i}")

    def test_averages_are_the_same_everywhere(self):
        xs, momenta = gradients(), gradients(3)
        for multiplier, beta in ((1.0, 0.9), (3.0, 0.5), (1.0, 0.0)):
            average = functools.partial(momentum_sign_list, xs, momenta, multiplier, beta)
            words, *averages, finite = self.same_everywhere(average, f"{beta}")
            self.assertTrue(finite)
            for x, m, got in zip(xs, momenta, averages):
                product = np.float32(1 - beta) * (np.float32(multiplier) * x)
                self.assertAllClose(got, np.float32(beta) * m + product, rtol=0, atol=2e-38)
            if native.available():
                with ops.using("native"):
                    self.assertAllEqual(words, signs.sign_list(averages, 1.0)[0])

    def test_values_of_all_sizes(self):
        for x, wanted in (
            ([0.0, -0.0, 1e-40, -1e-40], [0, 0]),
            ([3e38, 3.4e38, -3e38, -3.4e38], [-3.2e38, 3.2e38]),
            ([2.0**-111, 1.0, -(2.0**-112)], [0, 0.5]),
            ([1.0, 2.0], [0, 1.5]),
            ([-4.0], [-4, 0]),
        ):
            x = np.array(x, np.float32)
            encode = functools.partial(scaled_sign_list, [x], None, 1.0, Cells(2))
            _, low, high, _ = self.same_everywhere(encode, f"{x}")
            self.assertAllClose([low[0], high[0]], wanted, rtol=1e-6)

    def test_what_is_not_finite_is_flagged(self):
        for bad, (i, cells) in itertools.product((np.nan, -np.inf), enumerate(CELLS, 5)):
            xs = [np.ones(shape, np.float32) for shape in SHAPES]
            xs[i].flat[-1] = bad
            for name in ("native", "reference"):
                if name == "native" and not native.available():
                    continue
                with ops.using(name):
                    for residuals in (None, [np.ones_like(x) for x in xs]):
                        encoded = scaled_sign_list(xs, residuals, 1.0, cells)
                        self.assertFalse(encoded.finite, f"{name}, {bad}, {cells}, {i}")
                    rows = [each[None] for each in encoded.levels]
                    one = tf.constant(1.0)
                    _, finite = sum_scaled_sign_list(encoded.words[None], rows, SHAPES, one, cells)
                    self.assertFalse(finite, f"{name}, sum of {bad}, {cells}, {i}")
                    self.assertFalse(momentum_sign_list(xs, xs, 1.0, 0.5)[-1])

    def test_totals_that_overflow_are_flagged(self):
        x = [np.full([100], 3e38, np.float32)]
        encoded = scaled_sign_list(x, None, 1.0, Cells(1))
        words = tf.stack([encoded.words] * 2)
        totals, finite = sum_scaled_sign_list(
            words, [tf.stack([encoded.levels[0]] * 2)], [(100,)], tf.constant(1.0), Cells(1)
        )
        self.assertFalse(finite)
        self.assertTrue(np.isinf(totals[0]).all())


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x, w, s: scaled_sign_list([x], None, 1.0, Cells(3)), "1 or 2 sides, not 3"),
        (lambda x, w, s: scaled_sign_list([x], None, 1.0, Cells(1, 48)), "power of two of at"),
        (lambda x, w, s: scaled_sign_list([x], [x[1:]], 1.0, Cells(1)), "residuals must have"),
        (lambda x, w, s: sum_scaled_sign_list(w, [s, s], [[40]], s[0, 0], Cells(1)), "levels must"),
        (lambda x, w, s: sum_scaled_sign_list(w, [s], [[70]], s[0, 0], Cells(1)), "words must"),
        (lambda x, w, s: sum_scaled_sign_list(w[:1], [s], [[40]], s[0, 0], Cells(1)), "levels mu"),
    ],
)
def test_what_does_not_fit_is_refused(call, sentence):
    x, words, scales = tf.ones([40]), tf.zeros([2, 2], tf.int32), tf.ones([2, 1])
    with pytest.raises(ValueError, match=sentence):
        call(x, words, scales)
