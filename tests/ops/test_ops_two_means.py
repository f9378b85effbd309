"""Two means: native, reference and NumPy choose the same elements and give the same bits."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from sparse_list_cases import ListsTest, awkward, clustered, ks_of, sized

from grace_tf import ops
from grace_tf.ops import index_sets, two_means
from grace_tf.ops.backend import native

pytestmark = pytest.mark.rotated

needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())

LISTS = {
    "short": sized(*[(n,) for n in range(1, 36)]),
    "shapes": sized((), (4095,), (64, 64), (17, 241), (1, 1), (3, 5, 7, 11)),
    "large": sized((5,), (2**16 + 1,), (300_007,)),
    "awkward": sized((70,), (4097,), (2**16 + 1,), make=awkward),
    "clustered": sized((100_003,), (9000,), make=clustered),
    "one side": [abs(x) for x in sized((40,), (70_001,))] + [-abs(x) for x in sized((5000,))],
    "equal": [np.full(n, -2.0, np.float32) for n in (1, 100, 70_000)],
    "few": [np.where(np.arange(n) % 100 == 7, x, -0.0) for n in (900, 70_001) for x in sized((n,))],
}
LISTS["few"] = [x.astype(np.float32) for x in LISTS["few"]]


def numpy_encode(x, k):
    """The definition: (mean of each side, indices, whether they are positive)."""
    x = np.where(abs(x) < 2.0**-126, 0, x).ravel()
    sizes = [int((x > 0).sum()), int((x < 0).sum())]
    total = sum(sizes)
    shares = sizes
    if total > k:
        share = (2 * k * sizes[0] + total) // (2 * total)
        shares = [share, k - share]
    chosen = []
    for sign, share in zip((1, -1), shares):
        order = np.argsort(-np.where(sign * x > 0, abs(x), 0), kind="stable")
        chosen.append(order[:share])
    indices = np.sort(np.concatenate(chosen))
    means = []
    for sign, share in zip((1, -1), shares):
        row = np.zeros(1 << (k - 1).bit_length())
        values = x[indices].astype(np.float64)
        row[: len(indices)] = np.where(sign * values > 0, values, 0)
        while len(row) > 1:
            row = row[0::2] + row[1::2]
        means.append(np.float32(row[0] / max(share, 1)))
    return np.array(means, np.float32), indices.astype(np.int32), x[indices] > 0


def composed(xs, residuals, multiplier, ks):
    return list(two_means.two_means_list(xs, residuals, multiplier, ks))


class TwoMeansTest(ListsTest):
    @needs_native
    def test_native_is_the_reference(self):
        for name, arrays in LISTS.items():
            xs = [tf.constant(x) for x in arrays]
            mirrored = [0.3 * tf.constant(x.ravel()[::-1].reshape(x.shape)) for x in arrays]
            for ratio in (0.01, 0.4, 1.0) if name in ("short", "shapes", "few") else (0.01,):
                ks = ks_of(arrays, ratio)
                for residuals, multiplier in ((None, 1.0), (None, 0.7), (mirrored, 3.7)):
                    call = functools.partial(composed, xs, residuals, multiplier, ks)
                    self.compare(call, call, f"{name}, ratio {ratio}, {multiplier}")

    @needs_native
    def test_what_is_not_finite_is_told(self):
        x = sized((5000,))[0]
        for bad in (np.nan, np.inf, -np.inf):
            x[4321] = bad
            with ops.using("native"):
                self.assertFalse(two_means.two_means_list([x], None, 1.0, [50]).finite)

    def test_it_is_the_definition(self):
        for name, arrays in LISTS.items():
            if name == "awkward":
                arrays = [np.clip(x, -1e38, 1e38) for x in arrays]
            for ratio in (0.01, 0.3):
                ks = ks_of(arrays, ratio)
                got = two_means.two_means_list(arrays, None, 1.0, ks)
                at = word = 0
                for i, (x, k) in enumerate(zip(arrays, ks)):
                    means, indices, positive = numpy_encode(x, k)
                    self.assertEqual(got.counts[i], len(indices), name)
                    self.assert_same_bits(got.means[2 * i : 2 * i + 2], means, name)
                    own = got.indices[at : at + k].numpy()
                    self.assertAllEqual(own[: len(indices)], indices, name)
                    self.assertFalse(own[len(indices) :].any())
                    words = got.signs[word : word + -(-k // 32)].numpy()
                    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
                    self.assertAllEqual(np.flatnonzero(bits), np.flatnonzero(positive), name)
                    at, word = at + k, word + -(-k // 32)

    def test_what_is_sent_decodes_to_the_means(self):
        arrays = LISTS["shapes"]
        ks, shapes = ks_of(arrays, 0.1), [x.shape for x in arrays]
        lengths = [x.size for x in arrays]
        rows = []
        for w in range(3):
            got = two_means.two_means_list([np.float32(w + 1) * x for x in arrays], None, 1.0, ks)
            words = index_sets.pack_list(got.indices, got.counts, lengths, ks)
            rows.append((got.means, got.signs, words, got.counts))
        parts = [tf.stack(each) for each in zip(*rows)]
        wanted = []
        for x, k in zip(arrays, ks):
            total = np.zeros(x.size, np.float32)
            for w in range(3):
                means, indices, positive = numpy_encode(np.float32(w + 1) * x, k)
                total[indices] += np.where(positive, means[0], means[1])
            wanted.append(total.reshape(x.shape) * np.float32(0.3))
        for implementation in ("reference", "native") if native.available() else ("reference",):
            with ops.using(implementation):
                totals, finite = two_means.scatter_means_list(*parts, ks, shapes, tf.constant(0.3))
            self.assertTrue(finite)
            for total, want in zip(totals, wanted):
                self.assert_same_bits(total, want, implementation)

    def test_what_does_not_fit_is_refused(self):
        x, one = tf.zeros([4]), tf.constant(1.0)
        means, row, count = tf.zeros([1, 2]), tf.zeros([1, 1], tf.int32), tf.constant([[1]])
        scatter = two_means.scatter_means_list
        for call in (
            lambda: two_means.two_means_list([x], None, 1.0, [5]),
            lambda: two_means.two_means_list([x], [x, x], 1.0, [1]),
            lambda: scatter(means[:, :1], row, row, count, [2], [(4,)], one),
            lambda: scatter(means, row, row, tf.constant([[1], [1]]), [2], [(4,)], one),
            lambda: scatter(means, row, row, count, [2], [(70,)], one),
        ):
            with self.assertRaises(ValueError):
                call()

    @needs_native
    def test_the_kernels_check_for_themselves(self):
        module, x = native._ops(), tf.zeros([4])
        row = dict(
            means=tf.zeros([1, 2]),
            signs=tf.zeros([1, 1], tf.int32),
            words=tf.zeros([1, 1], tf.int32),
            counts=tf.ones([1, 1], tf.int32),
            factor=tf.constant(1.0),
        )
        told = dict(N=1, ks=[2], ranks=[1], dims=[4])
        for call in (
            lambda: module.grace_two_means_list(xs=[x], residuals=[], multiplier=1.0, ks=[5]),
            lambda: module.grace_two_means_list(xs=[x], residuals=[], multiplier=1.0, ks=[0]),
            lambda: module.grace_scatter_means_list(**{**row, **told, "ks": [0]}),
            lambda: module.grace_scatter_means_list(**{**row, **told, "dims": [70]}),
            lambda: module.grace_scatter_means_list(**{**row, **told, "means": tf.zeros([2, 2])}),
            lambda: module.grace_scatter_means_list(**row, **told),  # a count without its bit
        ):
            # On the CPU, since a GPU's kernels raise no errors.
            with tf.device("/CPU:0"), self.assertRaises(tf.errors.InvalidArgumentError):
                call()


if __name__ == "__main__":
    tf.test.main()
