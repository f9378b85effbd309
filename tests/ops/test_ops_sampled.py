"""Selection by a sampled threshold: native, reference and NumPy agree bit for bit."""

import functools
import itertools

import numpy as np
import numpy_ops
import pytest
import tensorflow as tf
from sparse_list_cases import ListsTest, list_key, lists, sized, streams

from grace_tf import ops
from grace_tf.ops import sampled_top_k
from grace_tf.ops.backend import native
from grace_tf.ops.reference import sampled_top_k as reference
from grace_tf.ops.sampled_top_k import Momentum, Sampling, sampling_of

pytestmark = pytest.mark.rotated

needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())
SELECTED = ("short", "shapes", "large", "awkward", "clustered", "equal", "zeros", "nan")
f32 = np.float32


def samplings_of(xs, ratio, sample=0.01):
    return [sampling_of(x.size, max(1, int(ratio * x.size)), sample) for x in xs]


def flipped(xs, factor):
    return [tf.constant(factor * x.ravel()[::-1].reshape(x.shape), tf.float32) for x in xs]


def selected_by_numpy(x, sampling, key):
    """(values, indices) of one vector, in NumPy, as `grace_tf.ops.sampled_top_k` defines them."""
    k, stride, size, rank = sampling
    magnitude = numpy_ops.magnitude(x).astype(np.int64)
    largest = np.sort(np.argsort(-magnitude, kind="stable")[:k])
    floor = 0x00800000
    if stride > 1:
        word = int(numpy_ops.random_words(1, key).view(np.uint32)[0])
        sample = magnitude[(word * stride >> 32) :: stride][:size]
        threshold = np.uint32(min(np.sort(sample)[::-1][rank - 1], 0x7F800000)).view(f32)
        for round_ in range(11):
            floor = max(int(threshold.view(np.uint32)), 0x00800000)
            passing = np.sum((magnitude[largest] >= floor) & (magnitude[largest] <= 0x7F800000))
            if 5 * int(passing) >= 4 * k or round_ == 10:
                break
            threshold = threshold * f32(0.8)
    sent = largest[(magnitude[largest] >= floor) & (magnitude[largest] <= 0x7F800000)]
    return x[sent], sent


class SampledTest(ListsTest):
    def call(self, xs, args, samplings, momentum):
        key = list_key(len(xs))
        return tuple(sampled_top_k.sampled_k_list(xs, *args, samplings, key, momentum))

    def same(self, name, arrays, ratio, residuals, multiplier, momentum=None, sample=0.01):
        xs = [tf.constant(x) for x in arrays]
        run = functools.partial(
            self.call, xs, (residuals, multiplier), samplings_of(arrays, ratio, sample), momentum
        )
        self.compare(run, run, f"{name} at {ratio} times {multiplier}")

    @needs_native
    def test_native_is_reference_without_momentum(self):
        for (name, arrays), ratio in itertools.product(lists(), (0.01, 0.3)):
            self.same(name, arrays, ratio, None, 1.0)
            self.same(name, arrays, ratio, flipped(arrays, 0.3), 3.7)

    @needs_native
    def test_native_is_reference_with_momentum(self):
        for name, arrays in lists():
            for factor, nesterov, masked, limit, multiplier in (
                (0.9, False, True, None, 1.0),
                (0.9, True, False, None, 3.0),
                (0.7, True, True, 0.5, 1.0),
                (0.0, False, True, 2.0, 3.0),
            ):
                momentum = Momentum(flipped(arrays, 0.1), factor, nesterov, masked, limit)
                residuals = flipped(arrays, -0.7)
                self.same(name, arrays, 0.02, residuals, multiplier, momentum)

    @needs_native
    def test_native_is_reference_at_the_ratio_of_the_paper(self):
        arrays = sized((300, 400), (7001,), (1999,), (65536,), (65537,))
        momentum = Momentum(flipped(arrays, 0.1), 0.9, False, True, None)
        self.same("small ratio", arrays, 0.001, flipped(arrays, 1.0), 1.0, momentum)
        for ratio in (0.25, 0.5, 0.9, 1.0):
            self.same("large ratio", arrays, ratio, flipped(arrays, 1.0), 1.0, momentum)

    def test_it_is_what_numpy_finds(self):
        for name, arrays in lists():
            if name == "short":
                arrays = arrays[::9]
            for ratio in (0.01, 0.3):
                samplings = samplings_of(arrays, ratio)
                found = self.call([tf.constant(x) for x in arrays], (None, 1.0), samplings, None)
                ends = np.cumsum([s.k for s in samplings])[:-1]
                parts = zip(np.split(found[0], ends), np.split(found[1], ends), found[2].numpy())
                keys = streams(list_key(len(arrays)))
                for (values, indices, count), x, own, key in zip(parts, arrays, samplings, keys):
                    values_, indices_ = selected_by_numpy(x.ravel(), own, key)
                    case = f"{name}, {x.size} elements at {ratio}"
                    self.assertEqual(count, len(values_), case)
                    self.assertAllEqual(indices[:count], indices_, case)
                    self.assert_same_bits(values[:count], values_, case)
                    self.assertFalse(np.any(values[count:]) or np.any(indices[count:]), case)

    def test_the_momentum_is_that_of_numpy(self):
        (x,), u, v = sized((70, 90)), f32(0.1) * np.ones((70, 90), f32), sized((70, 90))[0][::-1]
        for nesterov, masked in itertools.product((False, True), repeat=2):
            momentum = Momentum([tf.constant(u)], 0.9, nesterov, masked, 5.0)
            (sampling,) = samplings_of([x], 0.02)
            found = sampled_top_k.sampled_k_list([x], [v], 1.0, [sampling], list_key(1), momentum)
            norm = numpy_ops.block_scales(x.ravel(), x.size, "l2")[0]
            g = x * f32(np.float64(5) / np.float64(norm))
            next_u = f32(0.9) * u + g
            acc = (v + g) + f32(0.9) * next_u if nesterov else v + next_u
            _, sent = selected_by_numpy(acc.ravel(), sampling, streams(list_key(1))[0])
            acc.flat[sent] = 0
            if masked:
                next_u.flat[sent] = 0
            self.assert_same_bits(found.states[0], next_u, f"u, nesterov {nesterov}")
            self.assert_same_bits(found.residuals_out[0], acc, f"v, nesterov {nesterov}")

    def test_samples_lie_in_their_tensors(self):
        for n, ratio, sample in itertools.product(
            (1, 2, 3, 31, 33, 257, 2001, 65537, 10**6, 2**31 - 1),
            (0.001, 0.01, 0.25, 0.5, 1.0),
            (0.0001, 0.01, 0.3, 1.0),
        ):
            k, stride, size, rank = sampling_of(n, max(1, int(ratio * n)), sample)
            self.assertEqual(stride % 2, 1)
            self.assertBetween(rank, 1, size)
            self.assertLessEqual(stride * size, n)
            self.assertGreaterEqual(size, sample * n * 0.9 if stride > 1 else n)
            self.assertTrue(stride == 1 or size * k >= 1.9 * n)

    def test_starts_are_spread_over_the_stride(self):
        starts = [int(reference._start(99, ops.Key(1, 0, step, 3, 0))) for step in range(400)]
        self.assertBetween(min(starts), 0, 5)
        self.assertBetween(max(starts), 93, 98)

    def test_a_norm_is_brought_down_to_its_limit(self):
        x = sized((1000,))[0]
        norm = np.linalg.norm(x.astype(np.float64))
        self.assertAllClose(sampled_top_k.clip_factor(x, 2.0), 2.0 / norm, rtol=1e-6)
        self.assertEqual(sampled_top_k.clip_factor(x, 1.01 * norm), 1.0)
        self.assertGreater(sampled_top_k.clip_factor(np.full(9, 3e38, f32), 8.0), 0)
        self.assertEqual(sampled_top_k.clip_factor(np.zeros(3, f32), 1.0), 1.0)

    def test_what_does_not_fit_together_is_refused(self):
        (x,), key = sized((100,)), list_key(1)
        plain, momentum = Sampling(1, 1, 100, 1), Momentum([x], 0.9, False, True, None)
        for arguments, sentence in (
            ((None, 1.0, [plain], key, momentum), "Momentum accumulates in residuals"),
            ((None, 2.0, [plain], key), "A multiplier comes with residuals"),
            (([x], 1.0, [plain._replace(k=101)], key), "A count must be from 1 to 100"),
            (([x], 1.0, [plain, plain], key), "There are 2 counts for 1 tensors"),
            (([x], 1.0, [plain], list_key(2)), "The key names 2 variables"),
            (([x], 1.0, [plain], key, momentum._replace(states=[x[:9]])), "shapes of xs"),
        ):
            with self.assertRaisesRegex(ValueError, sentence):
                sampled_top_k.sampled_k_list([x], *arguments)
