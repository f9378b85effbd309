"""Two workers whose first steps differ, in real processes: taken from worker 0, or refused."""

import re

import pytest
import tensorflow as tf
from launch import launch_once
from models import KERAS_3

START = r"^Workers cannot train together, "
NEW = (
    r"^The workers started with different weights; all have taken worker 0's \(\d+ variables, \d+ "
    r"bytes\)\. This is normal where random seeds differ\.$"
)
MISTAKES = {
    "setting": r"settings \(beta_1\): make it alike everywhere",
    "schedule": r"settings \(learning_rate\): make it alike everywhere",
    "order": r"gradients of different variables, '[ab](:0)?' here",
    "only worker 1 restored": "worker 1 has restored a training state of step 10 and worker 0 has",
    "files of different steps": "different steps, worker 0 of step 10 and worker 1 of step 8",
    "optimizer": "the optimizers differ",
}


def first_steps(engine):
    """{case: what each of the two workers said}."""
    cases = {}
    for worker, answers in enumerate(launch_once("first_step.py", engine).succeeded().answers()):
        for told in answers:
            cases.setdefault(told.pop("case"), {})[worker] = told
    assert all(sorted(told) == [0, 1] for told in cases.values()), cases
    return {name: (told[0], told[1]) for name, told in cases.items()}


class FirstStep:
    """What holds under every engine."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cases = first_steps(cls.engine)

    def test_mistakes_end_in_the_same_sentence_on_every_worker(self):
        for name, sentence in MISTAKES.items():
            first, second = (told.get("sentence", "") for told in self.cases[name])
            self.assertRegex(first, START, name)
            self.assertRegex(first, sentence, name)
            self.assertEqual(re.sub("'[ab](:0)?'", "", first), re.sub("'[ab](:0)?'", "", second))

    def test_workers_that_have_all_restored_go_on_silently(self):
        first, second = self.cases["all restored"]
        self.assertEqual(first["sha"], second["sha"])
        self.assertEqual([first["said"], second["said"]], [[], []])


@pytest.mark.slow
class ProcessGroupTest(FirstStep, tf.test.TestCase):
    engine = "group"

    def test_other_learning_rates_are_refused(self):
        for told in self.cases["rate"]:
            self.assertRegex(told["sentence"], "0.01 on worker 0 and 0.02 on worker 1")

    def test_what_only_worker_0_has_restored_goes_to_all(self):
        whole = self.cases["all restored"][0]["sha"]
        shas = set()
        for name in ("only worker 0 restored", "worker 0 restored and broadcast"):
            first, second = self.cases[name]
            self.assertEqual(first["sha"], second["sha"], name)
            shas.add(first["sha"])
            for told in (first, second):
                self.assertRegex(told["said"][0], "^Only worker 0 has the .*state of step 10")
        # Both ways are the same; worker 1's own residual is in no file of worker 0's.
        self.assertLen(shas, 1)
        self.assertNotIn(whole, shas)

    def test_where_fit_runs_eagerly_the_state_of_worker_0_goes_to_all_too(self):
        first, second = self.cases["fit, only worker 0 restored"]
        self.assertEqual(first["sha"], second["sha"])
        for told in (first, second):
            self.assertEndsWith(told["sha"], " 6")
            self.assertRegex(told["said"][0], "^Only worker 0 has the .*state of step 3")

    def test_without_seeds_every_model_takes_worker_0s_values(self):
        shas = set()
        for name in ("sequential", "subclassed", "frozen", "callback", "aggregator"):
            first, second = self.cases[name]
            self.assertEqual(first["sha"], second["sha"], name)
            shas.add(first["sha"])
            self.assertLen(first["said"], 1, name)
            self.assertRegex(first["said"][0], NEW)
            self.assertEqual(second["said"], [])
        self.assertLen(shas, 5)

    def test_accumulated_gradients_are_each_workers_own(self):
        names = [name for name in self.cases if name.startswith("accumulated")]
        self.assertLen(names, 3 if KERAS_3 else 0)
        for name in names:
            for told in self.cases[name]:
                self.assertEqual(told["said"], [], name)
        # Eager steps and traced ones differ in their last bits.
        shas = {told["sha"] for name in names[:2] for told in self.cases[name]}
        self.assertLen(shas, 1 if KERAS_3 else 0)

    def test_an_empty_broadcast_is_refused(self):
        for told in self.cases["empty broadcast"]:  # by Keras 2 itself
            self.assertRegex(told["sentence"], "got no variables|have not yet been created")


@pytest.mark.slow
class MultiWorkerTest(FirstStep, tf.test.TestCase):
    engine = "mwms"

    def test_the_strategy_gives_all_workers_the_same_learning_rate(self):
        first, second = self.cases["rate"]
        self.assertEqual(first["sha"], second["sha"])

    def test_what_only_worker_0_has_restored_is_refused(self):
        for told in self.cases["only worker 0 restored"]:
            self.assertRegex(told["sentence"], f"{START}the training states differ|have different")
