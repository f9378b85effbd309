"""Uniform quantisation of lists: native, reference and NumPy agree bit for bit."""

import itertools

import numpy as np
import numpy_ops
import pytest
import tensorflow as tf
from ops_cases import SameAsWanted
from test_ops_lists import EDGES, SHORT, key_for, spoilt, values

from grace_tf import ops
from grace_tf.ops import quantization
from grace_tf.ops.backend import native
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.quantization import Code, Strata
from grace_tf.ops.reference import quantization as reference

pytestmark = pytest.mark.rotated

ALL = 0xFFFFFFFF


def strata_for(shapes, worker=2, size=5):
    variables = key_for(shapes).variables
    return Strata(ListKey(7, ALL, tf.constant(5), variables, 2), 9, worker, size)


def uniforms(n, random, i, levels):
    """In NumPy; None where numbers are rounded to the nearest."""
    if random is None:
        return None
    coarse = levels <= 127
    if isinstance(random, ListKey):
        draw = numpy_ops.coarse_uniform if coarse else numpy_ops.uniform
        return draw(n, ops.Key(7, 3, 5, random.variables[i], random.draw))
    variable, size = random.key.variables[i], random.size
    draw = numpy_ops.coarse_words if coarse else numpy_ops.random_words
    words = draw(n, ops.Key(7, ALL, 5, variable, random.key.draw))
    drawn = numpy_ops.random_words(size, ops.Key(7, ALL, 5, variable, random.order))
    place = int(
        np.argsort(drawn.view(np.uint32), kind="stable").tolist().index(random.worker % size)
    )
    stratum = place * 2**32 // size
    words = words.view(np.uint32) + np.uint32(stratum & 0xFFFF0000 if coarse else stratum)
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def minmax(x, bits, block, u):
    """Words and scales, and what they stand for."""
    x, s = numpy_ops.flush(x), np.float32(2**bits - 1)
    codes, scales, values_ = [], [], []
    for start in range(0, len(x), block):
        own = x[start : start + block]
        low, high = own.min(), own.max()
        half = numpy_ops.flush(high * np.float32(0.5)) - numpy_ops.flush(low * np.float32(0.5))
        half = np.float32(0 if half < 2.0**-110 else half)
        scales += [half, low]
        inverse = np.float32(0) if half == 0 else numpy_ops.flush(s / np.float32(2) / half)
        a = numpy_ops.flush(own - low) * inverse
        q = np.rint(a) if u is None else np.floor(a + u[start : start + block])
        codes.append(np.minimum(q, s))
        unit = np.float32(0) if half == 0 else half / (s / np.float32(2))
        values_.append(numpy_ops.flush(low + codes[-1] * unit))
    words = numpy_ops.pack(np.concatenate(codes).astype(np.int64), bits)
    return words, np.array(scales, np.float32), np.concatenate(values_)


class LevelsTest(SameAsWanted):
    def minmaxed(self, shapes, bits, block, random, residual=False, multiplier=1.0, threads=(3,)):
        xs = values(shapes, 1)
        residuals = values(shapes, 2) if residual else None
        accs = [x if multiplier == 1.0 else x * multiplier for x in xs]
        accs = [a + r for a, r in zip(accs, residuals)] if residual else accs
        wanted = [[], [], [], []]
        for i, acc in enumerate(accs):
            flat = acc.numpy().reshape(-1)
            u = uniforms(flat.size, random, i, 2**bits - 1)
            words, scales, back = minmax(flat, bits, block or flat.size, u)
            for parts, part in zip(wanted, (words, scales, acc - back.reshape(acc.shape), back)):
                parts.append(part)
        words, scales = (np.concatenate(parts) for parts in wanted[:2])
        code = Code(2**bits - 1, bits, block, "minmax")
        name = f"{len(shapes)} tensors, {bits} bits, block {block}, {random is not None}"
        kept = [part.numpy() for part in wanted[2]] if residual else []

        def encoded():
            got = quantization.encode(xs, residuals, multiplier, code, random)
            return got if residual else got._replace(residuals_out=[])

        self.everywhere(encoded, [words, scales, *kept, np.bool_(True)], name, threads)
        totals = [b.reshape(acc.shape) for b, acc in zip(wanted[3], accs)]
        self.everywhere(
            lambda: quantization.decode(
                tf.constant(words[None]), tf.constant(scales[None]), shapes, 1.0, code
            ),
            [*totals, np.bool_(True)],
            f"{name}, decoded",
            threads,
        )

    def test_minmax_of_every_length(self):
        for random in (None, key_for(SHORT[::5])):
            self.minmaxed(SHORT[::5], 4, 32, random)

    def test_minmax_of_every_code(self):
        shapes = [(), (511,), (2, 16, 16), (513,), (2049,), (3,)]
        randoms = itertools.cycle((None, key_for(shapes), strata_for(shapes)))
        for bits, block in zip((2, 3, 4, 8, 10, 16), (32, 512, None, 512, 64, None)):
            self.minmaxed(shapes, bits, block, next(randoms))

    def test_minmax_of_what_a_multiplier_and_a_residual_make(self):
        for random in (None, key_for(EDGES[:4])):
            self.minmaxed(EDGES[:4], 4, 64, random, True, 0.3)

    def test_minmax_of_long_tensors(self):
        shapes = [(7,), (2**16 + 1,), ()]
        for block in (512, None):
            self.minmaxed(shapes, 2, block, None, threads=(1, 3))

    def test_minmax_of_extreme_blocks(self):
        for x in (
            np.zeros(40),
            np.full(40, -0.0),
            np.full(40, 0.3),
            np.full(40, -2e-39),
            np.where(np.arange(40) % 2, 3e38, -3e38),
            np.where(np.arange(40) % 2, 1e-37, -1e-37),
            np.where(np.arange(40) % 2, 1.0, 1 + 2.0**-23),
            np.arange(40) * 1e-38,
        ):
            x = x.astype(np.float32)
            words, scales, back = minmax(x, 4, 40, None)
            code = Code(15, 4, 40, "minmax")
            self.everywhere(
                lambda x=x, code=code: quantization.encode([tf.constant(x)], None, 1.0, code, None)[
                    :2
                ],
                [words, scales],
                str(x[:2]),
            )
            # A distance above the largest float is too much.
            self.assertEqual(np.isfinite(back).all(), x.max() < 2e38)
            if x.min() == x.max():
                self.assertAllEqual(back, numpy_ops.flush(x))

    def test_strata_of_other_norms(self):
        xs = values(EDGES[:4], 1)
        for worker, size in ((0, 1), (1, 1), (0, 2), (6, 7), (40, 41)):
            strata = strata_for(xs, worker, size)
            words, scales = [], []
            for i, x in enumerate(xs):
                flat = x.numpy().reshape(-1)
                u = uniforms(flat.size, strata, i, 7)
                scales.append(numpy_ops.block_scales(flat, 64, "max"))
                words.append(self.codes(flat, scales[-1], u))
            self.everywhere(
                lambda s=strata: quantization.encode(xs, None, 1.0, Code(7, 4, 64, "max"), s)[:2],
                [np.concatenate(words), np.concatenate(scales)],
                f"worker {worker} of {size}",
                (3,),
            )

    def codes(self, x, scales, u):
        """As `numpy_ops.quantize`, with these uniform numbers."""
        s = np.float32(7)
        inverse = np.where(scales == 0, 0, numpy_ops.flush(s / np.maximum(scales, 1e-33)))
        a = numpy_ops.flush(np.abs(x)) * inverse.astype(np.float32)[np.arange(len(x)) // 64]
        q = np.minimum(np.floor(a + u), s).astype(np.int64)
        return numpy_ops.pack(np.where(np.signbit(x), 7 - q, 7 + q), 4)

    def test_strata_lie_evenly_apart_in_another_order_for_each_variable_and_step(self):
        n, size = 64, 8
        orders = set()
        for variable, step in itertools.product(range(4), range(4)):
            key = ListKey(7, ALL, step, (variable,), 0)
            levels = 127 if step % 2 else 255
            us = [reference.uniforms(n, Strata(key, 1, w, size), 0, levels) for w in range(size)]
            us = np.array(us, np.float64)
            apart = np.diff(np.sort(us, 0), axis=0)
            self.assertAllClose(apart, np.full_like(apart, 1 / size), atol=2.0**-22)
            orders.add(tuple(np.argsort((us[:, 0] - us[0, 0]) % 1)))
        self.assertGreater(len(orders), 10)

    def test_what_is_not_finite_is_flagged(self):
        code = Code(15, 4, 32, "minmax")
        for bad, how in itertools.product(
            (np.nan, -np.nan, np.inf, -np.inf), ("native", "reference")
        ):
            if how == "native" and not native.available():
                continue
            with ops.using(how):
                for i in (1, 6, 8):
                    xs = spoilt(values(EDGES, 1), i, np.float32(bad))
                    encoded = quantization.encode(xs, None, 1.0, code, None)
                    self.assertFalse(encoded.finite)
                    rows = encoded.words[None], encoded.scales[None]
                    self.assertFalse(quantization.decode(*rows, EDGES, 1.0, code)[1])

    def test_what_does_not_fit_is_refused(self):
        xs, minmax_code = [tf.ones([40])], Code(15, 4, 32, "minmax")
        strata = Strata(ListKey(0, ALL, 0, (0,), 0), 1, 0, 3)
        encoded = quantization.encode(xs, None, 1.0, minmax_code, None)
        for call in (
            lambda: quantization.encode(xs, None, 1.0, Code(7, 4, 32, "minmax"), None),
            lambda: quantization.encode(xs, None, 1.0, Code(7, 4, 32, "mean"), None),
            lambda: quantization.encode(xs, None, 1.0, minmax_code, strata._replace(size=0)),
            lambda: quantization.encode(xs, None, 1.0, minmax_code, strata._replace(order=256)),
            lambda: quantization.encode(xs * 2, None, 1.0, minmax_code, strata),
            lambda: quantization.decode(
                encoded.words[None], encoded.scales[None, :2], [[40]], 1.0, minmax_code
            ),
        ):
            with self.assertRaises(ValueError):
                call()


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


if __name__ == "__main__":
    tf.test.main()
