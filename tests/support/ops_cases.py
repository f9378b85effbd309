"""What the tests of the operations share: inputs, every operation on them, equality of bits."""

import functools
import itertools

import numpy as np
import tensorflow as tf

from grace_tf import ops
from grace_tf.ops.backend import native

LENGTHS = [1, 2, 31, 32, 33, 63, 257, 511, 512, 513, 1000]
LONG = [65537, 2**20 + 1]
KEY = ops.Key(seed=7, worker=3, step=5, variable=2, draw=1)
WIDTHS = [(1, 2), (3, 3), (7, 4), (127, 8), (300, 10), (32767, 16)]
NOT_FINITE = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF], np.uint32).view(np.float32)
SPECIAL = np.array(
    [0x7F7FFFFF, 0x00800000, 0x807FFFFF, 1, 0x80000000, 0, 0x3F800000, 0xBF7FFFFF, 0x2F800000],
    np.uint32,
).view(np.float32)


@functools.cache
def gradient(n):
    """Normal numbers among zeros of both signs, denormals, ties and a run of one value."""
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    x[::7] = 0.0
    x[::11] *= np.float32(-0.0)
    x[::13] *= np.float32(1e-38)
    x[3::17] = 1.25
    x[n // 3 : n // 2] = np.float32(-3e-39)
    return x


def of_all_sizes(n, least=-30):
    """Normal numbers among those of `gradient`, times powers of two from 2^least to 1."""
    draw = np.random.default_rng(n)
    return gradient(n) * np.float32(2.0) ** draw.integers(least, 1, n).astype(np.float32)


def everything(x, n, blocks, widths=WIDTHS):
    """Every operation on x, by name."""
    results = {}
    for block, norm, (levels, bits), key in itertools.product(
        blocks, ("max", "l2"), widths, (KEY, None)
    ):
        scales = ops.block_scales(x, block, norm)
        words = ops.quantize(x, scales, levels, bits, block, key)
        name = f"{block} {norm} {bits} {'up or down' if key else 'nearest'}"
        three = tf.stack([words, words, words]), tf.stack([scales, -scales, 0.3 * scales])
        results[f"scales {name}"] = scales
        results[f"quantize {name}"] = words
        results[f"dequantize {name}"] = ops.dequantize(words, scales, n, levels, bits, block)
        results[f"sum {name}"] = ops.dequantize_sum(*three, n, levels, bits, block)
    for k in sorted({1, max(1, n // 100), max(1, n // 3), n}):
        values, indices = ops.top_k(x, k)
        two = tf.stack([values, 1.5 * values]), tf.stack([indices, indices])
        results[f"top {k}"] = values
        results[f"top {k} indices"] = indices
        results[f"gather {k}"] = ops.gather(x, indices)
        results[f"scatter {k}"] = ops.scatter_sum(*two, None, n)
        results[f"scatter {k} counted"] = ops.scatter_sum(*two, tf.constant([k, k // 2]), n)
    results["signs"] = ops.pack_signs(x)
    results["unpacked"] = ops.unpack_signs(results["signs"], n)
    for workers in (1, 2, 5):
        results[f"vote {workers}"] = ops.vote_signs(ballots(workers, n), n)
    results["words"] = ops.random_words(n, KEY)
    results["uniform"] = ops.uniform(n, KEY)
    return results


def ballots(workers, n):
    words = np.random.default_rng(workers).integers(
        -(2**31), 2**31, [workers, ops.packed_words(n, 1)], dtype=np.int64
    )
    return tf.constant(words.astype(np.int32))


class SameBits(tf.test.TestCase):
    def assert_same_bits(self, got, wanted, name=""):
        got, wanted = np.asarray(got), np.asarray(wanted)
        self.assertEqual(got.dtype, wanted.dtype, name)
        self.assertEqual(got.shape, wanted.shape, name)
        self.assertEqual(got.tobytes(), wanted.tobytes(), name)

    def tearDown(self):
        if native.available():
            native.set_isa("auto")
            native.set_threads(0)
        super().tearDown()


class SameOnEveryISA(SameBits):
    """Native operations on each instruction set give the bits of the reference, one NaN for all."""

    def same_everywhere(self, function, what):
        """Returns the result of the function with reference operations."""
        with ops.using("reference"):
            wanted = function()
        if native.available():
            with ops.using("native"):
                for isa in isas():
                    native.set_isa(isa)
                    self._assert_same(function(), wanted, f"{what}, {isa}")
        return wanted

    def same_on_threads(self, function, threads):
        """The same on the best instruction set, where these numbers of threads share the work."""
        if not native.available():
            # Only native operations use threads; the reference would be compared with itself.
            self.skipTest(native.why_not())
        with ops.using("reference"):
            wanted = function()
        with ops.using("native"):
            for count in threads:
                native.set_threads(count)
                self._assert_same(function(), wanted, f"{count} threads")

    def _assert_same(self, got, wanted, name):
        got, wanted = tf.nest.flatten(got), tf.nest.flatten(wanted)
        for one, other in zip(got, wanted, strict=True):
            self.assert_same_bits(_with_one_nan(one), _with_one_nan(other), name)


def _with_one_nan(x):
    x = np.asarray(x)
    return np.where(x != x, np.float32("nan"), x).astype(x.dtype) if x.dtype.kind == "f" else x


def everywhere(function):
    """(name, result) of a function with reference operations, eager and traced, and natively."""
    with ops.using("reference"):
        yield "eager reference", function()
        yield "traced reference", tf.function(function, autograph=False)()
    if not native.available():
        return
    with ops.using("native"):
        for isa in isas():
            native.set_isa(isa)
            for threads in (1, 3):
                native.set_threads(threads)
                yield f"{isa}, {threads} threads", function()


class SameEverywhere(SameBits):
    """All that `everywhere` runs gives the same bits."""

    def same_everywhere(self, function, what):
        """Returns the arrays of the function's result with reference operations."""
        results = {
            name: [x for x in tf.nest.flatten(result) if x is not None]
            for name, result in everywhere(function)
        }
        wanted = [x.numpy() for x in results.pop("eager reference")]
        for name, result in results.items():
            for got, want in zip(result, wanted, strict=True):
                self.assert_same_bits(got, want, f"{what}, {name}")
        return wanted


class SameAsWanted(SameBits):
    def everywhere(self, call, wanted, name, threads=(1, 3)):
        """Compares reference operations, eager and traced, and native ones, with what is wanted."""
        runs = [("reference", "auto", 0, False), ("reference", "auto", 0, True)]
        if native.available():
            runs += [("native", isa, count, False) for isa in isas() for count in threads]
            runs += [("native", "auto", 0, True)]
        for how, isa, count, traced in runs:
            if native.available():
                native.set_isa(isa)
                native.set_threads(count)
            with ops.using(how):
                got = tf.function(lambda: call(), autograph=False)() if traced else call()
            got = tf.nest.flatten(got)
            self.assertEqual(len(got), len(wanted), name)
            for i, (one, other) in enumerate(zip(got, wanted)):
                self.assert_same_bits(one, other, f"{name}, {i}: {how} {isa} {count} {traced}")


def isas():
    """Those this processor has."""
    names = []
    for name in ("generic", "avx2", "avx512"):
        try:
            native.set_isa(name)
        except ValueError:
            continue
        names.append(name)
    native.set_isa("auto")
    return names
