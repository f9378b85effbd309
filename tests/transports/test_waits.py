"""Waiting in a collective in which another worker takes no part, and what it costs."""

import contextlib
import gc
import sys
import threading
import weakref
from unittest import mock

import tensorflow as tf
from test_process_group import run

from grace_tf.transports.lifeline import waits


class Line:
    """A lifeline that keeps what is reported to it."""

    size, rank, closed, broken = 4, 1, False, None

    def __init__(self):
        self.told, self.laid, self.stopped, self.place = [], [], [], None
        self.changed = contextlib.nullcontext()

    def on(self, topic, handler):
        self.handler = handler

    def tell(self, topic, place):
        self.told.append(topic)
        self.place = place

    def stop(self, sentence):
        self.stopped.append(sentence)

    def lose_the_silent(self):
        pass

    def lose(self, worker, how):
        self.laid.append([worker, how])


class WaitsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.line, self.mark = Line(), tf.Variable(0.0, dtype=tf.float64)
        self.enter_context(mock.patch.object(waits.threading, "Thread"))
        clock = self.enter_context(mock.patch.object(waits.time, "monotonic"))
        self.at = lambda seconds: setattr(clock, "return_value", 1000.0 + seconds)
        self.at(0.0)
        self.calls = self.enter_context(mock.patch.object(waits, "_calls"))
        self.calls.return_value = [object()]
        self.waits = waits.Waits(self.line, timeout=100.0)
        self.waits.around(self.mark, [tf.ones([])], lambda: tf.ones([]))

    def look(self, seconds):
        self.at(seconds)
        self.waits.look()

    def test_the_mark_stands_while_the_collective_runs(self):
        seen = []

        def collective():
            seen.append(float(self.mark.numpy()))
            return tf.ones([])

        self.waits.around(self.mark, [tf.ones([])], collective)
        self.assertEqual(seen, [2.5])  # the second use of the mark
        self.assertEqual(float(self.mark.numpy()), 2.0)

    def test_what_is_under_way_is_known_by_the_lifeline(self):
        self.assertFalse(waits.under_way(self.line))
        self.mark.assign(7.5)
        self.assertTrue(waits.under_way(self.line))
        self.assertFalse(waits.under_way(Line()))
        self.line.closed = True
        self.assertFalse(waits.under_way(self.line))

    def test_in_a_function_the_collective_runs_between_the_assignments(self):
        @tf.function
        def step(x):
            return self.waits.around(self.mark, [x], lambda: self.mark.read_value())

        self.assertEqual(float(step(tf.ones([]))), 2.5)
        self.assertEqual(float(self.mark.numpy()), 2.0)

    def test_one_wait_of_the_timeout_is_laid_to_who_does_not_wait(self):
        self.mark.assign(7.5)
        for seconds in (0, 1, 50, 99):
            self.look(seconds)
            self.line.handler(3, [0, None, 0])
        self.assertEqual(self.line.laid, [])
        self.look(100)
        how = "did not take part within 100 s, nor did worker 2"
        self.assertEqual(self.line.laid, [[0, how]])
        self.assertEqual(self.line.told, ["waits"] * 3)

    def test_a_wait_without_a_mark_counts_while_it_lasts(self):
        with self.waits.unmarked():
            self.look(50)
            self.assertEqual(self.line.told, ["waits"])
            self.look(99)
            self.assertEqual(self.line.laid, [])
            self.look(100)
        self.assertEqual(self.line.laid[0][0], 0)
        self.look(1000)
        self.assertLen(self.line.laid, 1)

    def test_workers_that_all_wait_do_not_run_the_same_steps(self):
        self.mark.assign(7.5)
        self.look(0)
        self.look(1)
        self.at(100)
        for worker in (0, 2, 3):
            self.line.handler(worker, [0, None, 0])
        self.look(100)
        self.assertEqual(self.line.laid[0][0], 0)
        self.assertStartsWith(self.line.laid[0][1], "waits elsewhere for 100 s")

    def test_many_short_waits_are_no_long_one(self):
        for i in range(40):
            self.mark.assign(1.5 + i)
            self.look(10.0 * i)
        self.mark.assign(0.0)
        self.look(1000)
        self.assertEqual(self.line.laid, [])

    def test_what_a_failed_step_has_left_is_no_wait(self):
        self.mark.assign(7.5)
        for seconds in range(0, 1000, 10):
            # Other calls of TensorFlow, or none, while the mark stands.
            self.calls.return_value = [object()] if seconds % 20 else []
            self.look(float(seconds))
        self.assertEqual(self.line.laid + self.line.told, [])

    def test_a_wait_that_ends_before_the_second_look_keeps_no_frames(self):
        (call,) = self.calls.return_value = [Call()]
        ended = weakref.ref(call)
        self.mark.assign(7.5)
        self.look(0)
        self.calls.return_value = [Call()]
        self.waits._dropped.clear()  # as `_watch` does
        del call
        self.assertIsNone(ended())

    def test_a_look_that_fails_is_not_the_last_one(self):
        looks = mock.Mock(side_effect=[ZeroDivisionError, None])

        def until(true, seconds):
            self.line.closed = looks.call_count == 2

        self.line.until = until
        with mock.patch.object(self.waits, "look", looks), self.assertLogs("grace_tf", "ERROR"):
            self.waits._watch()
        self.assertEqual(looks.call_count, 2)

    def test_a_failed_use_counts_too(self):
        self.mark.assign(7.5)
        self.waits.around(self.mark, [tf.ones([])], lambda: tf.ones([]))
        self.assertEqual(float(self.mark.numpy()), 8.0)

    def wait_in_a_step(self):
        """Tells the others that this worker waits in the seventh use of key 11."""
        setattr(self.mark, waits.KEY, 11)
        self.mark.assign(7.5)
        self.enter_context(mock.patch.object(waits, "_waits"))
        for seconds in (0, 1, 2):
            self.look(seconds)
        return list(self.line.place)

    def test_the_place_of_a_wait_is_told_where_one_thread_does_all(self):
        with self.waits.meeting("the first step's comparison"):
            pass
        self.assertEqual(self.wait_in_a_step(), [1, 11, 7])
        with self.waits.meeting("the first step's comparison"):
            self.look(4)
        self.assertEqual(list(self.line.place), [1, None, 0])
        self.look(6)
        self.assertEqual(list(self.line.place), [2, 11, 7])
        self.waits._threads.add(0)
        self.look(8)
        self.assertEqual(list(self.line.place), [2, None, 0])

    def test_a_meeting_to_which_a_worker_in_a_step_never_comes(self):
        """The other waits in the seventh use of a key, after as many meetings."""
        self.wait_in_a_step()
        for place, crosses in (
            [[0, 11, 7], False],  # this worker has come there too
            [[1, 11, 8], False],  # the other has been in this meeting already
            [[0, None, 0], False],  # it does not tell where it is
            [[0, 11, 8], True],
            [[0, 12, 1], True],
        ):
            self.line.handler(3, place)
            with self.waits.meeting("the first step's comparison"), self.waits.unmarked():
                self.look(10)
                self.look(12)
            self.waits._meetings = 0
            self.assertEqual(bool(self.line.stopped), crosses, place)
        self.assertRegex(
            self.line.stopped[0],
            "^Workers cannot go on: worker 1 of 4 waits in the first step's comparison, but worker "
            "3 waits in a step; all workers must",
        )

    def test_an_idle_worker_waits_for_nobody(self):
        self.look(0)
        self.look(1000)
        self.assertEqual(self.line.laid + self.line.told, [])


class Call:
    """Stands for a frame, or for an object that a variable of a frame refers to."""


class FramesTest(tf.test.TestCase):
    def test_a_look_keeps_no_variables_of_other_threads_alive(self):
        """Else a data set's iterator would end when the garbage collector runs, in any thread."""
        begun, end, held = threading.Event(), threading.Event(), []

        def work():
            variable = Call()
            held.append(weakref.ref(variable))
            begun.set()
            end.wait()

        thread = threading.Thread(target=work)
        self.addCleanup(gc.enable)
        gc.disable()
        thread.start()
        begun.wait()
        with mock.patch.object(waits, "_waits", lambda frame: True):
            self.assertNotEmpty(waits._calls())
        end.set()
        thread.join()
        self.assertIsNone(held[0]())

    def test_no_garbage_collector_runs_where_python_makes_frames(self):
        seen = []
        with mock.patch.object(sys, "_current_frames", lambda: seen.append(gc.isenabled())):
            waits._frames()
            self.assertTrue(gc.isenabled())
            self.addCleanup(gc.enable)
            gc.disable()
            waits._frames()
            self.assertFalse(gc.isenabled())
        self.assertEqual(seen, [False, False])


class ProcessesTest(tf.test.TestCase):
    def told(self, how, workers):
        code, answers, printed = run("waits.py", workers, how, linger=10.0)
        self.assertEqual(code, 3, printed)
        self.assertNotEmpty(answers, printed)
        return [answer["told"] for answer in answers.values()]

    def test_who_does_not_take_part_is_named_by_all_that_wait_for_it(self):
        for each in self.told("late", 3):
            self.assertRegex(
                each,
                r"^Worker [01] of 3 cannot go on, worker 2 did not take part within 4 s; start all "
                r"of them again\.$",
            )

    def test_workers_in_other_places_are_told_so(self):
        for each in self.told("elsewhere", 2):
            self.assertRegex(
                each,
                r"^Worker [01] of 2 cannot go on, (worker [01]|the others say: it) waits elsewhere "
                "for 4 s: not ",
            )

    def test_a_step_that_failed_on_all_workers_leaves_them_able_to_go_on(self):
        code, answers, printed = run("waits.py", 2, "caught")
        self.assertEqual(code, 0, printed)
        self.assertEqual([answer["sum"] for answer in answers.values()], [[2.0, 2.0]] * 2)

    def test_collectives_leave_no_threads_behind(self):
        code, answers, printed = run("waits.py", 2, "threads")
        self.assertEqual(code, 0, printed)
        for answer in answers.values():
            self.assertAllLess(answer["threads"], 40)  # TensorFlow's pools may still grow; was 400
