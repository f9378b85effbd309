"""Floats of eight bits, and a power of two for each block."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from sums import conserves

import grace_tf
from grace_tf.cli.bench import step as bench_step
from grace_tf.core import registry
from grace_tf.core.context import Context
from grace_tf.line import two_hops
from grace_tf.testing import Workers, cases

TYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


def coded(x, **parameters):
    """The bytes of the codes and of the scales of x, and what they decode to."""
    compressor = grace_tf.get("fp8", **parameters)
    x = tf.constant(np.asarray(x, np.float32))
    context = Context((tf.TensorSpec(x.shape, tf.float32),), (0,), 0, 0, 1, 0)
    payload = compressor.compress(x, context)
    decoded = compressor.decompress(payload, context.public()).numpy()
    codes, scales = (payload[name].numpy().view(np.uint8) for name in ("codes", "scales"))
    return codes[: x.shape[0]], scales, decoded


@pytest.mark.parametrize("format, largest", LARGEST.items())
class TestFormats:
    def test_each_element_is_the_nearest_number_of_the_format(self, format, largest):
        draw = np.random.default_rng(0)
        x = draw.standard_normal(32_000) * 10.0 ** draw.uniform(-7, 5, 32_000)
        x = np.clip(x, -largest, largest).astype(np.float32)
        x[::32] = largest  # the scale is 1
        codes, scales, decoded = coded(x, format=format)
        expected = x.astype(TYPES[format])
        np.testing.assert_array_equal(decoded, expected.astype(np.float32))
        theirs = expected.view(np.uint8)
        np.testing.assert_array_equal(codes, np.where(theirs == 0x80, 0, theirs))  # -0 is 0
        assert set(scales) == {127}

    def test_every_number_of_the_format_comes_back(self, format, largest):
        numbers = np.arange(256, dtype=np.uint8).view(TYPES[format]).astype(np.float32)
        numbers = numbers[np.isfinite(numbers)]
        for power in (0, -80, 60):
            rows = np.pad(numbers[:, None], [[0, 0], [0, 31]], constant_values=largest)
            x = np.ldexp(rows.reshape(-1), power)
            codes, scales, decoded = coded(x, format=format)
            np.testing.assert_array_equal(decoded, x)
            assert set(scales) - {0} == {127 + power}

    def test_nothing_saturates(self, format, largest):
        # Above the largest number, and up to the next power of two, the scale is the double.
        for x in (largest, largest * 1.01, largest * 1.14, largest * 1.143):
            codes, scales, decoded = coded(np.full(32, x), format=format)
            assert scales[0] == (127 if x == largest else 128)
            unit = 2.0**-4 if format == "e4m3" else 2.0**-3
            np.testing.assert_allclose(decoded, x, rtol=unit)

    def test_every_scale_up_to_the_largest_float(self, format, largest):
        for exponent in range(-94, 127, 20):
            x = np.ldexp(np.linspace(-1, 1, 32), exponent)
            _, _, decoded = coded(x, format=format)
            unit = 2.0**-4 if format == "e4m3" else 2.0**-3
            np.testing.assert_allclose(decoded, x, rtol=unit, atol=abs(x).max() * 2.0**-18)

    def test_small_and_zero_blocks_are_zeros(self, format, largest):
        x = np.concatenate([np.zeros(32), np.full(32, -0.0), np.full(32, 2.0**-95), np.ones(5)])
        codes, scales, decoded = coded(x, format=format)
        assert list(scales[:3]) == [0, 0, 0] and scales[3] > 0
        np.testing.assert_array_equal(decoded[:96], np.zeros(96))
        np.testing.assert_array_equal(decoded[96:], np.ones(5))
        assert not np.signbit(decoded).any() and not codes[:96].any()

    def test_what_is_not_finite_does_not_become_a_number(self, format, largest):
        for wrong in (np.nan, np.inf, -np.inf, 3e38):
            x = np.ones(96)
            x[40] = wrong
            _, scales, decoded = coded(x, format=format)
            assert scales[1] == 255
            assert np.isnan(decoded[32:64]).all()
            np.testing.assert_array_equal(decoded[:32], np.ones(32))
            np.testing.assert_array_equal(decoded[64:], np.ones(32))


class FP8Test(tf.test.TestCase):
    def test_known_vectors(self):
        vectors = {
            "e4m3": {448: 0x7E, 1: 0x38, -1: 0xB8, 2.0**-6: 0x08, 2.0**-9: 0x01, 0.4375: 0x2E},
            "e5m2": {57344: 0x7B, 1: 0x3C, -1: 0xBC, 2.0**-14: 0x04, 2.0**-16: 0x01, 0.4375: 0x37},
        }
        for format, known in vectors.items():
            x = np.float32([LARGEST[format], *known])
            codes, scales, decoded = coded(np.resize(x, 32), format=format)
            self.assertAllEqual(codes[1 : len(x)], list(known.values()))
            self.assertAllEqual(decoded[1 : len(x)], list(known))
            self.assertEqual(scales[0], 127)

    def test_halves_of_a_unit_go_to_the_even_code(self):
        for x, code in ((17, 0x58), (19, 0x5A), (1.5 * 2.0**-9, 2), (0.5 * 2.0**-9, 0)):
            codes, _, _ = coded(np.float32([x, *[448] * 31]))
            self.assertEqual(codes[0], code)

    def test_blocks_do_not_touch_each_other(self):
        x = np.concatenate([cases.normal((96,)) * 10.0**p for p in (-9, 0, 9)]).astype(np.float32)
        for block in (32, 96):
            _, _, decoded = coded(x, block=block)
            self.assertAllClose(decoded, x, rtol=2.0**-4, atol=0.0 if block < 96 else 1e-10)

    def test_the_bytes_on_the_wire(self):
        for n, size in ((10**6, 10**6 + 31_252), (33, 36 + 4), (1, 8)):
            self.assertEqual(grace_tf.get("fp8").nbytes(tf.TensorSpec([n], tf.float32)), size)
        matrix = tf.TensorSpec([1024, 1024], tf.float32)
        self.assertEqual(8 * grace_tf.get("fp8").nbytes(matrix) / 2**20, 8.25)

    def test_it_takes_two_hops(self):
        compressor, residual = grace_tf.get("fp8"), registry.get_memory("residual")
        specs = [tf.TensorSpec([300, 300], tf.float32), tf.TensorSpec([777], tf.float32)]
        self.assertTrue(two_hops.taken(compressor, residual, specs, 4, "auto"))
        division = two_hops.division_of(compressor, tuple(specs), 4)
        starts = [piece.start for mine in division.pieces for piece in mine]
        self.assertEqual([start % 128 for start in starts], [0] * len(starts))
        grads = [[cases.normal((300, 300), w), cases.normal((777,), w)] for w in range(4)]
        means = [np.mean([mine[i] for mine in grads], 0) for i in range(2)]
        for exchange in ("gather", "two_hop"):
            results = Workers(4, "fp8", exchange=exchange)(grads)
            for i in range(2):
                self.assertAllClose(results[0][i], means[i], atol=0.2)
                self.assertAllEqual(results[0][i], results[3][i])

    def test_conservation(self):
        conserves(self, "fp8:format=e5m2", steps=20)

    def test_what_does_not_make_sense_is_refused(self):
        for wrong in ("format=e3m4", "block=16", "block=33"):
            with self.assertRaises(ValueError):
                grace_tf.get(f"fp8:{wrong}")


@pytest.mark.parametrize("format", TYPES)
def test_a_step_has_at_most_eight_nodes_for_each_variable(format):
    def nodes(count):
        grads = [tf.zeros((40 + i, 50)) for i in range(count)]
        return count * bench_step.traced(f"fp8:format={format}", grads).nodes

    assert (nodes(30) - nodes(10)) / 20 <= 8
