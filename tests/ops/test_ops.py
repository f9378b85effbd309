"""What the operations mean: each implementation gives NumPy's bits."""

import itertools

import numpy as np
import numpy_ops
import pytest
import tensorflow as tf
from ops_cases import KEY, LENGTHS, WIDTHS, SameBits, ballots, everything, gradient

from grace_tf import ops
from grace_tf.ops.backend import native

pytestmark = pytest.mark.rotated


def implementations():
    return ["reference", "native"] if native.available() else ["reference"]


class MeaningTest(SameBits):
    """Both implementations against NumPy."""

    def each(self):
        for name in implementations():
            with ops.using(name):
                yield name

    def test_known_words_of_philox(self):
        # The vectors of Random123's kat_vectors for philox4x32 with 10 rounds.
        ones = 0xFFFFFFFF
        self.assertEqual(
            numpy_ops.philox((0, 0), (0, 0, 0, 0)), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
        )
        self.assertEqual(
            numpy_ops.philox((ones, ones), (ones, ones, ones, ones)),
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        )
        self.assertEqual(
            numpy_ops.philox(
                (0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
            ),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        )
        zeros = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], np.uint32)
        for name in self.each():
            got = ops.random_words(4, ops.Key(0, 0, 0, 0, 0))
            self.assert_same_bits(got, zeros.view(np.int32), name)

    def test_random_words_and_uniforms(self):
        keys = [
            KEY,
            ops.Key(-1, 0xFFFFFFFF, 2**32 - 1, 2**24 - 1, 255),
            ops.Key(2**40 + 3, tf.constant(4), tf.constant(6, tf.uint32), 1, 2),
        ]
        for name in self.each():
            for key in keys:
                wanted = numpy_ops.random_words(131, key)
                self.assert_same_bits(ops.random_words(131, key), wanted, name)
                self.assert_same_bits(ops.uniform(131, key), numpy_ops.uniform(131, key), name)

    def test_random_normal_is_nearly_normal_and_fixed(self):
        x = ops.random_normal(20000, KEY).numpy()
        self.assertLess(abs(x.mean()), 5 / np.sqrt(20000))
        self.assertLess(abs(x.std() - 1), 0.02)
        self.assertLess(abs((np.abs(x) < 1).mean() - 0.683), 0.02)
        words = numpy_ops.random_words(24, KEY).view(np.uint32) >> 8
        wanted = (words.astype(np.float64).reshape(2, 12).sum(axis=1) * 2.0**-24 - 6).astype("f4")
        self.assert_same_bits(x[:2], wanted)

    def test_signs(self):
        special = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45], "f4")
        for name in self.each():
            self.assertEqual(int(ops.pack_signs(special)[0]), 0b01010011)
            for n in LENGTHS:
                x = gradient(n)
                words = ops.pack_signs(x)
                self.assert_same_bits(words, numpy_ops.pack_signs(x), name)
                self.assert_same_bits(
                    ops.unpack_signs(words, n), numpy_ops.unpack_signs(words.numpy(), n), name
                )

    def test_votes(self):
        for name in self.each():
            for workers, n in itertools.product((1, 2, 3, 4, 7, 8, 16), (1, 33, 2100)):
                words = ballots(workers, n)
                wanted = numpy_ops.vote_signs(words.numpy(), n)
                self.assert_same_bits(ops.vote_signs(words, n), wanted, f"{name} {workers} {n}")

    def test_scales(self):
        for name in self.each():
            for n, norm in itertools.product(LENGTHS, ("max", "l2")):
                for block in (1, 7, 64, 512, n, n + 9):
                    got = ops.block_scales(gradient(n), block, norm)
                    wanted = numpy_ops.block_scales(gradient(n), block, norm)
                    self.assert_same_bits(got, wanted, f"{name} {n} {block} {norm}")

    def test_scales_of_extremes(self):
        x = np.array([2.0**-111, 2.0**-110, 3e38, -np.inf, np.nan, 1e-45], np.float32)
        for _ in self.each():
            got = ops.block_scales(x, 1, "max").numpy()
            self.assertAllEqual(got, [0, 2.0**-110, x[2], np.inf, np.nan, 0])
            got = ops.block_scales(x[:4], 1, "l2").numpy()
            self.assertAllEqual(got, [0, 2.0**-110, x[2], np.inf])

    def test_quantize_and_back(self):
        for name in self.each():
            for n, (levels, bits), key in itertools.product((1, 33, 1000), WIDTHS, (KEY, None)):
                x, block = gradient(n), 100
                scales = numpy_ops.block_scales(x, block, "l2")
                words = numpy_ops.quantize(x, scales, levels, bits, block, key)
                got = ops.quantize(x, scales, levels, bits, block, key)
                self.assert_same_bits(got, words, f"{name} {n} {bits}")
                self.assertEqual(got.shape[0], ops.packed_words(n, bits))
                got = ops.dequantize(words, scales, n, levels, bits, block)
                wanted = numpy_ops.dequantize(words, scales, n, levels, bits, block)
                self.assert_same_bits(got, wanted, f"{name} {n} {bits} back")

    def test_huge_and_tiny_scales(self):
        for name, power in itertools.product(self.each(), (-120, -109, -100, 0, 100, 125, 127)):
            x = np.array([1, -0.75, 0.25, 0], np.float32) * np.float32(2.0**power)
            scales = numpy_ops.block_scales(x, 4, "max")
            words = numpy_ops.quantize(x, scales, 2, 3, 4, None)
            self.assert_same_bits(ops.quantize(x, scales, 2, 3, 4, None), words, f"{name} {power}")
            back = ops.dequantize(words, scales, 4, 2, 3, 4)
            if -110 <= power <= 126:
                self.assertAllEqual(back, np.array([1, -1, 0, 0]) * np.float32(2.0**power))

    def test_sum_of_quantized(self):
        for name in self.each():
            words, scales = np.random.default_rng(3), np.float32([[1.5, 2e-37], [1e-33, 3e38]])
            words = words.integers(-(2**31), 2**31, [2, ops.packed_words(90, 5)]).astype(np.int32)
            got = ops.dequantize_sum(words, scales, 90, 11, 5, 50)
            wanted = numpy_ops.dequantize_sum(words, scales, 90, 11, 5, 50)
            self.assert_same_bits(got, wanted, name)

    def test_top_k_on_hard_data(self):
        n = 20011
        rng = np.random.default_rng(1)
        clustered = np.float32(1e-3) * rng.standard_normal(n).astype(np.float32)
        clustered[5000:5400] += 100
        data = {
            "equal": np.full(n, -2.5, np.float32),
            "zero": np.zeros(n, np.float32),
            "clustered": clustered,
            "two values": np.where(rng.random(n) < 0.02, 2, 1).astype(np.float32),
            "ascending": np.arange(n, dtype=np.float32),
            "any bits": rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32),
            "denormal": rng.integers(0, 2**23, n, dtype=np.uint32).view(np.float32),
        }
        for (kind, x), k in itertools.product(data.items(), (1, 20, 200, 4999, n)):
            values, indices = numpy_ops.top_k(x, k)
            for name in self.each():
                got = ops.top_k(x, k)
                self.assert_same_bits(got[0], values, f"{name} {kind} {k}")
                self.assert_same_bits(got[1], indices, f"{name} {kind} {k}")

    def test_gather_and_scatter(self):
        values = np.float32([[1, 2, 3e-39], [1e8, -2, 5], [-1e8, 7, 7]])
        indices = np.int32([[0, 3, 4], [0, 3, 6], [0, 1, 2]])
        for name in self.each():
            for counts in (None, [3, 2, 1], [0, 9, -4]):
                wanted = numpy_ops.scatter_sum(
                    values, indices, None if counts is None else np.maximum(counts, 0), 7
                )
                own = None if counts is None else tf.constant(counts)
                self.assert_same_bits(ops.scatter_sum(values, indices, own, 7), wanted, name)
            x = gradient(50)
            self.assert_same_bits(ops.gather(x, indices[1]), x[indices[1]], name)

    def test_all_finite(self):
        for _ in self.each():
            x = np.zeros(1001, np.float32)
            self.assertTrue(ops.all_finite([x, np.ones([2, 3], np.float32)]))
            self.assertTrue(ops.all_finite([]))
            self.assertTrue(ops.all_finite([tf.zeros([0])]))
            for at, value in itertools.product((0, 500, 1000), (np.nan, np.inf, -np.inf)):
                x[:] = 3e38
                x[at] = value
                self.assertFalse(ops.all_finite([tf.ones([3]), x]))

    def test_graph_equals_eager_with_static_shapes(self):
        n, x = 513, tf.constant(gradient(513))
        for name in self.each():
            eager = everything(x, n, [100], [(7, 4)])
            graph = tf.function(everything).get_concrete_function(x, n, [100], [(7, 4)])
            for op, result in graph(x).items():
                self.assertTrue(graph.structured_outputs[op].shape.is_fully_defined(), op)
                self.assert_same_bits(result, eager[op], f"{name} {op}")

    def test_quantization_is_unbiased(self):
        x = tf.fill([4096], 0.3)
        scales = tf.ones([8])
        for _ in self.each():
            total = np.zeros(4096)
            for step in range(8):
                words = ops.quantize(x, scales, 1, 2, 512, KEY._replace(step=step))
                total += ops.dequantize(words, scales, 4096, 1, 2, 512).numpy()
            self.assertLess(abs(total.mean() / 8 - 0.3), 5 * np.sqrt(0.21 / (8 * 4096)))


class ErrorsTest(tf.test.TestCase):
    def test_each_wrong_argument_is_named(self):
        x, words = tf.zeros([40]), tf.zeros([2], tf.int32)
        cases = [
            (TypeError, "x must be float32", lambda: ops.pack_signs(tf.zeros([3], tf.float64))),
            (ValueError, "rank 1", lambda: ops.pack_signs(tf.zeros([3, 3]))),
            (ValueError, "at least one element", lambda: ops.pack_signs(tf.zeros([0]))),
            (ValueError, "words must hold 2", lambda: ops.unpack_signs(words[:1], 40)),
            (ValueError, "no norm 'l3'", lambda: ops.block_scales(x, 8, "l3")),
            (ValueError, "block must be", lambda: ops.block_scales(x, 0, "l2")),
            (ValueError, "scales must hold 5", lambda: ops.quantize(x, x, 1, 2, 8, KEY)),
            (ValueError, "levels must be", lambda: ops.quantize(x, x, 2, 2, 1, KEY)),
            (ValueError, "bits must be", lambda: ops.quantize(x, x, 2, 17, 1, KEY)),
            (ValueError, "draw", lambda: ops.uniform(3, KEY._replace(draw=256))),
            (ValueError, "variable", lambda: ops.uniform(3, KEY._replace(variable=2**24))),
            (ValueError, "k must be from 1 to 40", lambda: ops.top_k(x, 41)),
            (ValueError, "differ in shape", lambda: ops.scatter_sum([x], [words], None, 9)),
            (TypeError, "float32", lambda: ops.all_finite([words])),
            (ValueError, "native and reference", lambda: ops.using("fast").__enter__()),
        ]
        for error, message, call in cases:
            with self.assertRaisesRegex(error, message):
                call()


if __name__ == "__main__":
    tf.test.main()
