"""What the tests of the operations share: a gradient, every operation on it, equality of bits."""

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
