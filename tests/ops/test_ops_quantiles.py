"""Quantile buckets: native, reference and NumPy are the same bits, whatever they are given."""

from functools import partial

import numpy as np
import numpy_quantiles as own
import pytest
import tensorflow as tf
from ops_cases import NOT_FINITE, SPECIAL, SameOnEveryISA, gradient, of_all_sizes

from grace_tf.ops.backend import native
from grace_tf.ops.codes import quantiles

pytestmark = pytest.mark.rotated

LENGTHS = [1, 2, 31, 32, 33, 257, 1021]
SHAPES = [[n] for n in LENGTHS]
BUCKETS = ((64, 1), (64, 8), (3, 1), (5, 1), (256, 2))


def kinds():
    """Lists of tensors by name; some are not finite."""
    return {
        "gradients": [gradient(n) for n in LENGTHS],
        "of all sizes": [of_all_sizes(n) for n in LENGTHS],
        "huge": [gradient(n) * np.float32(5e37) for n in LENGTHS],
        "negative": [-np.abs(gradient(n)) - np.float32(1e-20) for n in LENGTHS],
        "ties": [np.resize(np.float32([2, -3, 2]), n) for n in LENGTHS],
        "special": [np.resize(SPECIAL, n) for n in LENGTHS],
        "zero": [np.zeros(n, np.float32) for n in LENGTHS],
        "not finite": [np.resize(NOT_FINITE, n) for n in LENGTHS],
    }


class QuantilesTest(SameOnEveryISA):
    def test_encoders_are_the_same_everywhere(self):
        residuals = [0.5 * x[::-1] for x in kinds()["gradients"]]
        for what, xs in kinds().items():
            for (buckets, span), left, multiplier in (
                (BUCKETS[0], None, 1.0),
                (BUCKETS[1], residuals, 3.0),
                (BUCKETS[3], residuals, 1.0),
            ):
                *_, finite = self.same_everywhere(
                    partial(quantiles.encode_list, xs, left, multiplier, buckets, span),
                    f"{what}, {buckets} buckets",
                )
                self.assertEqual(bool(finite), self.finite(xs, left, multiplier), what)

    @staticmethod
    def finite(xs, left, multiplier):
        with np.errstate(all="ignore"):
            accs = [x * np.float32(multiplier) for x in xs]
            accs = [a + r for a, r in zip(accs, left)] if left else accs
        return all(np.isfinite(acc).all() for acc in accs)

    def test_decoders_take_any_bits_and_are_the_same_everywhere(self):
        draw = np.random.default_rng(1)
        for workers, buckets in ((1, 64), (3, 5), (3, 256)):
            words = sum(quantiles.id_words(n, buckets) for n in LENGTHS)
            words = draw.integers(-(2**31), 2**31, [workers, words]).astype(np.int32)
            means = draw.normal(size=[workers, buckets * len(LENGTHS)]).astype(np.float32)
            means.flat[::7] = np.resize(SPECIAL, means.size)[::7]
            self.same_everywhere(
                partial(quantiles.decode_list, words, means, SHAPES, 1 / workers, buckets),
                f"{workers} workers, {buckets} buckets",
            )

    def test_they_are_those_of_numpy(self):
        for what, xs in kinds().items():
            for buckets, span in BUCKETS:
                words, means, _, _ = quantiles.encode_list(xs, None, 1.0, buckets, span)
                wanted = [own.encode(x, buckets, span) for x in xs]
                bits = (buckets - 1).bit_length()
                name = f"{what}, {buckets} buckets"
                packed = np.concatenate([own.packed(ids, bits) for ids, _ in wanted])
                self.assert_same_bits(words, packed, name)
                levels = np.concatenate([each for _, each in wanted])
                self.assert_same_bits(means, levels, name)
                totals, _ = quantiles.decode_list(words[None], means[None], SHAPES, 1.0, buckets)
                for total, (ids, each) in zip(totals, wanted):
                    self.assert_same_bits(total, each[ids], name)

    def test_a_mean_is_the_mean(self):
        for what, x in (("normal", gradient(1021)), ("of all sizes", of_all_sizes(1021))):
            _, means, _, _ = quantiles.encode_list([x], None, 1.0, 8)
            x = np.where(np.abs(x) < 2.0**-126, 0, x).astype(np.float64)
            ids = own.ids_of(x, 8)
            for i in np.unique(ids):
                self.assertAllClose(means[i], x[ids == i].mean(), rtol=2e-7, atol=0, msg=what)

    def test_large_lists_are_cut_anywhere(self):
        sizes = (70_001, 3, 300_007, 65_536, 65_537)
        xs = [np.resize(of_all_sizes(65_537), n) for n in sizes]
        self.same_on_threads(lambda: quantiles.encode_list(xs, xs, 1.0, 64), (1, 2))

    def test_what_does_not_fit_is_refused(self):
        x, words, means = tf.ones([40]), tf.zeros([2, 12], tf.int32), tf.ones([2, 64])
        for call in (
            lambda: quantiles.encode_list([x], None, 1.0, 2),
            lambda: quantiles.encode_list([x], None, 1.0, 257),
            lambda: quantiles.encode_list([x], None, 1.0, 64, 3),
            lambda: quantiles.encode_list([x], None, 1.0, 64, 64),
            lambda: quantiles.encode_list([x], [x[1:]], 1.0, 64),
            lambda: quantiles.decode_list(words, means, [[65]], 1.0, 64),
            lambda: quantiles.decode_list(words, means, [[40]], 1.0, 32),
            lambda: quantiles.decode_list(words, means[:1], [[40]], 1.0, 64),
        ):
            with self.assertRaises(ValueError):
                call()

    @pytest.mark.skipif(not native.available(), reason=native.why_not())
    def test_kernels_refuse_what_python_would_not_pass_on(self):
        module, words, means = native._ops(), tf.zeros([1, 12], tf.int32), tf.ones([1, 64])
        told = dict(N=1, ranks=[1], dims=[40], factor=1.0, buckets=64)
        for call in (
            lambda: module.grace_encode_quantiles_list(
                xs=[tf.ones([40])], residuals=[], multiplier=1.0, buckets=2, span=1
            ),
            lambda: module.grace_encode_quantiles_list(
                xs=[tf.ones([40])], residuals=[], multiplier=1.0, buckets=64, span=5
            ),
            lambda: module.grace_decode_quantiles_list(words=words[:, 1:], means=means, **told),
            lambda: module.grace_decode_quantiles_list(words=words, means=means[:, 1:], **told),
        ):
            with self.assertRaises(tf.errors.InvalidArgumentError):
                call()


if __name__ == "__main__":
    tf.test.main()
