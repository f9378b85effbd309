"""Sums of elements with random signs, natively and in plain TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf

from grace_tf import ops
from grace_tf.aggregation.measure import pieces
from grace_tf.ops.backend import native

SHAPES = [[3, 700], [5000], [33]]
KEY = pieces.key_of(3, 7, 12)


def gradients():
    return [tf.random.stateless_normal(shape, [4, i]) for i, shape in enumerate(SHAPES)]


class SignedSumsTest(tf.test.TestCase):
    # Without the native library both results would come from the reference.
    @pytest.mark.skipif(not native.available(), reason=native.why_not())
    def test_the_native_operation_adds_up_what_the_reference_does(self):
        xs = gradients()
        flat = np.concatenate([np.reshape(x, -1) for x in xs])
        for count in (1, 1025, 4097, 9001):  # the last one is more than there are elements
            sums, square = ops.signed_sums(xs, count, KEY, tf.constant(True))
            with ops.using("reference"):
                wanted, _ = ops.signed_sums(xs, count, KEY, tf.constant(True))
            self.assertAllClose(sums, wanted, rtol=1e-5, atol=1e-4)
            self.assertAllClose(square, np.sum(np.float64(flat) ** 2), rtol=1e-12)

    def test_a_count_of_zero_gives_the_elements(self):
        xs = gradients()
        found, square = ops.signed_sums(xs, 0, KEY, tf.constant(True))
        self.assertAllEqual(found, np.concatenate([np.reshape(x, -1) for x in xs]))
        self.assertAllClose(square, np.sum(np.float64(found) ** 2), rtol=1e-12)

    def test_where_they_are_not_wanted_there_are_none(self):
        for count in (0, 1025):
            sums, square = ops.signed_sums(gradients(), count, KEY, tf.constant(False))
            self.assertEqual((sums.shape[0], float(square)), (0, 0.0))

    def test_pieces_are_alike_in_eager_steps_and_graphs_and_for_other_types(self):
        for wanted in (True, False):
            for count in (None, 1025):
                found = []
                for make in (lambda f: f, lambda f: tf.function(f, autograph=False)):
                    step = make(lambda when, xs, c=count: pieces.take(when, xs, c, 3, 7, 12))
                    xs = [*gradients(), tf.zeros([0, 5])]
                    found.append(step(tf.constant(wanted), xs))
                    found.append(step(tf.constant(wanted), [tf.cast(x, tf.bfloat16) for x in xs]))
                for sums, square in found[1:]:
                    self.assertAllClose(sums, found[0][0], atol=0.1 if count else 0.01)
                    self.assertAllClose(square, found[0][1], rtol=1e-2)


if __name__ == "__main__":
    tf.test.main()
