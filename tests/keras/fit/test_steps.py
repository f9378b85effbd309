"""The comparison of steps in `fit`, on one worker with what it hears of the other."""

import threading
from unittest import mock

import numpy as np
import tensorflow as tf

from grace_tf.keras.fit import steps
from grace_tf.transports.lifeline import connections
from grace_tf.transports.world import data_shards

SOON = 30.0  # seconds; what is waited for comes at once


class Line:
    """Worker 0's lifeline to worker 1, as far as steps need it."""

    rank, size, patience = 0, 2, SOON

    def __init__(self):
        self.changed = threading.Condition(threading.RLock())
        self.told, self.left, self.broken = [], {}, None

    def on(self, topic, handler):
        setattr(self, f"hear_{topic}", handler)

    def tell(self, topic, data):
        self.told.append((topic, data))

    def joined(self, seconds):
        return True

    def until(self, true, seconds):
        with self.changed:
            assert self.changed.wait_for(lambda: true() or self.broken is not None, SOON)

    def stop(self, sentence):
        with self.changed:
            self.broken = self.broken or sentence
            self.changed.notify_all()

    def lay_to(self, worker, how="has left"):
        self.stop(f"worker {worker} {how}")

    def check(self):
        if self.broken is not None:
            raise RuntimeError(self.broken)

    def why(self, error):
        return None


class StepsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.line = Line()
        patch = mock.patch.object(steps, "_STUCK", 0.0)
        patch.start()
        self.addCleanup(patch.stop)

    def steps(self, counted=True, width=1):
        """A call of fit that has begun its first epoch."""
        taken = steps.Steps(self.line, counted, width)
        taken.__enter__()
        self.addCleanup(taken.__exit__, None, None, None)
        taken.begin_epoch(0)
        return taken

    def take(self, taken, count):
        for _ in range(count):
            taken.begin()
            taken.end()

    def hear(self, taken, what, count, how="", failed=False):
        self.line.hear_steps(1, [taken.call, what, [count, how, failed]])

    def test_workers_that_take_equally_many_steps_whoever_is_faster(self):
        taken = self.steps()
        self.take(taken, 2)
        self.hear(taken, 0, 3)
        self.take(taken, 1)
        taken.end_epoch()
        taken.begin_epoch(1)
        self.take(taken, 3)
        taken.end_epoch()
        self.hear(taken, 1, 6)
        self.hear(taken, steps._FIT, 6)
        taken.finish()
        ends = [[0, [3, "", False]], [1, [6, "", False]], [steps._FIT, [6, "", False]]]
        self.assertEqual(
            [[what, list(end)] for _, (_, what, end) in self.line.told],
            ends,
        )
        self.assertFalse([key for key in steps._ends if key[0] == taken.call])

    def test_a_step_that_the_other_does_not_take(self):
        for heard_before in (False, True):
            self.line = Line()
            taken = self.steps(width=4)
            self.take(taken, 3)
            if heard_before:
                self.hear(taken, 0, 3)
            taken.begin()
            if not heard_before:
                self.hear(taken, steps._FIT, 3, "EarlyStopping set stop_training")
            self.line.until(lambda: False, SOON)
            what = "epoch 1" if heard_before else "fit"
            how = "" if heard_before else ", because EarlyStopping set stop_training"
            remedy = "need equally many batches" if heard_before else "must stop at the same step"
            self.assertStartsWith(
                self.line.broken,
                f"Workers cannot go on: worker 1 of 2 ended {what} after 12 steps{how}, but worker "
                f"0 is in step 13; all workers {remedy}",
            )

    def test_a_step_that_the_other_took_in_its_next_epoch(self):
        taken = self.steps(width=4)
        self.take(taken, 3)
        self.hear(taken, 0, 3)
        self.assertIsNone(self.line.broken)
        taken._watched = taken._tries + 1  # as where the other goes on before the time is up
        self.take(taken, 1)
        self.assertStartsWith(
            self.line.broken,
            "Workers cannot go on: worker 1 of 2 ended epoch 1 after 12 steps, but worker 0 has "
            "taken 16 steps; all workers need equally many batches",
        )

    def test_a_step_for_which_there_is_no_data_either(self):
        taken = self.steps(counted=False)
        self.take(taken, 3)
        taken.begin()
        self.hear(taken, 0, 3)
        taken.take_back()
        taken._stuck(1, 0, steps._End(3), 4)  # as when the time for the fourth try is up
        taken.end_epoch()
        taken.begin_epoch(1)
        taken.begin()
        taken._stuck(1, 0, steps._End(3), 4)
        self.assertIsNone(self.line.broken)

    def test_a_collective_shows_that_there_is_data_though_their_number_is_unknown(self):
        taken = self.steps_until_a_collective(counted=False)
        self.hear(taken, 0, 3)
        taken.begin()
        self.line.until(lambda: False, SOON)
        self.assertIn("ended epoch 1 after 3 steps, but worker 0 is in step 4", self.line.broken)

    def test_a_step_goes_on_after_the_other_has_failed_until_it_is_in_a_collective(self):
        taken = self.steps_until_a_collective(counted=True)
        taken.begin()
        self.hear(taken, steps._FIT, 3, "ValueError: boom", failed=True)
        self.line.until(lambda: False, SOON)
        self.assertEqual(steps.under_way.call_count, 3)
        self.assertIn("because ValueError: boom, but worker 0 is in step 4", self.line.broken)

    def steps_until_a_collective(self, counted):
        """A call of fit after three steps; the third look at its fourth step finds a collective."""
        self.enter_context(mock.patch.object(steps, "_LONGER", 1 << 30))
        under_way = self.enter_context(mock.patch.object(steps, "under_way"))
        under_way.side_effect = [False, False, True]
        taken = self.steps(counted)
        self.take(taken, 3)
        return taken

    def test_an_epoch_that_the_other_ended_later(self):
        taken = self.steps()
        self.take(taken, 2)
        self.hear(taken, 0, 3)
        with self.assertRaisesRegex(
            RuntimeError, "worker 1 of 2 ended epoch 1 after 3 steps, but worker 0 ended it after 2"
        ):
            taken.end_epoch()

    def test_a_training_inside_a_callback_that_only_the_other_begins(self):
        taken = self.steps(width=4)
        self.take(taken, 3)
        self.line.hear_inside(1, [taken.call, 1, 2])  # the other is in the second step's callback
        taken.begin()
        self.line.until(lambda: False, SOON)
        self.assertStartsWith(
            self.line.broken,
            "Workers cannot go on: worker 1 of 2 trains inside a callback after 8 steps, but "
            "worker 0 is in step 13; all workers need the same calls of fit",
        )
        self.line = Line()
        taken = self.steps()
        self.take(taken, 2)
        self.line.hear_inside(1, [taken.call, 1, 2])
        with self.assertRaisesRegex(RuntimeError, "after 2 steps, but worker 0 has ended fit"):
            self.finish_when_broken(taken)

    def finish_when_broken(self, taken):
        """As `finish`, once the timer has run: the other never ends `fit`."""
        self.line.until = lambda true, seconds: Line.until(self.line, lambda: False, seconds)
        taken.finish()

    def test_a_training_inside_a_callback_of_all_workers(self):
        taken = self.steps()
        self.take(taken, 2)
        self.line.hear_inside(1, [taken.call, 1, 2])  # this one comes
        with taken.inside():
            self.take(taken, 1)
        self.line.hear_inside(1, [taken.call, 1, None])
        self.assertEqual(
            [told for topic, told in self.line.told if topic == "inside"],
            [[taken.call, 1, 2], [taken.call, 1, None]],
        )
        self.line.hear_inside(1, [taken.call, 2, 4])  # the other is ahead
        taken.begin()
        taken.end()
        taken._alone(1, taken._tries)  # as when the time is up
        self.line.hear_inside(1, [taken.call, 2, None])  # it raised, and was caught
        taken.begin()
        taken._alone(1, taken._tries)
        self.assertIsNone(self.line.broken)

    def test_how_the_other_may_leave(self):
        taken = self.steps()
        self.hear(taken, steps._FIT, 1, "ValueError: boom", failed=True)
        with self.assertRaisesRegex(
            RuntimeError, "worker 1 left fit after 1 step: ValueError: boom"
        ):
            taken.finish()
        self.line = Line()
        taken = self.steps()
        self.line.left[1] = "its program has ended"
        with self.assertRaisesRegex(RuntimeError, "worker 1 has left"):
            taken.finish()

    def test_the_end_waits_until_the_lifeline_has_named_a_silent_worker(self):
        taken = self.steps()

        def until(true, seconds):
            if seconds > self.line.patience + connections.BEAT:  # then its thread has seen it
                self.line.lay_to(1, "has not answered")

        self.line.until = until
        with self.assertRaisesRegex(RuntimeError, "worker 1 has not answered"):
            taken.finish()

    def test_the_end_waits_for_a_worker_that_saves_for_longer_than_the_timeout(self):
        taken, waits, called = self.steps(), [], []
        taken.when_all_have_ended(lambda: called.append(len(waits)))

        def until(true, seconds):
            waits.append(seconds)
            if len(waits) == 2:  # the first one has lasted for the timeout
                self.hear(taken, steps._FIT, 0)

        self.line.until = until
        with self.assertLogs("grace_tf", "WARNING") as told:
            taken.finish()
        self.assertEqual(called, [2])
        self.assertIn("waits for worker 1, which has not", told.output[0])

    def test_an_exception_is_told(self):
        with self.assertRaises(ValueError), steps.Steps(self.line, True) as taken:
            self.take(taken, 2)
            raise ValueError("boom\nand more")
        end = [taken.call, steps._FIT, (2, "ValueError: boom", True)]
        self.assertEqual(self.line.told, [("steps", end)])
        self.assertIsNone(steps.now())

    def test_a_worker_that_raises_what_the_other_has_raised_does_not_end_the_group(self):
        with self.assertRaises(ValueError), steps.Steps(self.line, True) as taken:
            taken.begin()
            raise ValueError("boom")
        taken._stuck(1, steps._FIT, steps._End(0, "ValueError: boom", True), 1)  # as by a timer
        self.assertIsNone(self.line.broken)

    def test_shares_of_equal_values_are_not_the_same_arrays(self):
        with mock.patch.object(data_shards, "_rows_of_shares", set(), create=True):
            data_shards.share(np.zeros((6, 2)), 0, 2, False)
            mine = np.zeros((3, 2)) + 0.5  # normalised after shard
            taken = self.steps()
            taken.compare_data(mine)
            told = [self.line.told[-1][1][1]]
            self.line = Line()
            self.line.rank = 1
            self.steps().compare_data(mine)
            told.append(self.line.told[-1][1][1])
        self.assertLen({*told}, 2)

    def test_the_same_arrays_on_all_workers_are_told_once(self):
        x = np.arange(6.0).reshape(3, 2)

        def told_of(rows):
            self.line = Line()
            taken = self.steps()
            taken.compare_data(rows)
            return taken, self.line.told[-1][1][1]

        _, same = told_of(x.copy())
        _, other = told_of(x[::-1])
        with self.assertLogs("grace_tf", "WARNING") as said:
            for digest in (same, other):
                taken, _ = told_of(x)
                self.line.hear_data(1, [taken.call, digest])
        self.assertLen(said.output, 1)
        self.assertIn("an epoch goes through every row 2 times", said.output[0])
