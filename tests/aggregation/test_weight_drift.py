"""Weights that begin to differ between workers are found as training goes on."""

import re

import numpy as np
import pytest
import tensorflow as tf
from faulty import faulty, last

from grace_tf.aggregation.consistency import weight_drift
from grace_tf.cli import launcher

WEIGHTS = (
    r"^The weights of worker 1 of 2 differ from worker 0's {}: something has changed on one worker "
    r"alone, .*check_every=0 lets them train on\)\.$"
)
RATE = (
    r"^Workers cannot go on, the learning rate is 0.1 on worker 0 and 0.01 on worker 1 {}: {}; set "
    r"it alike on all workers\.$"
)


@pytest.mark.parametrize("fault", ["rate", "bits"])
@pytest.mark.parametrize("engine", ["group", "strategy"])
def test_fit_ends_with_the_epoch_in_which_weights_begin_to_differ(engine, fault):
    code, printed, said = faulty(engine, fault, program="divergence.py")
    everything = printed + "\n".join(sum(said.values(), []))
    assert code not in (0, launcher.TIMED_OUT), everything
    sentence = {
        "rate": RATE.format("after 4 steps of this run", "it was set by Fault on worker 1"),
        "bits": WEIGHTS.format("at the end of epoch 2"),
    }[fault]
    for rank in "01":
        assert re.match(sentence, last(said[rank])), everything
    assert "epoch 1" in printed and "epoch 3" not in printed and "trained" not in printed


@pytest.mark.parametrize("engine, fault", [("group", "end"), ("strategy", "last")])
def test_what_the_last_callbacks_change_is_found_at_the_end_of_fit(engine, fault):
    code, printed, said = faulty(engine, fault, program="divergence.py")
    assert code not in (0, launcher.TIMED_OUT), said
    for rank in "01":
        assert re.match(WEIGHTS.format("at the end of fit"), last(said[rank])), said
    assert "epoch 4" in printed and "trained" not in printed


@pytest.mark.parametrize("how", ["loop", "eager"])
def test_a_custom_loop_compares_early_and_ever_more_rarely(how):
    code, printed, said = faulty(how, "bits", program="divergence.py")
    assert code not in (0, launcher.TIMED_OUT), said
    for rank in "01":
        assert re.match(WEIGHTS.format("after 8 steps of this run"), last(said[rank])), said
    assert "step 7" in printed and "trained" not in printed


@pytest.mark.parametrize("engine", ["group", "strategy"])
def test_another_rate_between_batches_is_told_as_such(engine):
    code, printed, said = faulty(engine, "batches", program="divergence.py")
    unknown = "something has set it on one worker alone, such as a callback"
    assert code not in (0, launcher.TIMED_OUT), said
    for rank in "01":
        assert re.match(RATE.format("after 4 steps of this run", unknown), last(said[rank])), said
    assert "step 3" in printed and "trained" not in printed


def test_what_changes_after_the_last_comparison_fails_the_end_of_the_program():
    code, printed, said = faulty("loop", "late", program="divergence.py")
    assert code not in (0, launcher.TIMED_OUT), said
    assert re.match(WEIGHTS.format("at the end of the program"), last(said["0"])), said
    assert printed.count("trained") == 2


def test_workers_that_train_alike_end_without_a_word():
    code, printed, said = faulty("loop", "none", program="divergence.py")
    assert code == 0 and printed.count("trained") == 2, said
    assert not any("differ" in line for lines in said.values() for line in lines)


@tf.function
def digest_in_a_step(variables):
    """The digest as a traced step computes it."""
    values = weight_drift._values(variables)
    return tf.numpy_function(lambda *each: np.int64(weight_drift._digest(each)), values, tf.int64)


class DigestTest(tf.test.TestCase):
    def test_any_bit_of_any_variable_counts(self):
        for dtype in (tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int64, tf.bool):
            values = [tf.cast([1, 0, 1, 0], dtype), tf.cast([0, 1], dtype)]
            variables = [tf.Variable(v) for v in values]
            before = weight_drift.digest_of_weights(variables)
            self.assertEqual(before, digest_in_a_step(variables))
            variables[1].assign(tf.cast([1, 1], dtype))
            self.assertNotEqual(before, weight_drift.digest_of_weights(variables))
        one = np.float32(1.0)
        near = np.nextafter(one, 2)
        told = {
            weight_drift.digest_of_weights([tf.Variable([v, one])]) for v in (one, near, -one, 0.0)
        }
        self.assertLen(told, 4)

    def test_equal_values_of_other_variables_differ(self):
        one, two = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
        self.assertNotEqual(
            weight_drift.digest_of_weights([one, two]),
            weight_drift.digest_of_weights([two, one]),
        )

    def test_words_that_change_places_count(self):
        table = np.random.default_rng(0).normal(size=[1500, 3]).astype(np.float32)
        moved = {
            "two rows": table[[1, 0, *range(2, 1500)]],
            "two far rows": table[[1400, *range(1, 1400), 0, *range(1401, 1500)]],
            "all rows": table[::-1],
            "columns": table[:, [1, 0, 2]],
            "a sign": table * np.where(np.arange(1500)[:, None] < 2, -1, 1).astype(np.float32),
        }
        told = {"as it is": weight_drift.digest_of_weights([tf.Variable(table)])}
        for name, other in moved.items():
            told[name] = weight_drift.digest_of_weights([tf.Variable(other)])
        self.assertLen({*told.values()}, 6, told)
        # Places in variables and the variables' own places have other weights.
        square = np.array([[1, 2], [3, 4]], np.float32)
        one, two = ([tf.Variable(row) for row in rows] for rows in (square, square.T))
        self.assertNotEqual(
            weight_drift.digest_of_weights(one), weight_drift.digest_of_weights(two)
        )

    def test_all_bits_of_wide_and_narrow_types_count(self):
        for dtype in (tf.int64, tf.uint64, tf.float64, tf.complex128):
            told = {
                weight_drift.digest_of_weights([tf.Variable(tf.cast([value], dtype))])
                for value in (1, 2**40, 1 + 2**40)
            }
            self.assertLen(told, 3, dtype.name)
        eighth = tf.cast([0.125, 0.25], tf.dtypes.experimental.float8_e4m3fn)
        self.assertNotEqual(
            weight_drift.digest_of_weights([tf.Variable(eighth[:1])]),
            weight_drift.digest_of_weights([tf.Variable(eighth[1:])]),
        )

    def test_every_machine_gets_this_digest(self):
        variables = [
            tf.Variable(tf.reshape(tf.range(5000, dtype=tf.float32), [50, 100])),
            tf.Variable(tf.cast([1.0, -2.0], tf.bfloat16)),
            tf.Variable(tf.zeros([0, 4])),
        ]
        digest = -6138893926079212672
        self.assertEqual(weight_drift.digest_of_weights(variables), digest)
        self.assertEqual(digest_in_a_step(variables), digest)
