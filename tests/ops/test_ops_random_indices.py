"""Random indices: three witnesses give the same, and every subset is as likely as any other."""

import itertools
import math

import numpy as np
import numpy_ops
import pytest
import tensorflow as tf
from ops_cases import KEY, SameBits

from grace_tf import ops
from grace_tf.ops.backend import native

pytestmark = pytest.mark.rotated

LENGTHS = [*range(1, 40), 63, 64, 65, 255, 256, 257, 1000, 4097, 65537]
needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())


def random_indices(n, k, key):
    """In NumPy, one number after another."""
    b = math.isqrt(n - 1) + 1
    a = -(-n // b)
    rounds = 12 if n < 256 else 6
    words = numpy_ops.random_words(rounds // 2 * (a + b), key).view(np.uint32).tolist()
    tables = []
    for i in range(rounds):
        size, below = (a, b) if i % 2 else (b, a)
        tables.append([word * below >> 32 for word in words[:size]])
        words = words[size:]

    def permuted(number):
        left, right = divmod(number, b)
        for i, table in enumerate(tables):
            if i % 2:
                right = (right + table[left]) % b
            else:
                left = (left + table[right]) % a
        return left * b + right

    chosen = []
    for number in range(k):
        number = permuted(number)
        while number >= n:
            number = permuted(number)
        chosen.append(number)
    return np.sort(chosen).astype(np.int32)


def draws(n, k, count):
    """So many subsets, as a matrix of 0 and 1: of as many steps of one stream."""
    chosen = np.zeros([count, n], np.int64)
    for step in range(count):
        chosen[step, ops.random_indices(n, k, KEY._replace(step=step))] = 1
    return chosen


class RandomIndicesTest(SameBits):
    def test_three_witnesses_agree(self):
        for n in LENGTHS:
            for k in {1, -(-n // 3), n}:
                wanted = random_indices(n, k, KEY)
                self.assertLen(set(wanted), k)
                for name in ("reference", "native") if native.available() else ("reference",):
                    with ops.using(name):
                        got = ops.random_indices(n, k, KEY)
                    self.assert_same_bits(got, wanted, f"{name}, {k} of {n}")

    @needs_native
    def test_a_long_vector_and_any_number_of_threads(self):
        for n, k in [(2**31 - 1, 5), (3 * 10**6, 10**5), (2**22 + 1, 70000)]:
            with ops.using("reference"):
                wanted = ops.random_indices(n, k, KEY)
            for isa, threads in itertools.product(("generic", "auto"), (1, 3)):
                native.set_isa(isa)
                native.set_threads(threads)
                self.assert_same_bits(ops.random_indices(n, k, KEY), wanted, f"{k} of {n}")

    def test_compiled_by_xla(self):
        for n, k in [(1, 1), (3, 2), (1000, 30)]:
            compiled = tf.function(lambda n=n, k=k: ops.random_indices(n, k, KEY), jit_compile=True)
            self.assert_same_bits(compiled(), random_indices(n, k, KEY), f"{k} of {n}")

    def test_a_symbolic_step(self):
        draw = tf.function(lambda step: ops.random_indices(99, 7, KEY._replace(step=step)))
        for step in (0, 3, 2**32 - 1):
            wanted = random_indices(99, 7, KEY._replace(step=step))
            self.assert_same_bits(draw(tf.constant(step, tf.int64)), wanted)

    def test_every_subset_is_as_likely(self):
        # The quantiles of chi-square for 1 - 10^-4 with as many degrees of freedom.
        for n, k, quantile in [(3, 1, 18.4), (4, 2, 25.7), (5, 2, 33.7), (6, 3, 50.8)]:
            count = 4000
            subsets = draws(n, k, count) @ (1 << np.arange(n))
            seen = np.bincount(subsets)
            seen = seen[[sum(1 << i for i in s) for s in itertools.combinations(range(n), k)]]
            self.assertEqual(seen.sum(), count)
            expected = count / len(seen)
            self.assertLess(np.sum((seen - expected) ** 2 / expected), quantile, f"{k} of {n}")

    def test_every_element_and_every_pair_is_as_likely(self):
        for n, k in [(16, 5), (40, 8), (100, 60), (300, 30)]:
            count = 3000
            chosen = draws(n, k, count)
            pairs = (chosen.T @ chosen)[np.triu_indices(n, 1)]
            for seen, p in [(chosen.sum(0), k / n), (pairs, k * (k - 1) / (n * (n - 1)))]:
                # A sum of as many squares, nearly independent, each of variance 1 on average.
                squares = (seen - count * p) ** 2 / (count * p * (1 - p))
                self.assertLess(abs(squares.mean() - 1), 5 * (2 / len(seen)) ** 0.5, f"{k} of {n}")

    def test_what_cannot_be_drawn_is_refused(self):
        for n, k in [(0, 1), (5, 0), (5, 6), (2**31, 1)]:
            with self.assertRaises(ValueError):
                ops.random_indices(n, k, KEY)


if __name__ == "__main__":
    tf.test.main()
