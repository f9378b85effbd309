"""Which values all workers take from worker 0, and which differences they refuse."""

import dataclasses
import warnings
from unittest import mock

import numpy as np
import tensorflow as tf
from this_keras import KERAS_3, keras

from grace_tf.aggregation.consistency import initial_values
from grace_tf.aggregation.consistency.initial_values import InitialValues, Row, Taken, decide
from grace_tf.aggregation.consistency.plan_handshake import OptimizerInfo, float_word
from grace_tf.aggregation.state.state import State
from grace_tf.keras.optimizer_info import values_of
from grace_tf.testing import Workers

ROW = Row(*[1] * 4, step=0, state=1, rate=float_word(0.1), restored=0)
RESTORED = dataclasses.replace(
    ROW, weights=7, statistics=8, optimizer=9, step=20, state=5, restored=1
)


def row(of=ROW, **other):
    return dataclasses.replace(of, **other)


class DecideTest(tf.test.TestCase):
    def test_equal_workers_take_nothing(self):
        self.assertFalse(any(decide([ROW] * 3).parts))
        self.assertFalse(any(decide([RESTORED] * 2).parts))

    def test_at_the_start_each_difference_of_values_is_taken_and_nothing_else(self):
        for part in ("weights", "statistics", "optimizer", "state"):
            self.assertEqual(decide([ROW, ROW, row(**{part: 2})]), Taken(**{part: True}))

    def test_resumed_workers_keep_their_own_statistics(self):
        self.assertFalse(any(decide([RESTORED, row(RESTORED, statistics=2)]).parts))

    def test_restored_values_that_differ_are_refused(self):
        """Worker 0's may be the damaged ones, so nobody takes them."""
        with self.assertRaisesRegex(
            RuntimeError, "states of step 20 with different weights .worker 2 of 3 differs from"
        ):
            decide([RESTORED, RESTORED, row(RESTORED, weights=2)])
        with self.assertRaisesRegex(
            RuntimeError, "step 20 with different optimizer's variables .worker 1 of 2 differs from"
        ):
            decide([RESTORED, row(RESTORED, optimizer=2)])
        with self.assertRaisesRegex(RuntimeError, "learning rates differ"):
            decide([RESTORED, row(RESTORED, optimizer=2, rate=float_word(0.2))])
        # Variables that join a training that goes on may start from each worker's own seed.
        going_on = row(RESTORED, restored=0)
        self.assertTrue(decide([going_on, row(going_on, weights=2)]).weights)
        self.assertTrue(decide([going_on, row(going_on, optimizer=2)]).optimizer)

    def test_what_only_worker_0_has_restored_is_taken_whole(self):
        for rate in (ROW.rate, float_word(0.5)):
            taken = decide([RESTORED, row(rate=rate)])
            self.assertEqual(taken, Taken(True, True, True, True, restored=20))

    def test_what_only_another_worker_has_restored_is_refused(self):
        with self.assertRaisesRegex(
            RuntimeError, "worker 2 has restored .* of step 20 and worker 0"
        ):
            decide([ROW, ROW, RESTORED])
        self.assertEqual(decide([ROW, RESTORED], root=1).restored, 20)

    def test_files_of_different_steps_are_refused_unless_weights_were_broadcast(self):
        other = row(RESTORED, step=10)
        with self.assertRaisesRegex(RuntimeError, "worker 0 of step 20 and worker 1 of step 10"):
            decide([RESTORED, row(other, weights=3)])
        self.assertEqual(decide([RESTORED, other]).restored, 20)

    def test_other_learning_rates_and_other_models_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "0.1 on worker 0 and 0.2 on worker 1"):
            decide([ROW, row(rate=float_word(0.2))])
        with self.assertRaisesRegex(RuntimeError, "different variables.*worker 1 of 2"):
            decide([ROW, row(structure=2)])


class ValuesTest(tf.test.TestCase):
    def test_what_a_worker_has_of_its_own_is_no_weight(self):
        net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        net.add(keras.layers.BatchNormalization())
        net.compile("sgd", "mse", metrics=["mae"])
        net.fit(np.ones([4, 4]), np.ones([4, 3]), verbose=0)
        net.layers[0].trainable = False
        if KERAS_3:
            net.layers[0].quantize("float8")  # its scales follow the worker's own data
        weights, statistics, root = values_of(net)
        self.assertLen(weights, 4)  # kernel and bias, though frozen; gamma and beta
        self.assertLen(statistics, 2 + (6 if KERAS_3 else 0))
        self.assertEqual(root, 0)
        self.assertEqual(values_of(None), ([], [], 0))


class StrategyGroup:
    """Stands for the processes of a strategy; keeps what this one compares."""

    broadcasts = False

    def handshake(self, words, purpose):
        self.row = Row(*words)
        return np.array([words, words], np.int64)


class OtherState(StrategyGroup):
    """Stands for two processes, of which the other holds other values of the state."""

    broadcasts, rank = True, 1
    sent: tuple = ()

    def handshake(self, words, purpose):
        self.row = Row(*words)
        other = dataclasses.replace(self.row, state=self.row.state + 1)
        return np.array([dataclasses.astuple(other), words], np.int64)

    def broadcast(self, variables, root):
        self.sent = tuple(variables)


class EstimatesTest(tf.test.TestCase):
    def test_what_belongs_to_all_workers_starts_anew_where_only_some_have_it(self):
        """EF21's server is the mean of all own estimates: either fits the others, or none."""
        for memory, own in (("ef21", "own"), ("residual", "residual")):
            workers = Workers(1, "topk:ratio=0.5", memory=memory)
            workers([[tf.constant([3.0, 1.0])]])
            kept = workers.state.arrays()[f"0/memory/{own}"]
            self.assertTrue(kept.any())
            group = OtherState()
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                InitialValues().reach(
                    group, workers.state, [tf.Variable(3.0)], OptimizerInfo, late=False
                )
            servers = [v for v in group.sent if "server" in v.name]
            self.assertLen(servers, 1 if memory == "ef21" else 0)
            told = [w for w in said if "the memory ef21 and others have not" in str(w.message)]
            self.assertLen(told, len(servers))
            now = workers.state.arrays()
            self.assertAllEqual(now[f"0/memory/{own}"], 0 * kept if servers else kept)
            if servers:
                self.assertFalse(now["0/memory/server"].any())


class RestoredTest(tf.test.TestCase):
    def test_only_what_was_there_before_the_first_comparison_is_restored(self):
        before = Workers(1, "topk:ratio=0.5", memory="residual")
        before([[tf.constant([3.0, 1.0])]])
        now = Workers(1, "topk:ratio=0.5", memory="residual")
        for workers, expected in ((before, [1, 1, 0]), (now, [0, 0, 0])):
            group, reached, told = StrategyGroup(), InitialValues(), []
            for steps in (0, 0, 1):  # that are taken before the comparison
                for _ in range(steps):
                    workers([[tf.constant([3.0, 1.0])]])
                fresh = [tf.Variable(3.0)]
                reached.reach(group, workers.state, fresh, OptimizerInfo, late=False)
                told.append(group.row.restored)
            self.assertEqual(told, expected)


class StrategyTest(tf.test.TestCase):
    def test_under_a_strategy_statistics_are_each_replicas_own(self):
        state, group = State(), StrategyGroup()
        state.place(2, [0], [None])
        compared = []
        for value in (1.0, 2.0):
            statistics = [tf.Variable(value)]
            with mock.patch.object(
                initial_values, "model_in_training", lambda of=statistics: ((), of, 0)
            ):
                InitialValues().reach(group, state, [tf.Variable(3.0)], OptimizerInfo, late=False)
            compared.append(group.row)
        self.assertEqual(*compared)

    def test_an_eager_step_on_other_variables_is_compared_too(self):
        state, group, reached = State(), StrategyGroup(), InitialValues()
        state.place(2, [0], [None])
        first, second = tf.Variable(1.0), tf.Variable(2.0)
        rows = []
        for variable in (first, first, second):
            group.row = None
            for _ in range(2):
                reached.reach(group, state, [variable], OptimizerInfo, late=True)
            rows.append(group.row)
        self.assertNotEqual(rows[0].weights, rows[2].weights)
