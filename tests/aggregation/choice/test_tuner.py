"""How "auto" times the steps of real Aggregators, agrees between workers, and is saved."""

import math
import threading
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from launch import launch

import grace_tf
from grace_tf.aggregation.choice import agreement, foresight, rest
from grace_tf.aggregation.choice import tuner as subject
from grace_tf.aggregation.choice.agreement import Agreement
from grace_tf.aggregation.choice.pruning import Foreseen
from grace_tf.aggregation.choice.tuner import Tuner
from grace_tf.transports.lifeline import lifeline

START = np.array([-1, -1, *8 * [0]], np.int64)
NOTHING = np.full([3], np.nan)


EDEN, TOPK = 3, 6


class Line:
    """The lifeline of one of several workers in this process; messages arrive at once."""

    patience = 5.0

    def __init__(self, rank, lines):
        self.rank, self.size, self._lines = rank, 0, lines
        self.changed, self.broken = threading.Condition(threading.RLock()), None
        self.heard = {}
        lines.append(self)

    def on(self, topic, handler):
        pass

    def tell(self, topic, data):
        label, number, seconds = data
        for line in self._lines:
            if line is not self:
                with line.changed:
                    line.heard.setdefault((label, number), {})[self.rank] = list(
                        map(float, seconds)
                    )
                    line.changed.notify_all()

    def until(self, true, seconds):
        with self.changed:
            return self.changed.wait_for(lambda: true() or self.broken, seconds) and true()

    def check(self):
        if self.broken:
            raise RuntimeError(self.broken)


class Clocks:
    """Workers as threads, each with a clock of its own that its steps move on.

    `shown(worker, arm, step)` returns what a measured step shows: (vNMSE, residual by gradient).
    """

    def __init__(self, times, spec="auto", shown=lambda worker, arm, step: (0.0, math.nan)):
        self.spec, self.shown = spec, shown
        lines = []
        self.lines = [Line(rank, lines) for rank in range(len(times))]
        for line in lines:
            line.size = len(lines)
        self.times, self.here = times, threading.local()

    def run(self, steps):
        """The arms that each worker took, and its tuner."""
        out = [None] * len(self.times)

        def work(rank):
            self.here.line, now = self.lines[rank], [0.0]
            tuner, arms, saved = Tuner(grace_tf.get(self.spec), lambda: now[0]), [], START
            sample = NOTHING
            for step in range(steps):
                arm, measured, saved = tuner._next(saved, sample, step)
                now[0] += self.times[rank][arm]
                if measured:
                    sample = np.array([step, *self.shown(rank, int(arm), step)])
                arms.append(int(arm))
            out[rank] = arms, tuner

        heard = mock.patch.object(agreement, "_heard", _Heard(self.here))
        current = mock.patch.object(lifeline, "current", lambda: self.here.line)
        with heard, current:
            threads = [threading.Thread(target=work, args=(r,)) for r in range(len(out))]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        return out


class _Heard:
    """What the worker of the current thread has heard."""

    def __init__(self, here):
        self._here = here

    def __getitem__(self, key):
        return self._here.line.heard.setdefault(key, {})

    def pop(self, key):
        return self._here.line.heard.pop(key)


class TunerTest(tf.test.TestCase):
    def test_workers_that_measure_other_times_take_the_same_arms(self):
        """Each arm is judged by the slowest worker; worker 1's codecs are slow."""
        quick, slow = (0.9, 0.5, 0.3, 0.2), (0.9, 0.5, 0.31, 0.6)
        (mine, tuner), (other, theirs) = Clocks([quick, slow]).run(200)
        self.assertEqual(mine, other)
        self.assertEqual(tuner.spec, "qsgd:bits=8")
        self.assertEqual(tuner.reason, theirs.reason)
        self.assertIn("a step takes 310 ms (bf16 500 ms", tuner.reason)

    def test_one_worker_alone_compresses_nothing(self):
        variables = [tf.Variable(tf.zeros([64, 64]))]
        aggregate = grace_tf.Aggregator("auto")
        grad = tf.random.stateless_normal([64, 64], [1, 2])
        for step in (aggregate, tf.function(aggregate, autograph=False)):
            self.assertAllEqual(step([grad], variables)[0], grad)
        self.assertIn("nothing crosses a network", aggregate._stages.tuner.reason)

    def test_few_planned_steps_take_half_the_bytes_and_are_not_timed(self):
        with mock.patch.object(rest, "call_of", lambda tuner: rest.Call(50)):
            ((arms, tuner),) = [Clocks([(1, 1, 1, 1)] * 2).run(60)[0]]
        self.assertEqual(set(arms), {1})
        self.assertIn("too few", tuner.reason)

    def test_workers_that_plan_other_numbers_of_steps_take_the_same_arms(self):
        clocks = Clocks([(1, 1, 1, 1)] * 2)
        call = lambda tuner: rest.Call((190, 210)[clocks.here.line.rank])  # noqa: E731
        with mock.patch.object(rest, "call_of", call):
            (mine, _), (other, _) = clocks.run(60)
        self.assertEqual(mine, other)

    def test_many_short_calls_of_fit_are_a_long_training(self):
        with mock.patch.object(rest, "call_of", lambda tuner: rest.Call(50)):
            ((arms, tuner),) = [Clocks([(0.9, 0.5, 0.3, 0.2)] * 2).run(subject.FEWEST + 150)[0]]
        self.assertEqual(set(arms[: subject.FEWEST]), {1})
        self.assertEqual(tuner.spec, "eden")

    def test_a_lost_worker_ends_the_wait_with_its_sentence(self):
        clocks = Clocks([(1.0, 1.0, 1.0, 1.0)] * 2)
        line = clocks.lines[0]
        clocks.here.line, tuner, saved = line, Tuner(grace_tf.get("auto"), lambda: 0.0), START
        planned = mock.patch.dict(agreement._heard, {("", 1): {1: [-math.inf]}})
        with mock.patch.object(lifeline, "current", lambda: line), planned:
            with self.assertRaisesRegex(RuntimeError, "worker 1 is gone"):
                for step in range(40):
                    line.broken = "worker 1 is gone" if step == 10 else line.broken
                    *_, saved = tuner._next(saved, NOTHING, step)

    def test_numbers_that_come_just_after_the_wait_has_ended_count(self):
        line = Clocks([()] * 2).lines[0]
        line.until = lambda *_: False
        heard = mock.patch.dict(agreement._heard, {("", 1): {1: [3.0]}})
        with mock.patch.object(lifeline, "current", lambda: line), heard:
            agree = Agreement()
            self.assertEqual(agree.largest([2.0]), [3.0])
            with self.assertRaisesRegex(RuntimeError, "Worker 1 of 2 did not tell"):
                agree.largest([2.0])

    def test_a_saved_choice_goes_on_at_its_step_without_a_trial(self):
        times = (0.9, 0.5, 0.3, 0.2)
        clocks = Clocks([times] * 2)
        (arms, _), _ = clocks.run(420)
        saved_at = {}
        now, line = [0.0], types.SimpleNamespace(rank=0, size=2)
        with mock.patch.object(lifeline, "current", lambda: line):
            first, saved = Tuner(grace_tf.get("auto"), lambda: now[0]), START
            with mock.patch.object(Agreement, "largest", lambda self, seconds: seconds):
                for step in range(300):
                    saved_at[step] = saved
                    arm, _, saved = first._next(saved, NOTHING, step)
                    self.assertEqual(arm, arms[step])
                    now[0] += times[arm]
                for cut in (150, 190, 220):
                    self.assertGreaterEqual(saved_at[cut][0], 0)
                    again, saved = Tuner(grace_tf.get("auto"), lambda: now[0]), saved_at[cut]
                    for step in range(cut, 420):
                        arm, _, saved = again._next(saved, NOTHING, step)
                        self.assertEqual(arm, arms[step], (cut, step))
                        now[0] += times[arm]

    def test_a_method_whose_error_is_too_large_is_left_by_all_workers_alike(self):
        """Only worker 1 sees it: eden, the fastest, becomes bad at step 300."""

        def shown(worker, arm, step):
            return (0.2 if worker and arm == EDEN and step >= 300 else 0.009), math.nan

        times = (0.9, 0.5, 0.3, 0.2)
        with self.assertLogs("grace_tf", "WARNING") as told:
            (mine, tuner), (other, _) = Clocks([times] * 2, shown=shown).run(900)
        self.assertEqual(mine, other)
        self.assertEqual(mine[299], EDEN)
        last = max(step for step, arm in enumerate(mine) if arm == EDEN)
        self.assertBetween(last, 300, 640)  # measured every 300 steps
        self.assertEqual(tuner.spec, "qsgd:bits=8")
        self.assertIn("Excluded for a large error or residual: eden.", tuner.reason)
        self.assertLen(told.output, 1)
        self.assertIn("auto leaves eden for good: the vNMSE of its mean is 0.2", told.output[0])

    def test_a_method_that_is_bad_from_the_start_is_left_at_its_third_measured_step(self):
        shown = lambda worker, arm, step: (0.02 if arm == EDEN else 0.001, math.nan)  # noqa: E731
        ((arms, tuner), _) = Clocks([(0.9, 0.5, 0.3, 0.2)] * 2, shown=shown).run(400)
        self.assertEqual(tuner.spec, "qsgd:bits=8")
        self.assertLess(arms.count(EDEN), 80)

    def test_a_residual_that_grows_and_grows_ends_its_method(self):
        shown = lambda worker, arm, step: (1.0, 12.0 + step if arm == TOPK else 2.0)  # noqa: E731
        times = (0.9, 0.5, 0.4, 0.4, 0.4, 0.4, 0.1)
        clocks = Clocks([times] * 2, "auto:quality=aggressive", shown)
        (arms, tuner), (other, _) = clocks.run(500)
        self.assertEqual(arms, other)
        self.assertNotIn(TOPK, arms[-100:])
        self.assertIn("topk", tuner.reason)

    def test_a_resumed_training_leaves_a_method_at_the_same_step(self):
        """Three errors a little above the bound, in watches; saved behind each measured step."""
        times, line = (0.9, 0.5, 0.3, 0.2), types.SimpleNamespace(rank=0, size=2)

        def go(tuner, now, saved, sample, steps, kept):
            arms = []
            for step in steps:
                kept[step] = saved, sample
                arm, measured, saved = tuner._next(saved, sample, step)
                arms.append(int(arm))
                now[0] += times[arm]
                if measured:
                    sample = np.array([step, 0.015 if arm == EDEN and step > 60 else 0.005, 0.0])
            return arms

        with mock.patch.object(lifeline, "current", lambda: line):
            with mock.patch.object(Agreement, "largest", lambda self, found: found):
                now, kept = [0.0], {}
                first = Tuner(grace_tf.get("auto"), lambda: now[0])
                arms = go(first, now, START, NOTHING, range(500), kept)
                end = max(step for step, arm in enumerate(arms) if arm == EDEN) + 1
                self.assertBetween(end, 200, 400)
                for cut in range(150, end + 1):
                    again = Tuner(grace_tf.get("auto"), lambda: now[0])
                    later = go(again, now, *kept[cut], range(cut, end + 30), {})
                    self.assertEqual(later, arms[cut : end + 30], cut)
                self.assertEqual(again._trial.left, {EDEN})

    def test_the_steps_of_a_real_aggregator_show_its_errors(self):
        """A step that is to be measured leaves its step and vNMSE in the state, others do not."""
        variables = [tf.Variable(tf.zeros([64, 64]), name="v")]
        draws = np.random.default_rng(3).normal(size=[64, 64]).astype(np.float32)
        arms = [(0, False), (EDEN, True), (EDEN, False)]
        for make in (lambda f: f, lambda f: tf.function(f, autograph=False)):
            aggregate = grace_tf.Aggregator("auto", min_elements=1)
            step = make(lambda grad, to=aggregate: to([grad], variables)[0])
            found = []
            for arm, measured in arms:
                forced = lambda state, a=arm, m=measured: (tf.constant(a), tf.constant(m))  # noqa: E731
                aggregate._stages.tuner.number = forced
                aggregate._stages.tuner._foresight.arms = (0, 1, 2, EDEN)
                step = make(lambda grad, to=aggregate: to([grad], variables)[0])
                got = step(tf.constant(draws))
                found.append(aggregate.state.sample.numpy())
            self.assertAllEqual(found[0], NOTHING)
            self.assertEqual(found[1][0], 1)
            self.assertBetween(found[1][1], 0.005, 0.02)
            wanted = np.sum((got - draws) ** 2) / np.sum(draws**2)
            self.assertAllClose(found[1][1], wanted, rtol=0.1)
            self.assertAllEqual(found[2], found[1])
            shown = aggregate.metrics()
            self.assertAllClose(shown["vnmse"], found[1][1], rtol=1e-9)
            self.assertEqual((shown["step"], shown["skipped"]), (1, None))

    def test_the_choice_is_a_part_of_the_saved_state(self):
        variables = [tf.Variable(tf.zeros([64, 64]), name="v")]
        old = grace_tf.Aggregator("auto", variables)
        old([tf.ones([64, 64])], variables)
        self.assertAllEqual(old.state.arrays()["choice"], [[-1, -1, 0, 0, 1, 0, 0, 0, 0, 1]])
        new = grace_tf.Aggregator("auto", variables)
        new.state.place(1, [0], [None])
        words = [3, 1, 2, 0, 7, 4, 1, 0, 0, 11]
        new.state.restore({**old.state.arrays(), "choice": np.array([words])})
        self.assertAllEqual(new.state.choices[0], words)
        path = tf.train.Checkpoint(a=new).save(self.get_temp_dir() + "/c")
        third = grace_tf.Aggregator("auto", variables)
        tf.train.Checkpoint(a=third).restore(path)
        third.state.place(1, [0], [None])
        self.assertAllEqual(third.state.choices[0], words)

    def test_a_choice_that_an_earlier_version_has_saved_starts_anew(self):
        """Earlier versions have saved five words, and nine."""
        variables = [tf.Variable(tf.zeros([64, 64]), name="v")]
        new = grace_tf.Aggregator("auto", variables)
        new([tf.ones([64, 64])], variables)
        for words in ([3, 1, 2, 0, 7], [3, 1, 2, 0, 7, 0, 1, 0, 0]):
            with self.assertWarnsRegex(UserWarning, "choice .* an earlier version, and starts"):
                new.state.restore({**new.state.arrays(), "choice": np.array([words])})
            self.assertAllEqual(new.state.choices[0], START)
            new([tf.ones([64, 64])], variables)  # trains on


class ArmsTest(tf.test.TestCase):
    """Which arms are traced, with predictions in place of measurements."""

    # Two plans are enough: of them only the number of paths, and that they have buckets, count.
    PLANS = [types.SimpleNamespace(paths=["v"], buckets=[1])] * 4
    BETTER = [Foreseen(each, each, 0) for each in (900, 500, 600, 200)]  # eden alone
    OTHER = [Foreseen(each, each, 0) for each in (900, 500, 100, 600)]  # 8 bits alone

    def arms(self, tuner, choice=START, foreseen=BETTER, between=lambda: None, call=None):
        line, told = types.SimpleNamespace(rank=0, size=2), mock.Mock(return_value=foreseen)
        state = types.SimpleNamespace(choices=[tf.constant(choice)])
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
        same = [Foreseen(1000 * each, 1000 * each, 0) for each in (9, 5, 5, 8)]
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
        """Calls of `fit` with so many planned steps each, on a simulated clock.

        `error`: the vNMSE of measured steps.

        Returns: the tuner, the arm of each step, and the steps before which it has measured.
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
        """powersgd may save a third of what eden has saved beside bf16."""
        seconds = (0.09, 0.05, 9, 0.02, 9, 0.01)
        same = [Foreseen(each, each, 0) for each in (9000, 5000, 9000, 2000, 9000, 1000)]
        tuner, _, measured = self.fit(seconds, 400, same, 400, spec="auto:quality=balanced")
        self.assertEqual(measured, [])
        tuner, _, measured = self.fit(seconds, 1000, same, spec="auto:quality=balanced")
        self.assertEqual((measured, tuner.spec), ([17], "powersgd"))

    def test_at_the_end_of_fit_no_measurement_pays(self):
        self.assertLen(self.fit((0.06, 0.05, 9, 0.06), 1000)[2], 1)
        self.assertEqual(self.fit((0.06, 0.05, 9, 0.06), 490)[2], [])

    def test_a_long_training_measures_in_any_case_and_is_not_traced_again_for_nothing(self):
        same = [Foreseen(each, each, 0) for each in (90, 50, 80, 80)]
        tuner, _, measured = self.fit((0.2, 0.21, 9, 0.3), 2000, foreseen=same)
        self.assertLen(measured, 1)
        self.assertIn("since exchange and codec of qsgd:bits=8 take", tuner.reason)
        self.assertEqual(tuner.spec, "none")

    def test_where_nothing_is_worth_a_trial_the_step_stays_though_one_is_far_behind(self):
        same = [Foreseen(each, each, 0) for each in (90, 50, 80, 80)]
        tuner, taken, measured = self.fit((0.09, 0.05, 9, 0.06), 1000, foreseen=same)
        self.assertEqual((measured, tuner._traced, tuner.spec), ([17], (0, 1, EDEN), "bf16"))

    def test_a_method_that_is_left_leaves_the_baseline_that_the_step_holds(self):
        tuner, taken, _ = self.fit((0.09, 0.05, 0.03, 0.06), 1000, self.OTHER, error=0.5)
        self.assertEqual((tuner._traced, tuner.spec), ((1, 2, EDEN), "bf16"))
        self.assertLess(taken.count(2), 10)

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
        many = types.SimpleNamespace(paths=["v"] * 200, buckets=[1])
        with mock.patch.object(self, "PLANS", [many] * 4):
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

    def test_where_nothing_can_be_measured_all_are_traced(self):
        self.assertEqual(self.arms(Tuner(grace_tf.get("auto")), between=None), ((0, 1, 2, EDEN), 0))

    def test_steps_that_become_slower_let_all_workers_look_again_at_the_same_step(self):
        """Only baselines were worth a trial; then the network becomes ten times as slow."""
        now, line, saved = [0.0], types.SimpleNamespace(rank=0, size=2), START
        tuner = Tuner(grace_tf.get("auto"), lambda: now[0])
        same = [Foreseen(each, each, 0) for each in (90, 50, 80, 80)]
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


class SpecTest(tf.test.TestCase):
    def test_a_spec_reads_and_tells_the_same(self):
        from grace_tf.line.settings import from_config, settings

        for spec in ("auto", "auto:quality=aggressive"):
            self.assertEqual(str(grace_tf.get(spec)), spec)
            wanted = settings(spec)
            self.assertEqual(from_config(wanted.config()), wanted)
        mixed = settings({"embed.*": "none", ".*": "auto"})
        self.assertEqual(from_config(mixed.config()), mixed)
        self.assertEqual(str(mixed.choice), "auto")

    def test_what_cannot_be_chosen_is_refused_by_one_sentence(self):
        for given, keywords, words in (
            ("auto:quality=best", {}, "quality"),
            ("auto:bits=4", {}, "bits"),
            ("auto|values=fp16", {}, "no parts"),
            ("auto@0;none@9", {}, "no stage of a schedule"),
            ("auto", {"memory": "residual"}, "leave memory out"),
            ({"a": "auto", ".*": "topk:warmup=8"}, {}, "no schedule"),
            ({"a": "auto", ".*": "auto:quality=balanced"}, {}, "another quality"),
        ):
            with self.assertRaisesRegex((TypeError, ValueError), words):
                grace_tf.Aggregator(given, **keywords)

    def test_it_is_no_method_of_the_tables(self):
        self.assertNotIn("auto", grace_tf.available())


@pytest.mark.parametrize("engine", ["group", "strategy"])
def test_processes_choose_alike_and_keep_equal_weights(engine):
    told = launch("chooses.py", engine).succeeded().answers()
    ((mine,), (other,)) = told
    assert mine == other
    # What is chosen depends on the machine; that they have agreed does not.
    assert mine["agreements"] > 1
    assert mine["measured"] >= 1  # more often where the machine becomes slower
    assert 1 in mine["held"] and len(mine["held"]) <= 4


def test_fit_traces_its_step_again_where_short_calls_become_a_long_training():
    told = launch("chooses.py", "short").succeeded().answers()
    ((mine,), (other,)) = told
    assert mine == other
    assert (mine["held"], mine["measured"]) == ([1, EDEN], 1)
    assert "auto tries eden, since exchange and codec of eden take 0.2 s" in mine["reason"]


def test_a_training_that_goes_on_has_the_same_bits_and_measures_no_network(tmp_path):
    told = launch("resumes_choice.py", tmp_path).succeeded().answers()
    (whole, resumed), other = told
    assert [whole, resumed] == other
    assert (whole["measured"], resumed["measured"]) == (1, 0)
    assert whole["held"] == resumed["held"] == [0, 1, 3, 5]
    assert 5 in whole["arms"] and 1 in whole["arms"]  # a comparison with the rival too
    assert resumed["arms"] == whole["arms"]
    assert resumed["bits"] == whole["bits"]


if __name__ == "__main__":
    tf.test.main()
