"""Sets of indices in few bits: native, reference and NumPy write and read the same words."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from ops_cases import SameEverywhere, everywhere

from grace_tf import ops
from grace_tf.ops import index_sets
from grace_tf.ops.backend import native

pytestmark = pytest.mark.rotated

needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())

# Whole words and not, plain bitmaps and not, from one element to all.
SIZES = [(1, 1), (2, 1), (31, 1), (32, 32), (33, 5), (64, 16), (257, 2), (1009, 10), (1009, 300)]
SIZES += [(4096, 1024), (4096, 1025), (70_001, 997), (20_011, 4999), (1 << 17, 1)]
LENGTHS, KS = (list(each) for each in zip(*SIZES))


def drawn(seed, n, k):
    """k of the numbers below n, ascending; or the first, or the last ones."""
    if seed < 2:
        return np.arange(k) + seed * (n - k)
    return np.sort(np.random.default_rng(seed).choice(n, k, replace=False))


def words_of(bits):
    """Bits to words, the first bit lowest."""
    padded = np.zeros(-(-len(bits) // 32) * 32, np.uint8)
    padded[: len(bits)] = bits
    return np.packbits(padded, bitorder="little").view("<i4")


def elias_fano(indices, n, k):
    """The words of a set, as the definition reads."""
    low = 0
    while k * 2 ** (low + 1) <= n:
        low += 1
    lows, bitmap = np.zeros(k * low, np.uint8), np.zeros(k + (n - 1) // 2**low, np.uint8)
    for i, index in enumerate(indices):
        for b in range(low):
            lows[i * low + b] = index >> b & 1
        bitmap[(index >> low) + i] = 1
    code = np.concatenate([words_of(lows), words_of(bitmap)])
    plain = np.zeros(n, np.uint8)
    plain[indices] = 1
    return words_of(plain) if len(words_of(plain)) <= len(code) else code


def listed(each):
    return tf.constant(np.concatenate(each), tf.int32)


class IndexSetsTest(SameEverywhere):
    def test_words_are_those_of_the_definition_and_decode(self):
        for seed in range(3):
            sets = [drawn(seed, n, k) for n, k in SIZES]
            (words,) = self.same_everywhere(
                functools.partial(index_sets.pack_list, listed(sets), None, LENGTHS, KS), "pack"
            )
            wanted = [elias_fano(own, n, k) for own, (n, k) in zip(sets, SIZES)]
            self.assertEqual([len(w) for w in wanted], [index_sets.index_words(*s) for s in SIZES])
            self.assert_same_bits(words, np.concatenate(wanted), f"seed {seed}")
            two = tf.constant(np.stack([words, words]))
            (indices,) = self.same_everywhere(
                functools.partial(index_sets.unpack_list, two, LENGTHS, KS), "unpack"
            )
            self.assertAllEqual(indices, np.stack([np.concatenate(sets)] * 2))

    def test_entries_beyond_the_count_leave_no_bit_and_are_outside(self):
        draw = np.random.default_rng(7)
        counts = np.array([draw.integers(-1, k + 2) for k in KS], np.int32)
        used = np.clip(counts, 0, KS)
        sets = [drawn(3, n, k) for n, k in SIZES]
        spoilt = [np.where(np.arange(len(s)) < u, s, 3) for s, u in zip(sets, used)]
        (words,) = self.same_everywhere(
            lambda: index_sets.pack_list(listed(spoilt), tf.constant(counts), LENGTHS, KS), "pack"
        )
        wanted = [elias_fano(s[:u], n, k) for s, u, (n, k) in zip(sets, used, SIZES)]
        self.assert_same_bits(words, np.concatenate(wanted), "words")
        indices = index_sets.unpack_list(tf.constant(words)[None], LENGTHS, KS)[0]
        outside = [np.where(np.arange(k) < u, s, n) for s, u, (n, k) in zip(sets, used, SIZES)]
        self.assertAllEqual(indices, np.concatenate(outside))

    def test_any_words_decode_alike(self):
        total = sum(index_sets.index_words(n, k) for n, k in SIZES)
        for seed in range(3):
            draw = np.random.default_rng(seed)
            words = draw.integers(-(2**31), 2**31, [3, total]).astype(np.int32)
            words[1] &= draw.integers(-(2**31), 2**31, total).astype(np.int32)
            words[2] = -1 if seed else 0
            (indices,) = self.same_everywhere(
                functools.partial(index_sets.unpack_list, tf.constant(words), LENGTHS, KS), "any"
            )
            most = np.repeat(LENGTHS, KS)
            self.assertTrue(((indices >= 0) & (indices <= most)).all())

    def test_scatter_is_scatter_sum_of_the_sets_times_the_factor(self):
        draw = np.random.default_rng(1)
        rows, values, indices = [], [], []
        for w in range(3):
            sets = [drawn(10 + w, n, k) for n, k in SIZES]
            rows.append(index_sets.pack_list(listed(sets), None, LENGTHS, KS))
            indices.append(sets)
            values.append([draw.normal(size=k).astype(np.float32) for k in KS])
        counts = np.array([[draw.integers(0, k + 1) for k in KS] for _ in range(3)], np.int32)
        words = tf.stack(rows)
        flat = tf.constant(np.stack([np.concatenate(v) for v in values]))
        for count in (None, tf.constant(counts)):
            wanted = []
            for i, n in enumerate(LENGTHS):
                total = ops.scatter_sum(
                    tf.constant(np.stack([v[i] for v in values])),
                    tf.constant(np.stack([s[i] for s in indices]), tf.int32),
                    None if count is None else count[:, i],
                    n,
                )
                wanted.append(total * 0.3)
            got = functools.partial(
                index_sets.scatter_list,
                *(flat, words, count, KS, [(n,) for n in LENGTHS], tf.constant(0.3)),
            )
            for name, (totals, finite) in everywhere(got):
                self.assertTrue(finite)
                for total, want in zip(totals, wanted):
                    self.assert_same_bits(total, want.numpy(), name)

    def test_the_size_is_near_the_entropy(self):
        for share in (1000, 100, 33, 10, 5, 3, 2):
            n, k = 1_000_000, 1_000_000 // share
            entropy = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
            entropy /= math.log(2)
            bits = 32 * index_sets.index_words(n, k)
            self.assertLessEqual(entropy, bits)
            self.assertLess(bits / k, entropy / k + 0.7, share)
        self.assertEqual(4 * index_sets.index_words(1_000_000, 10_000), 10_704)
        self.assertEqual(4 * index_sets.index_words(1_000_000, 300_000), 125_000)

    @needs_native
    def test_faults_are_named(self):
        def packed(indices, lengths=(7, 9), ks=(2, 2)):
            return index_sets.pack_list(tf.constant(indices), None, lengths, ks)

        with ops.using("native"):
            for indices, fault in (
                ([0, 7, 1, 2], "Index 7 is outside tensor 0 of the list, which has 7 elements"),
                ([0, 1, -1, 2], "Index -1 is outside tensor 1 "),
                ([0, 1, 3, 3], "tensor 1 of the list do not ascend"),
            ):
                with self.assertRaisesRegex(tf.errors.InvalidArgumentError, fault):
                    packed(indices)
            words = tf.zeros([1, 2 + 6], tf.int32)
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "Index 100 is outside"):
                index_sets.scatter_list(
                    tf.ones([1, 5]), words[:, :2], None, [5], [(100,)], tf.constant(1.0)
                )
            module = native._ops()
            empty = tf.zeros([0], tf.int32)
            for lengths, ks, size in (
                ([4], [5], 5),
                ([4], [0], 0),
                ([4, 4], [1], 1),
                ([4], [2], 3),
            ):
                with self.assertRaises(tf.errors.InvalidArgumentError):
                    module.grace_pack_index_list(
                        indices=tf.range(size), counts=empty, lengths=lengths, ks=ks, counted=False
                    )
            for words in (tf.zeros([1, 2], tf.int32), tf.zeros([1, 0], tf.int32)):
                with self.assertRaises(tf.errors.InvalidArgumentError):
                    module.grace_unpack_index_list(words=words, lengths=[4], ks=[2])

    def test_what_does_not_fit_is_refused(self):
        indices, words = tf.constant([0, 1]), tf.zeros([1, 1], tf.int32)
        values, one = tf.zeros([1, 2]), tf.constant(1.0)
        for call in (
            lambda: index_sets.pack_list(indices, None, [4], [3]),
            lambda: index_sets.pack_list(indices, None, [1], [2]),
            lambda: index_sets.pack_list(indices, indices, [4], [2]),
            lambda: index_sets.unpack_list(words, [4, 4], [2, 2]),
            lambda: index_sets.scatter_list(values, words, None, [3], [(4,)], one),
            lambda: index_sets.scatter_list(values[:0], words, None, [2], [(4,)], one),
            lambda: index_sets.scatter_list(values, words, tf.constant([[1, 1]]), [2], [(4,)], one),
        ):
            with self.assertRaises(ValueError):
                call()


if __name__ == "__main__":
    tf.test.main()
