"""The fused operations on lists are their compositions, bit for bit."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from ops_cases import WIDTHS, SameBits, gradient, isas

from grace_tf import ops
from grace_tf.ops import quantization, signs
from grace_tf.ops.backend import native
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.quantization import Code

pytestmark = [
    pytest.mark.rotated,
    pytest.mark.skipif(not native.available(), reason=native.why_not()),
]

# Every length up to 130, the edges of blocks, chunks and pieces, scalars and shapes of many axes.
SHORT = [(n,) for n in range(1, 131)]
EDGES = [(), (511,), (2, 16, 16), (513,), (), (4095,), (64, 64), (17, 241), (3,)]
LONG = [(7,), (2**16 + 1,), (1, 1, 5), (300, 301), ()]


def values(shapes, seed):
    """Gradients among them zeros of both signs, denormals, ties and what becomes denormal."""
    rng = np.random.default_rng(seed)
    xs = []
    for i, shape in enumerate(shapes):
        x = np.roll(gradient(max(1, int(np.prod(shape)))), 5 * i + seed).copy()
        x[rng.random(x.size) < 0.1] *= np.float32(2.0**-126)
        x[1::19] = np.float32(1.3e-38)
        x[2::23] = np.float32(-1.2e-38)
        xs.append(x.reshape(shape))
    return [tf.constant(x) for x in xs]


def spoilt(xs, i, bad):
    """The same with one bad element, in the middle of x_i."""
    x = xs[i].numpy().reshape(-1)
    x[x.size // 2] = bad
    return [*xs[:i], tf.constant(x.reshape(xs[i].shape)), *xs[i + 1 :]]


def compensated(xs, residuals, multiplier):
    acc = [x if multiplier == 1.0 else x * multiplier for x in xs]
    return acc if residuals is None else [a + r for a, r in zip(acc, residuals)]


def quantize_composed(xs, residuals, multiplier, levels, bits, block, norm, key):
    words, scales, kept, finite = [], [], [], True
    for i, acc in enumerate(compensated(xs, residuals, multiplier)):
        flat = tf.reshape(acc, [-1])
        n = flat.shape[0]
        own = key and ops.Key(key.seed, key.worker, key.step, key.variables[i], key.draw)
        scales.append(ops.block_scales(flat, block or n, norm))
        words.append(ops.quantize(flat, scales[-1], levels, bits, block or n, own))
        back = ops.dequantize(words[-1], scales[-1], n, levels, bits, block or n)
        kept.append(tf.reshape(flat - back, acc.shape))
        finite &= bool(np.isfinite(acc.numpy()).all()) if tf.executing_eagerly() else True
    kept = None if residuals is None else kept
    return quantization.Quantized(
        tf.concat(words, 0), tf.concat(scales, 0), kept, tf.constant(finite)
    )


def rows_of(rows, sizes):
    return tf.split(rows, sizes, axis=1)


def dequantize_composed(words, scales, shapes, factor, levels, bits, block):
    sizes = [int(np.prod(shape)) for shape in shapes]
    words = rows_of(words, [ops.packed_words(n, bits) for n in sizes])
    scales = rows_of(scales, [-(-n // (block or n)) for n in sizes])
    return [
        tf.reshape(ops.dequantize_sum(w, c, n, levels, bits, block or n) * factor, shape)
        for w, c, n, shape in zip(words, scales, sizes, shapes)
    ]


def key_for(shapes):
    return ListKey(7, tf.constant(3), 5, tuple(9 * i % 40 for i in range(len(shapes))), 2)


class ListsTest(SameBits):
    def same(self, got, wanted, name):
        got, wanted = tf.nest.flatten(got), tf.nest.flatten(wanted)
        self.assertEqual(len(got), len(wanted), name)
        for i, (one, other) in enumerate(zip(got, wanted)):
            self.assert_same_bits(one, other, f"{name}, output {i}")

    def everywhere(self, call, wanted, name, threads=(1, 3)):
        """Compares the call, eager and traced, on each instruction set and number of threads."""
        for isa, count in itertools.product(isas(), threads):
            native.set_isa(isa)
            native.set_threads(count)
            self.same(call(), wanted, f"{name} on {isa}, {count} threads")
        native.set_isa("auto")
        native.set_threads(0)
        self.same(tf.function(call)(), wanted, f"{name}, traced")

    def quantized(self, shapes, residual, multiplier, code, threads=(1, 3), spoil=lambda xs: xs):
        xs = spoil(values(shapes, 1))
        residuals = values(shapes, 2) if residual else None
        arguments = (xs, residuals, multiplier, *code)
        wanted = quantize_composed(*arguments)
        name = f"{len(shapes)} tensors, {residual}, {multiplier}, {code[:4]}"
        inputs = xs, residuals, multiplier, Code(*code[:4]), code[4]
        self.everywhere(lambda: quantization.encode(*inputs), wanted, name, threads)
        traced = tf.function(lambda: quantize_composed(*arguments)[:3])()
        self.same(traced, wanted[:3], f"{name}: the composition, traced")
        return wanted

    def test_quantize_every_length(self):
        for residual, multiplier in itertools.product((False, True), (1.0, 0.3)):
            self.quantized(SHORT, residual, multiplier, (7, 4, 32, "max", key_for(SHORT)), (3,))

    @pytest.mark.slow
    def test_quantize_every_code(self):
        for (levels, bits), block, norm, random in itertools.product(
            WIDTHS, (32, 64, 512, None), ("max", "l2"), (True, False)
        ):
            code = (levels, bits, block, norm, key_for(EDGES) if random else None)
            self.quantized(EDGES, True, 0.3, code, (1,))

    def test_quantize_blocks_of_any_length(self):
        for block, norm in itertools.product((1, 100, 511, 2048, 2049, 70000), ("max", "l2")):
            self.quantized(EDGES, True, 1.0, (7, 4, block, norm, key_for(EDGES)), (1,))

    def test_quantize_long_tensors(self):
        for block, norm in itertools.product((512, None, 70000), ("max", "l2")):
            for residual in (False, True):
                self.quantized(LONG, residual, 3.0, (7, 4, block, norm, key_for(LONG)))

    def test_quantize_what_is_not_finite(self):
        for bad, norm, block in itertools.product(
            (np.nan, np.inf, -np.inf, 3e38), ("max", "l2"), (32, None)
        ):
            for i in (2, 6, 8):
                wanted = self.quantized(
                    EDGES,
                    True,
                    2.0,
                    (7, 4, block, norm, None),
                    (1,),
                    lambda xs, i=i, bad=bad: spoilt(xs, i, bad),
                )
                self.assertFalse(wanted.finite.numpy())

    def test_the_multiplier_is_a_float32_and_denormal_ones_are_zero(self):
        for multiplier in (0.1, 1 / 3, 1e-39, -1e-39, -1.0, 2.0**-30):
            self.quantized(EDGES, False, multiplier, (127, 8, 64, "max", None), (1,))

    def dequantized(self, shapes, code, factor, workers, threads=(1, 3)):
        levels, bits, block, _ = code
        encoded = [
            quantization.encode(values(shapes, w), None, 1.0, Code(*code), None)
            for w in range(workers)
        ]
        words = tf.stack([own.words for own in encoded])
        scales = tf.stack([own.scales * (-0.999) ** w for w, own in enumerate(encoded)])
        factor = tf.constant(factor, tf.float32)
        arguments = (words, scales, shapes, factor, levels, bits, block)
        wanted = dequantize_composed(*arguments)
        finite = all(np.isfinite(total.numpy()).all() for total in wanted)
        name = f"{len(shapes)} tensors of {workers}, {code}, {factor}"
        self.everywhere(
            lambda: quantization.decode(words, scales, shapes, factor, Code(*code)),
            (wanted, tf.constant(finite)),
            name,
            threads,
        )
        return wanted

    def test_dequantize_every_code(self):
        for (levels, bits), block in itertools.product(WIDTHS, (32, 64, 512, None)):
            for workers in (1, 2, 3):
                self.dequantized(EDGES, (levels, bits, block, "l2"), 1 / workers, workers, (1,))

    def test_dequantize_every_length_and_long_ones(self):
        self.dequantized(SHORT, (7, 4, 32, "max"), 0.5, 2, (3,))
        self.dequantized(LONG, (7, 4, 512, "max"), 0.5, 2)

    def test_dequantize_multiplies_every_element(self):
        for factor in (np.nan, np.inf, 3e38, 1e-38, 1e-39, -1.0, 0.0):
            totals = self.dequantized(EDGES, (7, 4, 512, "max"), factor, 3, (1,))
            if np.isnan(factor):
                self.assertTrue(all(np.isnan(total.numpy()).all() for total in totals))

    def test_dequantize_says_whether_all_is_finite(self):
        for bad, at in itertools.product((np.nan, np.inf, 3e38), (0, -1)):
            words = tf.zeros([2, sum(ops.packed_words(n, 4) for n in (70, 33))], tf.int32)
            scales = np.ones([2, 5], np.float32)
            scales[:, at] = bad
            totals, finite = quantization.decode(
                words, tf.constant(scales), [[70], [3, 11]], 1.0, Code(7, 4, 32, "max")
            )
            self.assertEqual(finite.numpy(), all(np.isfinite(t.numpy()).all() for t in totals))
            self.assertFalse(finite.numpy())

    def test_dequantize_ignores_the_padding(self):
        codes = tf.fill([1, 7], 7)
        words = ops.quantize(tf.zeros([7]), tf.ones([1]), 7, 4, 7, None)
        scales = tf.constant([[3e38], [3e38]])
        totals, finite = quantization.decode(
            tf.stack([words, words]), scales, [[7]], 1.0, Code(7, 4, None, "max")
        )
        self.assertAllEqual(totals[0], tf.zeros_like(codes[0]))
        self.assertTrue(finite.numpy())

    def test_signs_and_votes(self):
        for shapes, multiplier in itertools.product((SHORT, EDGES, LONG), (1.0, -0.5, 1e-3)):
            xs = values(shapes, 3)
            flat = [tf.reshape(x, [-1]) for x in compensated(xs, None, multiplier)]
            wanted = tf.concat([ops.pack_signs(x) for x in flat], 0)
            self.everywhere(
                lambda xs=xs, m=multiplier: signs.sign_list(xs, m),
                (wanted, tf.constant(True)),
                f"{len(shapes)} tensors times {multiplier}",
            )
        for workers, factor in itertools.product((1, 2, 5), (1.0, 1 / 3, np.nan, 1e-39, -2.0)):
            self.voted(EDGES + SHORT, workers, tf.constant(factor, tf.float32))

    def voted(self, shapes, workers, factor):
        sizes = [int(np.prod(shape)) for shape in shapes]
        own = [signs.sign_list(values(shapes, 10 * w), 1.0)[0] for w in range(workers)]
        words = tf.stack(own)
        parts = rows_of(words, [ops.packed_words(n, 1) for n in sizes])
        wanted = [
            tf.reshape(ops.vote_signs(part, n) * factor, shape)
            for part, n, shape in zip(parts, sizes, shapes)
        ]
        self.everywhere(
            lambda: signs.vote_list(words, shapes, factor), wanted, f"{workers} times {factor}"
        )

    def test_signs_of_what_is_not_finite(self):
        for bad, i in itertools.product((np.nan, np.inf, -np.inf), range(len(EDGES))):
            xs = spoilt(values(EDGES, 1), i, bad)
            words, finite = signs.sign_list(xs, 1.0)
            wanted = tf.concat([ops.pack_signs(tf.reshape(x, [-1])) for x in xs], 0)
            self.assert_same_bits(words, wanted)
            self.assertFalse(finite.numpy())


if __name__ == "__main__":
    tf.test.main()
