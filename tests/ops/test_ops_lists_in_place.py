"""New residuals in the memory of gradients that nothing else holds have the same bits."""

import numpy as np
import pytest
import tensorflow as tf

from grace_tf.ops import cast, low_rank, nonfinite, quantization, selection, two_sided_low_rank
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.quantization import Code

pytestmark = [
    pytest.mark.rotated,
    pytest.mark.skipif(not native.available(), reason=native.why_not()),
]

# One of several pieces and small ones, of which two end within a vector.
SIZES = [300_000, 5, 4_096, 1]
KS = [3_000, 2, 40, 1]
# A tall matrix, whose rows are added in chunks and whose factors' columns are taken in two turns, a
# dense tensor, and two more matrices.
MATRICES = [
    low_rank.MatrixSize(*size) for size in ((50_000, 6, 6), (5, 1, 0), (64, 64, 2), (1, 1, 1))
]
BASIS = tf.ones([sum(size.rows * size.rank for size in MATRICES)]) / 300.0
QS = [tf.ones([size.columns, size.rank]) / 4.0 for size in MATRICES if size.rank]
BASES = two_sided_low_rank.Bases(
    BASIS, tf.ones([sum(size.columns * size.rank for size in MATRICES)]) / 8.0
)
KEY = arguments.ListKey(3, 0, 7, (0, 1, 2, 3), 0)

ENCODERS = {
    "quantize": lambda xs, es, m: quantization.encode(xs, es, m, Code(7, 4, 32, "max"), None),
    "quantize whole": lambda xs, es, m: quantization.encode(
        xs, es, m, Code(7, 4, None, "l2"), None
    ),
    "top_k": lambda xs, es, m: selection.top_k_list(xs, es, m, KS),
    "threshold": lambda xs, es, m: selection.threshold_list(xs, es, m, 1.5, SIZES),
    "random_k": lambda xs, es, m: selection.random_k_list(xs, es, m, KS, KEY),
    "cast": lambda xs, es, m: cast.cast_list(xs, es, m, tf.float16),
    "project": lambda xs, es, m: low_rank.project(xs, es, m, QS, MATRICES, keeps=True),
    "reproject": lambda xs, es, m: low_rank.reproject(xs, m, BASIS, MATRICES, keeps=True),
    "alternate": lambda xs, es, m: two_sided_low_rank.alternate(xs, es, m, BASES, MATRICES),
}


def values(seed, bad):
    rng = np.random.default_rng(seed)
    made = [rng.normal(size=n).astype(np.float32) for n in SIZES]
    if bad:
        made[0][[7, 200_000]] = np.nan, np.inf
        made[2][5] = 1e-40
    return [tf.constant(x) for x in made]


class InPlaceTest(tf.test.TestCase):
    def test_a_computed_gradient_gives_the_bits_of_one_that_is_held(self):
        for name, encode in ENCODERS.items():
            for bad in (False, True):
                for multiplier in (1.0, 0.5):
                    xs, es = values(1, bad), values(2, False)

                    @tf.function
                    def step(one, encode=encode, xs=xs, es=es, multiplier=multiplier):
                        return encode([x * one for x in xs], es, multiplier)

                    held = tf.nest.flatten(encode([x * 1.0 for x in xs], es, multiplier))
                    for a, b in zip(held, tf.nest.flatten(step(tf.constant(1.0))), strict=True):
                        self.assertEqual(a.numpy().tobytes(), b.numpy().tobytes(), name)

    def test_nan_unless(self):
        xs = values(3, True)
        for finite in (True, False):
            for one in (tf.function(nonfinite.nan_unless), nonfinite.nan_unless):
                for x, y in zip(xs, one(xs, tf.constant(finite))):
                    wanted = x if finite else x * np.nan
                    self.assertAllEqual(tf.math.is_nan(wanted), tf.math.is_nan(y))
                    if finite:
                        self.assertEqual(x.numpy().tobytes(), y.numpy().tobytes())

    def test_nan_unless_leaves_what_others_hold(self):
        held = tf.ones([7])

        @tf.function
        def step(x, finite):
            made = x * 2.0
            (refused,) = nonfinite.nan_unless([made], finite)
            return made, refused

        made, refused = step(held, tf.constant(False))
        self.assertAllEqual(made, 2 * np.ones(7))
        self.assertAllEqual(held, np.ones(7))
        self.assertTrue(np.isnan(refused).all())


if __name__ == "__main__":
    tf.test.main()
