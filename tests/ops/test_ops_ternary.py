"""Ternary digits: native, reference and NumPy agree bit for bit."""

import itertools

import numpy as np
import numpy_ops
import pytest
import tensorflow as tf
from ops_cases import SameAsWanted, gradient

from grace_tf import ops
from grace_tf.ops import dispatch
from grace_tf.ops.backend import native
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.codes import ternary

pytestmark = pytest.mark.rotated

needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())

LENGTHS = (1, 2, 19, 20, 21, 31, 32, 33, 257, 319, 320, 321, 1999, 2048, 2053)
SHAPES = [*[(n,) for n in LENGTHS], (), (3, 7), (2, 16, 16)]
WIDTHS = (None, 2, 3, 4, 5, 16)


def tensors(shapes, seed=0):
    """Normal numbers, zeros, denormals, ties; the second of equal elements, the third of zeros."""
    xs = [np.roll(gradient(int(np.prod(s)) + 1)[1:], seed).reshape(s) for s in shapes]
    if len(xs) > 2:
        xs[1], xs[2] = np.full_like(xs[1], 0.3), np.zeros_like(xs[2])
    return [tf.constant(x) for x in xs]


def key_for(shapes, seed=7):
    return ListKey(seed, tf.constant(3), 5, tuple(9 * i % 40 for i in range(len(shapes))), 2)


def digits_of(bits):
    return 20 if bits is None else 32 // bits


def places(n, bits):
    """The word and the digit in it of each of n elements."""
    digits, i = digits_of(bits), np.arange(n)
    first = i // (16 * digits) * (16 * digits)
    words = np.minimum(16, -(-(n - first) // digits))
    return first // digits + (i - first) % words, (i - first) // words


def pack(values, bits):
    """Digits to words, each a sum of Python's integers."""
    numbers = [0] * -(-len(values) // digits_of(bits))
    for value, word, digit in zip(values.tolist(), *places(len(values), bits)):
        worth = 3 ** (19 - int(digit)) if bits is None else 2 ** (bits * int(digit))
        numbers[word] += value * worth
    if bits is None:  # the nearest integer to the fraction of 2^32
        numbers = [(2 * v * 2**32 + 3**20) // (2 * 3**20) for v in numbers]
    return np.array(numbers, np.int64).astype(np.int32)


def unpack(words, n, bits):
    word, digit = places(n, bits)
    numbers = words.astype(np.int64)[word]
    if bits is None:
        power = np.array([3 ** int(d) for d in digit], object)
        fraction = (words[word].astype(object) * power + 2**31) % 2**32 - 2**31
        return np.array([(f > 2**32 // 6) * 1 - (f < -(2**32 // 6)) for f in fraction], np.int64)
    for d in range(digits_of(bits)):  # the lower digits out of the way
        low = (numbers + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        numbers = np.where(digit > d, (numbers - low) >> bits, numbers)
    return (numbers + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def scale(x, clip):
    """Of float32 x [n], in the stated order of sums."""

    def total(values):
        sums = []
        for start in range(0, len(values), 2048):
            chunk = values[start : start + 2048]
            lanes = np.zeros(16)
            for row in np.pad(chunk, (0, -len(chunk) % 16)).reshape(-1, 16):
                lanes = lanes + row
            sums.append(pairs(lanes))
        return pairs(np.array(sums))

    largest = numpy_ops.magnitude(x).max().view(np.float32)
    if clip:
        exact, each = numpy_ops.flush(x).astype(np.float64), 1.0 / len(x)
        mean, square = total(exact) * each, total(exact * exact) * each
        variance = square - mean * mean
        if variance > square * 2.0**-32:
            largest = min(largest, np.float32(np.sqrt(variance) * np.float32(clip)))
    return np.float32(0 if largest < 2.0**-110 else largest)


def pairs(x):
    x = np.pad(x, (0, (1 << (len(x) - 1).bit_length()) - len(x)))
    while len(x) > 1:
        x = x[0::2] + x[1::2]
    return x[0]


def digits(x, own, scale, key):
    inverse = np.float32(0) if scale < 2.0**-110 else numpy_ops.flush(np.float32(1) / scale)
    size = np.minimum(numpy_ops.flush(np.abs(x)), own)
    drawn = size * inverse + numpy_ops.coarse_uniform(len(x), key) >= 1
    return np.where(np.signbit(x), -1, 1) * drawn


class TritsTest(SameAsWanted):
    def test_scales(self):
        xs = tensors(SHAPES)
        for clip in (None, 2.5, 0.1):
            flat = [x.numpy().reshape(-1) for x in xs]
            wanted = np.array([scale(x, clip) for x in flat])
            self.everywhere(
                lambda clip=clip: ternary.scales_of(xs, 1.0, clip),
                [wanted, np.bool_(True)],
                f"clip {clip}",
            )
        self.assertEqual(wanted[1], np.float32(0.3))
        self.assertEqual(wanted[2], 0)

    def test_scales_of_products_and_of_long_tensors(self):
        xs = tensors([(70_001,), (33,), (5,), (4097,)], 3)
        flat = [(x * np.float32(0.7)).numpy().reshape(-1) for x in xs]
        self.everywhere(
            lambda: ternary.scales_of(xs, 0.7, 2.5),
            [np.array([scale(x, 2.5) for x in flat]), np.bool_(True)],
            "long",
        )

    def test_scales_of_all_magnitudes(self):
        for power in (-140, -120, -112, -60, 60, 100):
            xs = [tf.constant(gradient(700) * np.float32(2.0) ** power)]
            wanted = np.array([scale(xs[0].numpy(), 2.5)])
            self.everywhere(
                lambda xs=xs: ternary.scales_of(xs, 1.0, 2.5), [wanted, np.bool_(True)], f"{power}"
            )

    @pytest.mark.slow
    def test_encode_and_decode(self):
        xs, key = tensors(SHAPES), key_for(SHAPES)
        flat = [x.numpy().reshape(-1) for x in xs]
        own = np.array([scale(x, 2.5) for x in flat])
        for scales in (own, (1.5 * own).astype(np.float32)):
            each = [
                digits(x, o, s, ops.Key(7, 3, 5, v, 2))
                for x, o, s, v in zip(flat, own, scales, key.variables)
            ]
            for bits in WIDTHS[::2] if scales is own else WIDTHS[1::2]:
                words = np.concatenate([pack(d, bits) for d in each])
                self.everywhere(
                    lambda s=scales, b=bits: ternary.encode(
                        xs, 1.0, tf.constant(own), tf.constant(s), b, key
                    ),
                    [words],
                    f"{bits} bits",
                    (3,),
                )
                totals = [(d * s).astype(np.float32) for d, s in zip(each, scales)]
                self.everywhere(
                    lambda s=scales, b=bits, w=words: ternary.decode(
                        tf.constant(w[None]), tf.constant(s[None]), SHAPES, 1.0, b
                    ),
                    [*[t.reshape(s) for t, s in zip(totals, SHAPES)], np.bool_(True)],
                    f"{bits} bits, decoded",
                    (3,),
                )

    def test_any_words_of_several_workers(self):
        rng = np.random.default_rng(4)
        shapes = [(1,), (321,), (67, 71)]
        for bits, factor in itertools.product(WIDTHS, (1.0, 1 / 3)):
            counts = [ternary.word_count(int(np.prod(s)), bits) for s in shapes]
            words = rng.integers(-(2**31), 2**31, [3, sum(counts)]).astype(np.int32)
            scales = np.array([[0.3, 2, 1e-38], [1e-37, -1, 5], [7, 2.0**-115, 0]], np.float32)
            wanted = []
            for i, (part, shape) in enumerate(
                zip(np.split(words, np.cumsum(counts)[:-1], 1), shapes)
            ):
                total = np.zeros(int(np.prod(shape)), np.float32)
                for own, c in zip(part, scales[:, i]):
                    value = unpack(own, total.size, bits).astype(np.float32)
                    total = numpy_ops.flush(
                        total + value * (c if c >= 2.0**-110 else np.float32(0))
                    )
                wanted.append((total * np.float32(factor)).reshape(shape))
            self.everywhere(
                lambda w=words, s=scales, f=factor, b=bits: ternary.decode(
                    tf.constant(w), tf.constant(s), shapes, f, b
                ),
                [*wanted, np.bool_(True)],
                f"{bits} bits",
            )

    def test_sums_of_fields_are_the_fields_of_sums(self):
        xs = tensors([(333,)], 1)
        one = tf.ones([1])
        for bits, workers in ((2, 1), (3, 3), (4, 7), (5, 15)):
            words = [
                ternary.encode(xs, 1.0, one, one, bits, key_for(xs, w)) for w in range(workers)
            ]
            each = [ternary.decode(w[None], one[None], [[333]], 1.0, bits)[0][0] for w in words]
            total, _ = ternary.decode(tf.add_n(words)[None], one[None], [[333]], 1.0, bits)
            self.assertAllEqual(total[0], tf.add_n(each))
            # The most that they have room for, of either sign.
            for sign in (1.0, -1.0):
                full = ternary.encode([tf.fill([333], sign)], 1.0, one, one, bits, key_for(xs))
                total, _ = ternary.decode((workers * full)[None], one[None], [[333]], 1.0, bits)
                self.assertAllEqual(total[0], tf.fill([333], workers * sign))

    def test_extreme_words_of_trits(self):
        one = tf.ones([1])
        for pattern in itertools.product((1.0, 0.0, -1.0), repeat=4):
            x = np.repeat(np.array(pattern, np.float32), 5)
            for other in (x, x[::-1]):
                words = ternary.encode([tf.constant(other)], 1.0, one, one, None, key_for(one))
                self.assertAllEqual(
                    ternary.decode(words[None], one[None], [[20]], 1.0, None)[0][0], other
                )

    def test_what_is_not_finite_is_flagged(self):
        for bad, how in itertools.product((np.nan, np.inf, -np.inf), ("native", "reference")):
            if how == "native" and not native.available():
                continue
            with ops.using(how):
                for at, clip in itertools.product((0, 2047, 2999), (None, 2.5)):
                    x = gradient(3000).copy()
                    x[at] = bad
                    self.assertFalse(ternary.scales_of([tf.ones([4]), x], 1.0, clip)[1])
                words = tf.zeros([2, 1], tf.int32)
                scales = tf.constant([[1.0], [bad if bad > 0 else np.nan]])
                self.assertFalse(ternary.decode(words, scales, [[3]], 1.0, None)[1])

    def test_the_padding_of_a_wire_never_spoils_the_flag(self):
        word = pack(np.array([0] + [1] * 19), None)  # ones beyond the only element
        huge = tf.constant([[3e38], [3e38]])
        totals, finite = ternary.decode(tf.constant([word, word]), huge, [[1]], 1.0, None)
        self.assertAllEqual(totals[0], [0.0])
        self.assertTrue(finite)

    def test_what_does_not_fit_is_refused(self):
        x, one = tf.ones([40]), tf.ones([1])
        key = key_for(one)
        for call in (
            lambda: ternary.word_count(5, 1),
            lambda: ternary.word_count(5, 17),
            lambda: ternary.encode([x], 1.0, tf.ones([2]), one, None, key),
            lambda: ternary.encode([x, x], 1.0, tf.ones([2]), tf.ones([2]), None, key),
            lambda: ternary.decode(tf.zeros([1, 3], tf.int32), one[None], [[40]], 1.0, None),
            lambda: ternary.decode(tf.zeros([2, 2], tf.int32), one[None], [[40]], 1.0, None),
            lambda: ternary.decode(tf.zeros([1, 2], tf.int32), tf.ones([1, 2]), [[40]], 1.0, None),
        ):
            with self.assertRaises(ValueError):
                call()

    @needs_native
    def test_one_node_an_operation(self):
        xs = tensors(SHAPES)

        def call():
            scales, _ = ternary.scales_of(xs, 1.0, 2.5)
            words = ternary.encode(xs, 1.0, scales, scales, None, key_for(SHAPES))
            return ternary.decode(words[None], scales[None], SHAPES, 1.0, None)

        self.assertTrue(dispatch.runs_here(xs))
        nodes = tf.function(call).get_concrete_function().graph.get_operations()
        self.assertEqual(sum(node.type.startswith("Grace>") for node in nodes), 3)


if __name__ == "__main__":
    tf.test.main()
