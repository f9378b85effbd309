"""Weights that begin to differ between workers are found as training goes on."""

import re

import numpy as np
import pytest
import tensorflow as tf
from faulty import faulty, last

from grace_tf.aggregation.consistency import weight_drift
from grace_tf.cli import launcher

SENTENCE = (
    r"^The weights of worker 1 of 2 differ from worker 0's at {}: something has changed on one "
    r"worker alone, .*check_every=0 lets them train on\)\.$"
)


@pytest.mark.parametrize("fault", ["rate", "bits"])
@pytest.mark.parametrize("engine", ["group", "strategy"])
def test_fit_ends_with_the_epoch_in_which_weights_begin_to_differ(engine, fault):
    code, printed, said = faulty(engine, fault, program="divergence.py")
    everything = printed + "\n".join(sum(said.values(), []))
    assert code not in (0, launcher.TIMED_OUT), everything
    for rank in "01":
        assert re.match(SENTENCE.format("the end of epoch 2"), last(said[rank])), everything
    assert "epoch 1" in printed and "epoch 3" not in printed and "trained" not in printed


@pytest.mark.parametrize("how", ["loop", "eager"])
def test_a_custom_loop_ends_soon_after_the_step_that_compares(how):
    code, printed, said = faulty(how, program="divergence.py")
    assert code not in (0, launcher.TIMED_OUT), said
    for rank in "01":
        assert re.match(SENTENCE.format("step 7"), last(said[rank])), said
    assert "step 6" in printed and "trained" not in printed


class DigestTest(tf.test.TestCase):
    def test_any_bit_of_any_variable_counts(self):
        for dtype in (tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int64, tf.bool):
            values = [tf.cast([1, 0, 1, 0], dtype), tf.cast([0, 1], dtype)]
            variables = [tf.Variable(v) for v in values]
            before = int(weight_drift.digest_of_weights(variables))
            self.assertEqual(before, int(tf.function(weight_drift.digest_of_weights)(variables)))
            variables[1].assign(tf.cast([1, 1], dtype))
            self.assertNotEqual(before, int(weight_drift.digest_of_weights(variables)))
        one = np.float32(1.0)
        near = np.nextafter(one, 2)
        told = {
            int(weight_drift.digest_of_weights([tf.Variable([v, one])]))
            for v in (one, near, -one, 0.0)
        }
        self.assertLen(told, 4)

    def test_equal_values_of_other_variables_differ(self):
        one, two = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
        self.assertNotEqual(
            int(weight_drift.digest_of_weights([one, two])),
            int(weight_drift.digest_of_weights([two, one])),
        )
