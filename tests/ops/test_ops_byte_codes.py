"""Codes of eight bits: native, reference and NumPy are the same bits, whatever they are given."""

import functools
import itertools

import numpy as np
import numpy_byte_codes as own
import numpy_ops
import pytest
import tensorflow as tf
from ops_cases import KEY, NOT_FINITE, SPECIAL, SameOnEveryISA, gradient, of_all_sizes

from grace_tf.ops import byte_codes
from grace_tf.ops.backend import native
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.byte_codes import byte_words
from grace_tf.ops.reference.byte_codes import NUMBERS

pytestmark = pytest.mark.rotated

LENGTHS = [1, 2, 3, 4, 5, 31, 32, 33, 127, 129, 257, 1021]
SHAPES = [[n] for n in LENGTHS]
LIST_KEY = ListKey(KEY.seed, KEY.worker, KEY.step, tuple(range(len(LENGTHS))), KEY.draw)


def kinds():
    """Lists of tensors by name; some are not finite."""
    return {
        "gradients": [gradient(n) for n in LENGTHS],
        "of all sizes": [of_all_sizes(n) for n in LENGTHS],
        "huge": [gradient(n) * np.float32(5e37) for n in LENGTHS],
        "tiny": [gradient(n) * np.float32(2e-33) for n in LENGTHS],
        "special": [np.resize(SPECIAL, n) for n in LENGTHS],
        "zero": [np.zeros(n, np.float32) for n in LENGTHS],
        "not finite": [np.resize(NOT_FINITE, n) for n in LENGTHS],
    }


class ByteCodesTest(SameOnEveryISA):
    def test_encoders_are_the_same_everywhere(self):
        residuals = [0.5 * x[::-1] for x in kinds()["gradients"]]
        for (what, xs), (with_residuals, multiplier) in itertools.product(
            kinds().items(), ((False, 1.0), (True, 3.0))
        ):
            left = residuals if with_residuals else None
            for block in (None, 32, 96):
                self.same_everywhere(
                    functools.partial(byte_codes.encode_tree, xs, left, multiplier, block),
                    f"tree of {what} in blocks of {block}",
                )
            *_, finite = self.same_everywhere(
                functools.partial(byte_codes.encode_powers, xs, left, multiplier, LIST_KEY),
                f"powers of {what}",
            )
            with np.errstate(all="ignore"):
                accs = [x * np.float32(multiplier) for x in xs]
                accs = [a + r for a, r in zip(accs, residuals)] if with_residuals else accs
            self.assertEqual(bool(finite), all(np.isfinite(acc).all() for acc in accs))

    def test_decoders_take_any_bits_and_are_the_same_everywhere(self):
        draw, words = np.random.default_rng(1), sum(map(byte_words, LENGTHS))
        for workers in (1, 3):
            codes = draw.integers(-(2**31), 2**31, [workers, words]).astype(np.int32)
            for block in (None, 96):
                count = sum(-(-n // (block or n)) for n in LENGTHS)
                scales = draw.normal(size=[workers, count]).astype(np.float32)
                scales.flat[::7] = np.resize(SPECIAL, scales.size)[::7]
                self.same_everywhere(
                    functools.partial(
                        byte_codes.decode_tree, codes, scales, SHAPES, 1 / workers, block
                    ),
                    f"{workers} workers, blocks of {block}",
                )
            self.same_everywhere(
                functools.partial(byte_codes.decode_powers, codes, SHAPES, 1 / workers),
                f"{workers} workers",
            )

    def test_they_are_those_of_numpy(self):
        for what in ("gradients", "of all sizes", "huge", "tiny", "zero"):
            for i, (n, x) in enumerate(zip(LENGTHS, kinds()[what])):
                for block in (None, 32):
                    codes, scales, _, _ = byte_codes.encode_tree([x], None, 1.0, block)
                    wanted, wanted_scales = own.encode_tree(x, block or n)
                    self.assert_same_bits(codes, wanted, f"{what}, {n}")
                    self.assert_same_bits(scales, wanted_scales, f"{what}, {n}")
                    rows = np.stack([wanted_scales, numpy_ops.flush(0.5 * wanted_scales)])
                    both = np.stack([wanted, wanted])
                    (total,), _ = byte_codes.decode_tree(both, rows, [[n]], 0.5, block)
                    each = [
                        own.tree_values(wanted.view(np.uint8)[:n], row, block or n) for row in rows
                    ]
                    decoded = own.summed(each, 0.5)
                    self.assert_same_bits(total, decoded, f"{what}, {n}")
                key = LIST_KEY._replace(variables=(i,))
                codes, _, _ = byte_codes.encode_powers([x], None, 1.0, key)
                wanted = own.encode_powers(x, KEY._replace(variable=i))
                self.assert_same_bits(codes, wanted, f"{what}, {n}")
                (total,), _ = byte_codes.decode_powers(codes[tf.newaxis], [[n]], 1.0)
                decoded = own.power_values(wanted.view(np.uint8)[:n])
                self.assert_same_bits(total, decoded, f"{what}, {n}")

    def test_the_numbers_of_the_tree(self):
        self.assert_same_bits(NUMBERS, own.tree_numbers())
        self.assertEqual(NUMBERS[127], 1)
        self.assertAllClose(NUMBERS[63:66], [0.1, 0.1 + 0.9 / 64, 0.1 + 1.8 / 64], rtol=1e-7)
        self.assertAllClose(NUMBERS[:4], [0, 1e-6, 5.5e-6, 1e-5], rtol=1e-7)
        self.assertTrue((np.diff(NUMBERS) > 0).all())

    def test_every_number_is_its_own_code(self):
        x = np.concatenate([NUMBERS, -NUMBERS])
        codes, _, _, _ = byte_codes.encode_tree([x], None, 1.0, None)
        self.assertAllEqual(codes.numpy().view(np.uint8), np.arange(256))

    def test_large_lists_are_cut_anywhere(self):
        sizes = (70_001, 3, 2_100_000, 131_073)
        xs = [np.resize(of_all_sizes(65_537), n) for n in sizes]
        key = LIST_KEY._replace(variables=(0, 1, 2, 3))

        def both():
            tree = byte_codes.encode_tree(xs, xs, 1.0, None)
            blocks = byte_codes.encode_tree(xs, xs, 1.0, 96)
            powers = byte_codes.encode_powers(xs, xs, 1.0, key)
            shapes = [[n] for n in sizes]
            decoded = byte_codes.decode_tree(tree[0][None], tree[1][None], shapes, 1.0, None)
            return tree, blocks, powers, decoded

        self.same_on_threads(both, (1, 2))

    def test_what_does_not_fit_is_refused(self):
        x, words = tf.ones([40]), tf.zeros([2, 10], tf.int32)
        key = LIST_KEY._replace(variables=(0,))
        for call in (
            lambda: byte_codes.encode_tree([x], None, 1.0, 33),
            lambda: byte_codes.encode_tree([x], None, 1.0, 0),
            lambda: byte_codes.encode_tree([x], [x[1:]], 1.0, None),
            lambda: byte_codes.encode_powers([x, x], None, 1.0, key),
            lambda: byte_codes.decode_tree(words, tf.ones([2, 1]), [[41]], 1.0, None),
            lambda: byte_codes.decode_tree(words, tf.ones([2, 1]), [[40]], 1.0, 32),
            lambda: byte_codes.decode_tree(words, tf.ones([3, 1]), [[40]], 1.0, None),
            lambda: byte_codes.decode_powers(words, [[36]], 1.0),
        ):
            with self.assertRaises(ValueError):
                call()

    @pytest.mark.skipif(not native.available(), reason=native.why_not())
    def test_kernels_refuse_what_python_would_not_pass_on(self):
        module, words = native._ops(), tf.zeros([1, 10], tf.int32)
        told = dict(N=1, ranks=[1], dims=[40], factor=1.0)
        for call in (
            lambda: module.grace_encode_tree_list(
                xs=[tf.ones([40])], residuals=[], multiplier=1.0, block=33
            ),
            lambda: module.grace_decode_tree_list(
                codes=words, scales=tf.ones([1, 2]), block=0, **told
            ),
            lambda: module.grace_decode_powers_list(codes=words[:, :9], **told),
        ):
            with self.assertRaises(tf.errors.InvalidArgumentError):
                call()


if __name__ == "__main__":
    tf.test.main()
