"""How "auto" times the steps of real Aggregators, agrees between workers, and is saved."""

import collections
import math
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from launch import launch
from tuned_workers import EDEN, NOTHING, START, TOPK, Clocks

import grace_tf
from grace_tf.aggregation.choice import agreement, rest
from grace_tf.aggregation.choice import tuner as subject
from grace_tf.aggregation.choice.agreement import Agreement
from grace_tf.aggregation.choice.tuner import Tuner
from grace_tf.transports.lifeline import lifeline


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

    def test_without_connections_to_all_workers_the_sentence_says_so(self):
        line = Clocks([()] * 2).lines[0]
        line.joined = lambda seconds: False
        with mock.patch.object(lifeline, "current", lambda: line):
            with self.assertRaisesRegex(RuntimeError, "not connected to all other workers"):
                Agreement().largest([2.0])

    def test_the_name_of_the_first_trace_stays(self):
        clocks = Clocks([()] * 2)
        mine, theirs = Agreement(), Agreement()
        for agree, names in ((mine, "PQ"), (theirs, "PQP")):  # worker 1 alone traces P again
            for name in names:
                agree.name(name)
        for line, agree in zip(clocks.lines, (mine, theirs)):
            heard = mock.patch.object(
                agreement, "_heard", collections.defaultdict(dict, line.heard)
            )
            line.until = lambda *_: False
            with mock.patch.object(lifeline, "current", lambda line=line: line), heard:
                if line.rank == 0:
                    with self.assertRaisesRegex(RuntimeError, "Worker 1 of 2 did not tell"):
                        agree.largest([2.0])
                else:
                    self.assertEqual(agree.largest([1.0]), [2.0])

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
        times = (0.9, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.1)
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
    assert whole["held"] == resumed["held"] == [0, 1, EDEN, 6]
    assert 6 in whole["arms"] and 1 in whole["arms"]  # a comparison with the rival too
    assert resumed["arms"] == whole["arms"]
    assert resumed["bits"] == whole["bits"]


if __name__ == "__main__":
    tf.test.main()
