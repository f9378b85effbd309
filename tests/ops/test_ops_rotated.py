"""Codes of rotated blocks: native, reference and NumPy agree bit for bit."""

import math

import numpy as np
import numpy_ops
import pytest
import tensorflow as tf
from ops_cases import SameAsWanted, gradient

from grace_tf import ops
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.codes import rotated_codes
from grace_tf.ops.codes.rotated_codes import Code
from grace_tf.ops.reference import lloyd

pytestmark = pytest.mark.rotated

ALL = 0xFFFFFFFF
FLOAT = np.float32


def key_for(shapes):
    return ListKey(7, ALL, tf.constant(5), tuple(9 * i % 40 for i in range(len(shapes))), 2)


def signs_of(block, variable):
    """1 or -1 for each element."""
    words = numpy_ops.random_words(block // 32, ops.Key(7, ALL, 5, variable, 2)).view(np.uint32)
    return FLOAT([1 - 2 * int(words[j // 32] >> np.uint32(j % 32) & 1) for j in range(block)])


def transformed(x):
    x, distance = x.copy(), len(x) // 2
    while distance:
        for start in range(0, len(x), 2 * distance):
            a = x[start : start + distance].copy()
            b = x[start + distance : start + 2 * distance].copy()
            x[start : start + distance] = a + b
            x[start + distance : start + 2 * distance] = a - b
        distance //= 2
    return x


def sum_of(x):
    rows = list(x.reshape(-1, 32))
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    while len(total) > 1:
        total = total[: len(total) // 2] + total[len(total) // 2 :]
    return total[0]


def encoded_block(x, signs, code):
    """The codes and the scale of one block."""
    size = len(x)
    zeros = np.zeros(size, np.int64)
    largest = np.abs(x).max() if np.all(np.isfinite(x)) else np.inf
    if not np.isfinite(largest):
        return zeros, FLOAT("nan")
    if largest < 2.0**-80:
        return zeros, FLOAT(0)
    f = FLOAT(2.0 ** (41 - math.frexp(largest)[1]))
    y = transformed(numpy_ops.flush(x * f) * signs[:size])
    q = np.float64(sum_of(y * y))
    steps = FLOAT(np.float64(lloyd.resolution(code.bits)) / np.float64(FLOAT(np.sqrt(q / size))))
    steps = np.rint(np.abs(y) * steps)
    codes = sum((steps >= limit for limit in lloyd.thresholds(code.bits)), zeros)
    c = FLOAT(lloyd.CENTROIDS[code.bits])[codes]
    a, power = np.float64(sum_of(c * np.abs(y))), np.float64(f) * size
    scale = a / (np.float64(sum_of(c * c)) * power) if code.least else q / (a * power)
    return codes + (y < 0) * (1 << code.bits - 1), FLOAT(scale)


def blocks_of(n, block):
    """(first element, elements, rotated elements) of each block."""
    for start in range(0, n, block):
        count = min(block, n - start)
        size = block if count == block else max(32, 2 ** math.ceil(math.log2(count)))
        yield start, count, size


def encoded(x, code, variable):
    """The words and scales of one tensor."""
    signs, codes, scales = signs_of(code.block, variable), [], []
    for start, count, size in blocks_of(len(x), code.block):
        padded = np.zeros(size, FLOAT)
        padded[:count] = x[start : start + count]
        own, scale = encoded_block(padded, signs, code)
        codes.append(own)
        scales.append(scale)
    return numpy_ops.pack(np.concatenate(codes), code.bits), np.array(scales, FLOAT)


def decoded(words, scales, n, code, variable):
    """The sum of what rows of words and scales stand for."""
    signs, total, at = signs_of(code.block, variable), np.zeros(n, FLOAT), 0
    centroids = FLOAT(lloyd.CENTROIDS[code.bits])
    values = np.concatenate([centroids, -centroids])
    for i, (start, count, size) in enumerate(blocks_of(n, code.block)):
        rotated = np.zeros(size, FLOAT)
        for own_words, own_scales in zip(words, scales):
            codes = numpy_ops.unpack(own_words[at : at + size // 32 * code.bits], size, code.bits)
            scale = FLOAT(0) if own_scales[i] < 2.0**-95 else own_scales[i]
            rotated = rotated + values[codes] * scale
        back = numpy_ops.flush(transformed(rotated) * signs[:size])
        total[start : start + count] = back[:count]
        at += size // 32 * code.bits
    return total


def values(shapes, seed):
    """Normal numbers among zeros, denormals, ties and a run of one value; a tensor of zeros."""
    xs = [np.roll(gradient(int(np.prod(s)) + 1)[1:], seed).reshape(s) for s in shapes]
    if len(xs) > 2:
        xs[2] = np.zeros_like(xs[2])
    return xs


class RotatedTest(SameAsWanted):
    def compared(self, xs, code, residuals=None, multiplier=1.0, threads=(3,)):
        """A round trip, and a sum of three."""
        shapes, key = [x.shape for x in xs], key_for(xs)
        # By TensorFlow, which takes denormals for zero.
        accs = [tf.constant(x) * multiplier if multiplier != 1.0 else tf.constant(x) for x in xs]
        accs = [(a + r).numpy() for a, r in zip(accs, residuals or [0.0] * len(xs))]
        accs = accs if residuals or multiplier != 1.0 else xs
        parts = [encoded(a.reshape(-1), code, v) for a, v in zip(accs, key.variables)]
        words, scales = (np.concatenate(part) for part in zip(*parts))
        kept = []
        for acc, (w, s), v in zip(accs, parts, key.variables):
            back = decoded(w[None], s[None], acc.size, code, v).reshape(acc.shape)
            kept += [(tf.constant(acc) - back).numpy()] if residuals else []
        name = f"{len(xs)} tensors, {code}"
        given = [tf.constant(x) for x in xs], residuals and [tf.constant(r) for r in residuals]

        def encode():
            got = rotated_codes.encode(*given, multiplier, code, key)
            return got if residuals else got._replace(residuals_out=[])

        finite = np.bool_(all(np.all(np.isfinite(a)) for a in accs))
        self.everywhere(encode, [words, scales, *kept, finite], name, threads)
        rows = np.stack([words, words[::-1], words]), np.stack([scales, scales[::-1], 2 * scales])
        totals, w_at, s_at = [], 0, 0
        for shape, (w, s), v in zip(shapes, parts, key.variables):
            own = rows[0][:, w_at : w_at + w.size], rows[1][:, s_at : s_at + s.size]
            total = decoded(*own, int(np.prod(shape)), code, v)
            totals.append((total * FLOAT(0.3)).reshape(shape))
            w_at, s_at = w_at + w.size, s_at + s.size

        def decode():
            return rotated_codes.decode(*map(tf.constant, rows), shapes, 0.3, code, key)

        if finite:
            self.everywhere(decode, [*totals, np.bool_(True)], f"{name}, decoded", threads)

    def every_number_of_bits(self, numbers):
        shapes = [(161,), (), (70,), (2, 8, 8)]
        for bits in numbers:
            self.compared(values(shapes, bits), Code(bits, 64, bits % 2 == 0))

    def test_one_to_four_bits(self):
        self.every_number_of_bits(range(1, 5))

    def test_five_to_eight_bits(self):
        self.every_number_of_bits(range(5, 9))

    def test_every_size_of_block_and_of_what_is_left(self):
        shapes = [(n,) for n in (1, 33, 129, 513)]
        for block in (32, 128, 1024):
            self.compared(values(shapes, block), Code(4, block, False))
        self.compared(values([(2053,)], 1), Code(4, 2048, False))

    def test_what_a_multiplier_and_a_residual_make(self):
        shapes = [(700,), (3, 7), (40,), (200,)]
        residuals = values(shapes, 5)
        self.compared(values(shapes, 1), Code(4, 512, True), residuals, 0.3)
        self.compared(values(shapes, 1), Code(6, 128, False), residuals)

    def test_threads_share_long_tensors(self):
        shapes = [(7,), (2**16 + 1,)]
        self.compared(values(shapes, 3), Code(4, 512, True), values(shapes, 4), 1.0, (1, 3))

    def test_extreme_blocks(self):
        x, places = gradient(128), np.arange(128)
        rows = [
            x * FLOAT(1e30),
            x * FLOAT(2e-25),
            np.where(places == 5, FLOAT(1e37), x * FLOAT(1e-30)).astype(FLOAT),
            np.where(places < 2, FLOAT(1), FLOAT(0)),
            np.full(128, -(2.0**-80), FLOAT),
            np.full(128, np.nextafter(FLOAT(2.0**-80), FLOAT(0)), FLOAT),
            np.full(128, -0.0, FLOAT),
        ]
        self.compared(rows, Code(4, 128, False))
        self.compared([np.concatenate(rows)], Code(4, 128, True), [np.concatenate(rows[::-1])])

    def test_what_is_not_finite(self):
        for bad in (np.inf, -np.inf, np.nan):
            x = gradient(1100).copy()
            x[600] = bad
            self.compared([x], Code(4, 512, True))


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_centroids_are_lloyd_s(bits):
    """Newton's method from Panter and Dite's guess: each is the mean of what is nearest to it."""
    m = 2 ** (bits - 1)
    c = np.interp((np.arange(m) + 0.5) / m, *_distribution(np.sqrt(3)))
    erfc = np.vectorize(math.erfc)
    for _ in range(30):
        edges = np.concatenate([[0.0], (c[1:] + c[:-1]) / 2])
        density = np.append(np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi), 0.0)
        beyond = np.append(erfc(edges / math.sqrt(2)) / 2, 0.0)
        mass = beyond[:-1] - beyond[1:]
        mean = (density[:-1] - density[1:]) / mass
        lower = density[:-1] * (mean - edges) / mass / 2 * (np.arange(m) > 0)
        upper = np.append(density[1:-1] * (edges[1:] - mean[:-1]) / mass[:-1] / 2, 0.0)
        slopes = np.diag(lower + upper) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1)
        c = c + np.linalg.solve(np.eye(m) - slopes, mean - c)
    np.testing.assert_allclose(lloyd.CENTROIDS[bits], c, rtol=0, atol=6e-9)


def _distribution(sigma):
    """Of a half normal: its probabilities and where they are reached."""
    x = np.linspace(0, 8 * sigma, 100_001)
    return np.vectorize(math.erf)(x / sigma / math.sqrt(2)), x
