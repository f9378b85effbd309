"""Tests of what a traced step with "auto" contains.

They check which methods the step contains, and before which step "auto" measures the network.

They give "auto" predictions, which it uses instead of measurements.
"""

import types
from unittest import mock

import numpy as np
import tensorflow as tf
from tuned_workers import EDEN, FINER, NOTHING, START, Line

import grace_tf
from grace_tf.aggregation.choice import foresight, rest
from grace_tf.aggregation.choice import tuner as subject
from grace_tf.aggregation.choice.agreement import Agreement
from grace_tf.aggregation.choice.pruning import Foreseen
from grace_tf.aggregation.choice.tuner import Tuner
from grace_tf.cli.advise.errors import vnmse
from grace_tf.line.plan import make_plan
from grace_tf.line.settings import settings
from grace_tf.transports.lifeline import lifeline


def plans_of(spec="auto:quality=aggressive", shapes=([1 << 18],), **keywords):
    """The plans of all arms.  From four workers on, 256 Ki elements travel in two hops."""
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    paths = [f"v{i}" for i in range(len(shapes))]
    stages = settings(spec, **keywords).stages
    return [make_plan(stage, paths, specs, range(len(shapes))) for _, stage in stages]


def predicted(*micros):
    return {arm: Foreseen(each, each, 0) for arm, each in enumerate(micros)}


class ArmsTest(tf.test.TestCase):
    PLANS = plans_of()
    BETTER = predicted(900, 500, 600, 200)  # eden alone
    OTHER = predicted(900, 500, 100, 600)  # 8 bits alone

    def arms(self, tuner, choice=START, foreseen=BETTER, between=lambda: None, call=None, size=2):
        line, told = types.SimpleNamespace(rank=0, size=2), mock.Mock(return_value=foreseen)
        state = types.SimpleNamespace(choices=[tf.constant(choice)], size=size)
        with (
            mock.patch.object(lifeline, "current", lambda: line),
            mock.patch.object(Agreement, "largest", lambda self, numbers: numbers),
            mock.patch.object(foresight, "foresee", told),
            mock.patch.object(rest, "call_of", lambda tuner: call or rest.Call()),
        ):
            return tuner.arms(self.PLANS, between, state), told.call_count

    def test_only_what_is_worth_it_is_traced_and_the_reason_has_the_numbers(self):
        tuner = Tuner(grace_tf.get("auto"))
        self.assertEqual(self.arms(tuner), ((0, 1, EDEN), 1))
        self.assertEqual(self.arms(tuner), ((0, 1, EDEN), 0))  # a second trace
        self.assertIn("tries eden, since exchange and codec of eden take 0.2 ms", tuner.reason)

    def test_where_nothing_is_worth_it_one_sentence_says_so(self):
        same = predicted(9000, 5000, 5000, 8000)
        with self.assertLogs("grace_tf", "INFO") as told:
            tuner = Tuner(grace_tf.get("auto"))
            self.assertEqual(self.arms(tuner, foreseen=same), ((0, 1), 1))
        self.assertLen(told.output, 1)
        self.assertIn(
            "auto tries no method beside none and bf16, since exchange and codec of qsgd:bits=8 "
            "take 5 ms (5 ms and 0 ms), of bf16 take 5 ms (5 ms and 0 ms).",
            told.output[0],
        )

    def test_a_training_that_goes_on_has_the_arms_of_its_choice(self):
        saved = [2, 1, 2, 0, 7, 0, 0, 0, 0, 0b0111]
        self.assertEqual(self.arms(Tuner(grace_tf.get("auto")), saved), ((0, 1, 2), 0))
        saved[-1] = 0b1010  # none was far behind
        self.assertEqual(self.arms(Tuner(grace_tf.get("auto")), [1, EDEN, *saved[2:]]), ((1, 3), 0))
        comparing = [-1, -1, *7 * [0], 0b0111]
        self.assertEqual(self.arms(Tuner(grace_tf.get("auto")), comparing), ((0, 1, EDEN), 1))

    def fit(self, seconds, planned, foreseen=BETTER, total=1000, error=0.0, spec="auto"):
        """Simulates a training of `total` steps by calls of `fit` with `planned` steps each.

        Args:
          seconds: of a step, by arm.
          foreseen: what a measurement of the network predicts.
          error: the vNMSE of measured steps.
        Returns: the tuner; the arm of each step; the numbers of the steps before which the network
          was measured.
        """
        now, saved, taken, measured, sample = [0.0], START, [], [], NOTHING
        tuner, line = Tuner(grace_tf.get(spec), lambda: now[0]), Line(0, [])
        line.size = 2
        first = (0, 1) if planned < subject.FEWEST else (0, 1, EDEN)
        self.assertEqual(self.arms(tuner, call=rest.Call(planned, 0, True)), (first, 0))
        with (
            mock.patch.object(lifeline, "current", lambda: line),
            mock.patch.object(Agreement, "largest", lambda self, numbers: numbers),
            mock.patch.object(foresight, "foresee", lambda *_: foreseen),
        ):
            for step in range(total):
                call = rest.Call(planned, step % planned, True)
                with mock.patch.object(rest, "call_of", lambda tuner, call=call: call):
                    if tuner.outdated:
                        measured.append(step)
                        before = tuner._traced
                        self.assertEqual(tuner.renew(), tuner._traced != before)
                        now[0] += 9.0
                    arm, looked, saved = tuner._next(saved, sample, step)
                now[0] += seconds[arm]
                sample = np.array([step, error, 0.0]) if looked else sample
                taken.append(int(arm))
        return tuner, taken, measured

    def test_fit_tries_eden_without_any_measurement(self):
        tuner, taken, measured = self.fit((0.09, 0.05, 9, 0.02), 1000)
        self.assertEqual(measured, [])
        self.assertEqual(taken[:17], [*4 * [1], *4 * [0], *4 * [1], *5 * [EDEN]])
        self.assertEqual(tuner.spec, "eden")
        self.assertIn("too little can be gained", tuner.reason)

    def test_fit_measures_the_network_where_half_of_the_bytes_save_time_and_eden_does_not(self):
        """A block each of bf16, none, bf16 and eden; then, after one more step, of the new arm."""
        with self.assertLogs("grace_tf", "INFO") as told:
            tuner, taken, measured = self.fit((0.09, 0.05, 0.03, 0.06), 1000, self.OTHER)
        self.assertEqual(measured, [17])
        self.assertEqual(taken[8:24], [*4 * [1], *4 * [EDEN], 1, *7 * [2]])
        self.assertEqual(tuner.spec, "qsgd:bits=8")
        self.assertEqual(tuner._traced, (1, 2, EDEN))  # without compression it is far behind
        self.assertLess(taken.count(1), 40)
        self.assertIn("auto tries qsgd:bits=8", told.output[0])  # not that bf16 was chosen
        self.assertLen(told.output, 2)

    def test_fit_does_not_measure_where_half_of_the_bytes_save_little(self):
        tuner, _, measured = self.fit((0.0185, 0.018, 9, 0.02), 1000)
        self.assertEqual(measured, [])
        self.assertIn("auto tries no other method, since too little can be gained", tuner.reason)

    def test_fit_measures_for_what_a_quality_admits_beyond_eden(self):
        """A step with eden is 30 ms shorter than with bf16, so powersgd may save another 10 ms."""
        seconds = (0.09, 0.05, 9, 0.02, 9, 9, 0.01)
        same = predicted(9000, 5000, 9000, 2000, 9000, 9000, 1000)
        tuner, _, measured = self.fit(seconds, 400, same, 400, spec="auto:quality=balanced")
        self.assertEqual(measured, [])
        tuner, _, measured = self.fit(seconds, 1000, same, spec="auto:quality=balanced")
        self.assertEqual((measured, tuner.spec), ([17], "powersgd"))

    def test_at_the_end_of_fit_no_measurement_pays(self):
        self.assertLen(self.fit((0.06, 0.05, 9, 0.06), 1000)[2], 1)
        self.assertEqual(self.fit((0.06, 0.05, 9, 0.06), 490)[2], [])

    def test_a_long_training_measures_in_any_case_and_is_not_traced_again_for_nothing(self):
        same = predicted(90, 50, 80, 80)
        tuner, _, measured = self.fit((0.2, 0.21, 9, 0.3), 2000, foreseen=same)
        self.assertLen(measured, 1)
        self.assertIn("since exchange and codec of qsgd:bits=8 take", tuner.reason)
        self.assertEqual(tuner.spec, "none")

    def test_a_long_training_is_not_traced_again_for_a_method_that_is_no_better_than_eden(self):
        """eden takes a fifth of the time of bf16; 8 bits are foreseen to be nearly as fast."""
        near = predicted(9000, 5000, 1100, 1000)
        tuner, _, measured = self.fit((0.9, 0.5, 0.11, 0.1), 3000, foreseen=near)
        self.assertLen(measured, 1)
        self.assertEqual((tuner._traced, tuner.spec), ((0, 1, EDEN), "eden"))
        better = predicted(9000, 5000, 900, 1000)
        tuner, _, _ = self.fit((0.9, 0.5, 0.09, 0.1), 3000, foreseen=better)
        self.assertEqual(tuner._traced, (1, 2, EDEN))

    def test_where_nothing_is_worth_a_trial_the_step_stays_though_one_is_far_behind(self):
        same = predicted(90, 50, 80, 80)
        tuner, taken, measured = self.fit((0.09, 0.05, 9, 0.06), 1000, foreseen=same)
        self.assertEqual((measured, tuner._traced, tuner.spec), ([17], (0, 1, EDEN), "bf16"))

    def test_a_method_that_is_left_leaves_the_baseline_that_the_step_holds(self):
        tuner, taken, _ = self.fit((0.09, 0.05, 0.03, 0.06), 1000, self.OTHER, error=0.5)
        self.assertEqual((tuner._traced, tuner.spec), ((1, 2, EDEN), "bf16"))
        self.assertLess(taken.count(2), 10)

    def test_a_quality_that_allows_more_error_keeps_what_safe_leaves(self):
        for spec, chosen in (("auto", "bf16"), ("auto:quality=balanced", "eden")):
            tuner, _, _ = self.fit((0.09, 0.05, 9, 0.02), 400, total=400, error=0.02, spec=spec)
            self.assertEqual(tuner.spec, chosen)

    def test_a_restored_training_measures_where_it_becomes_long(self):
        tuner = Tuner(grace_tf.get("auto"), lambda: self.now)
        saved = np.array([1, 0, 1, 0, 60, 0, 0, 0, 0, 0b0011])
        self.now, line, call = 0.0, Line(0, []), rest.Call(10_000, 0, True)
        line.size = 2
        self.assertEqual(self.arms(tuner, saved, call=call), ((0, 1), 0))
        with (
            mock.patch.object(lifeline, "current", lambda: line),
            mock.patch.object(Agreement, "largest", lambda self, numbers: numbers),
            mock.patch.object(rest, "call_of", lambda tuner: call),
        ):
            for step in range(200):
                arm, _, saved = tuner._next(saved, NOTHING, step)
                self.now += (0.06, 0.05)[arm]
                if tuner.outdated:
                    return
        self.fail("nothing was measured")

    def test_short_calls_of_fit_measure_once_they_are_a_long_training(self):
        """What such a measurement finds is not pruned for the few steps so far."""
        with mock.patch.object(self, "PLANS", plans_of(shapes=[[9]] * 200)):
            _, taken, measured = self.fit((0.09, 0.05, 9, 0.02), 50)
        self.assertEqual(measured, [subject.FEWEST + 13])
        self.assertEqual({*taken[: subject.FEWEST]}, {1})
        self.assertIn(EDEN, taken)
        self.assertEqual(self.fit((0.021, 0.02, 9, 0.01), 50)[2], [])

    def test_a_step_that_nothing_traces_again_is_measured_before_its_first_trace(self):
        """An Aggregator in a `train_step`, or a second optimizer; short calls trace the others."""
        for steps, arms in ((1000, (0, 1, EDEN)), (50, (0, 1))):
            found, _ = self.arms(Tuner(grace_tf.get("auto")), call=rest.Call(steps, 0, False))
            self.assertEqual(found, arms)

    def test_two_hops_are_tried_with_a_bit_more_since_four_bits_would_be_left_for_their_error(self):
        better = {**predicted(900, 500, 600), FINER: Foreseen(250, 250, 0)}
        tuner = Tuner(grace_tf.get("auto"))
        self.assertEqual(self.arms(tuner, foreseen=better, size=4), ((0, 1, FINER), 1))
        self.assertIn("auto tries eden:bits=5, since", tuner.reason)
        found, _ = self.arms(Tuner(grace_tf.get("auto")), between=None, size=4)
        self.assertEqual(found, (0, 1, 2, FINER))

    def test_four_bits_are_tried_where_nothing_of_auto_travels_in_two_hops_or_more_is_allowed(self):
        auto, small = {".*0": "qsgd:bits=8", ".*": "auto"}, [[1 << 18], [5000]]
        for spec, given, keywords, size, scout in (
            ("auto", "auto", {}, 4, FINER),
            ("auto", "auto", {}, 3, EDEN),
            ("auto", "auto", {"exchange": "gather"}, 4, EDEN),
            ("auto", auto, {"shapes": small}, 4, EDEN),
            ("auto:quality=balanced", "auto:quality=balanced", {}, 4, EDEN),
        ):
            tuner, call = Tuner(grace_tf.get(spec)), rest.Call(1000, 0, True)
            with mock.patch.object(self, "PLANS", plans_of(given, **keywords)):
                found, _ = self.arms(tuner, call=call, size=size)
            self.assertEqual(found, (0, 1, scout), (given, keywords, size))

    def test_a_training_saved_with_fewer_workers_compares_anew_where_two_hops_begin(self):
        line = types.SimpleNamespace(rank=0, size=4)
        for arm, rival in ((EDEN, 1), (1, 0)):
            tuner, saved = Tuner(grace_tf.get("auto"), lambda: 0.0), START.copy()
            saved[:2], saved[2:5], saved[-1] = (arm, rival), (2, 0, 7), 0b1011
            found, _ = self.arms(tuner, saved, call=rest.Call(1000, 0, True), size=4)
            self.assertEqual(found, (0, 1, FINER))
            with (
                mock.patch.object(lifeline, "current", lambda: line),
                mock.patch.object(Agreement, "largest", lambda self, numbers: numbers),
            ):
                tuner._next(saved, NOTHING, 7)
            self.assertIsNone(tuner.spec)

    def test_the_error_of_safe_methods_is_within_the_bound_in_two_hops_too(self):
        grads = [[tf.random.stateless_normal([1 << 18], [1, w])] for w in range(4)]
        choice = grace_tf.get("auto")
        for arm in choice.arms(two_hops=True)[choice.BASELINES :]:
            self.assertLess(vnmse(str(choice.stages[arm].compressor), grads), 0.01)
        self.assertGreater(vnmse("eden:bits=4", grads), 0.01)

    def test_where_nothing_can_be_measured_all_are_traced(self):
        self.assertEqual(self.arms(Tuner(grace_tf.get("auto")), between=None), ((0, 1, 2, EDEN), 0))

    def test_steps_that_become_slower_let_all_workers_look_again_at_the_same_step(self):
        """Only baselines were worth a trial; then the network becomes ten times as slow."""
        now, line, saved = [0.0], types.SimpleNamespace(rank=0, size=2), START
        tuner = Tuner(grace_tf.get("auto"), lambda: now[0])
        same = predicted(90, 50, 80, 80)
        self.assertEqual(self.arms(tuner, foreseen=same), ((0, 1), 1))
        with (
            mock.patch.object(lifeline, "current", lambda: line),
            mock.patch.object(Agreement, "largest", lambda self, numbers: numbers),
        ):
            for step in range(800):
                arm, _, saved = tuner._next(saved, NOTHING, step)
                now[0] += (0.2, 0.19)[arm] * (10 if step > 300 else 1)
                if tuner.outdated:
                    break
            self.assertBetween(step, 301, 300 + 600)
            with mock.patch.object(foresight, "foresee", lambda *_: self.BETTER):
                self.assertTrue(tuner.renew())
            self.assertEqual(self.arms(tuner, saved), ((0, 1, EDEN), 0))
            arms = []
            for later in range(step, step + 150):
                arm, _, saved = tuner._next(saved, NOTHING, later)
                now[0] += (2.0, 1.9, 9.9, 0.3)[arm]
                arms.append(int(arm))
        self.assertEqual(tuner.spec, "eden")
        self.assertNotIn(2, arms)


if __name__ == "__main__":
    tf.test.main()
