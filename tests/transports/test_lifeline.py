"""The lifeline between workers of one process, over real connections."""

import socket
import threading
from unittest import mock

import tensorflow as tf
from lifelines import SOON, LifelineCase

import grace_tf
from grace_tf.transports.lifeline import (
    connections,
    door,
    lifeline,
    versions,
)
from grace_tf.transports.lifeline.connections import Lifeline
from grace_tf.transports.lifeline.peer import Peer
from grace_tf.transports.lifeline.sockets import listen
from grace_tf.transports.multi_worker import MultiWorkerGroup

say = door.say


class LifelineTest(LifelineCase):
    def test_all_others_hear_what_one_tells(self):
        lines = self.lines(3)
        told = [self.heard(line, "digest") for line in lines]
        for line in lines:
            line.tell("digest", {"of": line.rank})
        for rank, line in enumerate(lines):
            self.wait(line, lambda rank=rank: len(told[rank]) == 2)
            others = [[w, {"of": w}] for w in range(3) if w != rank]
            self.assertCountEqual(told[rank], others)

    def test_what_was_told_before_somebody_listened_is_not_lost(self):
        first, second = self.lines(2)
        ready = self.heard(first, "ready")
        second.tell("digest", 1)
        second.tell("ready")
        self.wait(first, lambda: ready)
        self.assertEqual(self.heard(first, "digest"), [[1, 1]])

    def test_who_comes_late_hears_all_of_it(self):
        server = listen(0)
        port = server.getsockname()[1]
        made = [Lifeline(0, 3, SOON, token=7, server=server)]
        made[0].tell("digest", "first")
        for rank in (1, 2):
            made.append(Lifeline(rank, 3, SOON, find=lambda: ("127.0.0.1", port, 7)))
            made[-1].tell("digest", "then")
            self.wait(made[0], lambda rank=rank: rank in made[0]._peers)
        for line in made:
            self.addCleanup(line.abandon)
        told = self.heard(made[2], "digest")
        self.wait(made[2], lambda: len(told) == 2)
        self.assertCountEqual(told, [[0, "first"], [1, "then"]])

    def test_no_worker_has_joined_until_all_are_connected(self):
        server = listen(0)
        port = server.getsockname()[1]
        made = [Lifeline(0, 3, SOON, token=7, server=server)]
        connected = lambda: ("127.0.0.1", port, 7)  # noqa: E731
        made.append(Lifeline(1, 3, SOON, find=connected))
        self.wait(made[1], lambda: 0 in made[1]._peers)
        self.assertEqual([line.joined(0.0) for line in made], [False, False])
        made.append(Lifeline(2, 3, SOON, find=connected))
        for line in made:
            self.addCleanup(line.abandon)
            self.assertTrue(line.joined(SOON))

    def test_lines_that_a_paused_worker_accepts_late_are_whole(self):
        here, there = socket.socketpair()
        self.addCleanup(here.close)
        self.addCleanup(there.close)
        peer, other, found = Peer(here, 1), Peer(there, 0), []
        here.settimeout(0.01)
        lines = [b"%d %s" % (number, b"x" * 30_000) for number in range(40)]
        for line in lines:
            peer.send(line + b"\n")
        while len(found) < len(lines):
            peer.send(b"")
            found += other.lines()
        self.assertEqual(found, lines)

    def test_stop_gives_all_the_same_sentence_and_aborts_collectives(self):
        lines = self.lines(3)
        lines[1].stop("They differ.")
        for line in lines:
            line.until(lambda: False, SOON)
            with self.assertRaisesRegex(RuntimeError, "^They differ.$"):
                line.check()
        self.assertEqual(self.aborted.mock_calls, [mock.call("They differ.")] * 3)

    def test_an_error_with_a_very_long_line_is_told_in_short(self):
        first, second = self.lines(2)
        second.stop(f"Worker 1 failed: {lifeline.first_line(ValueError('x' * 100_000))}.")
        first.until(lambda: False, SOON)
        self.assertRegex(first.broken, "^Worker 1 failed: ValueError: x{1000}.$")

    def test_what_a_handler_raises_stops_all(self):
        def refuse(worker, data):
            raise RuntimeError(f"Worker {worker} has {data}.")

        first, second = self.lines(2)
        first.on("digest", refuse)
        second.tell("digest", "other weights")
        for line in (first, second):
            line.until(lambda: False, SOON)
        self.assertEqual((first.broken, second.broken), ("Worker 1 has other weights.",) * 2)

    def test_the_first_cause_counts(self):
        first, second = self.lines(2)
        second.stop("The cause.")
        second.stop("What came of it.")
        first.until(lambda: False, SOON)
        self.assertEqual((first.broken, second.broken), ("The cause.",) * 2)

    def test_a_connection_that_ends_without_a_word(self):
        first, second, third = self.lines(3)
        second.abandon()
        for line in (first, third):
            line.until(lambda: False, SOON)
            self.assertRegex(
                line.broken, f"^Worker {line.rank} of 3 cannot go on, worker 1 is gone without a"
            )

    def test_a_goodbye_harms_only_those_who_need_the_other(self):
        first, second = self.lines(2)
        second.close()
        self.wait(first, lambda: first.left)
        second.abandon()
        self.assertIsNone(first.broken)
        with (
            first.together(),
            self.assertRaisesRegex(
                RuntimeError, "worker 1 has ended its program before the others"
            ),
        ):
            first.check()

    def test_worker_0_ends_after_the_others_even_where_they_say_no_goodbye(self):
        first, second, third = self.lines(3)
        ended = threading.Thread(target=first.close)
        ended.start()
        self.wait(second, lambda: second.left)
        second.close()
        third.abandon()
        self.assertTrue(ended.is_alive())
        second.abandon()
        ended.join(connections.LAST / 2)
        self.assertFalse(ended.is_alive())
        self.assertIsNone(first.broken)

    def test_a_goodbye_in_the_midst_of_what_all_do_together(self):
        first, second = self.lines(2)
        with first.together():
            second.close()
            first.until(lambda: False, SOON)
        self.assertRegex(first.broken, "worker 1 has ended its program before the others")

    def test_a_farewell_tells_the_steps_where_they_are_known(self):
        for end, words in (
            (lambda line: line.close(steps=40), "left after 40 steps: it has ended its program"),
            (lambda line: line.close(steps=1), "left after 1 step: it has ended its program"),
            (lambda line: line.close(), "has ended its program"),
            (lambda line: line.fail("E: x", 40), "failed after 40 steps: E: x; start"),
            (lambda line: line.fail("E: x"), "failed: E: x; start"),
        ):
            first, second = self.lines(2)
            with first.together():
                end(second)
                first.until(lambda: False, SOON)
            self.assertStartsWith(first.broken, f"Worker 0 of 2 cannot go on, worker 1 {words}")

    def test_the_steps_are_those_of_what_trains_though_it_may_be_gone(self):
        self.enter_context(mock.patch.object(lifeline, "_counter", None))
        aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
        variable = tf.Variable(tf.zeros([64]))
        aggregate([tf.ones([64])], [variable])
        self.assertIsNone(lifeline._steps())  # alone there is nobody to send it to
        self.enter_context(mock.patch.object(lifeline, "_current", mock.Mock()))
        aggregate([tf.ones([64])], [variable])
        del aggregate
        self.assertEqual(lifeline._steps(), 2)

    def test_a_worker_that_gives_no_sign_of_life(self):
        server = listen(0)
        line = Lifeline(0, 2, 0.5, token=7, server=server)
        self.addCleanup(line.abandon)
        with self.introduced(server, 1):
            line.until(lambda: False, SOON)
            self.assertRegex(line.broken, "worker 1 has not answered for . s: it is stopped")

    def test_a_worker_in_doubt_asks_worker_0_who_is_silent(self):
        first, second, third = self.lines(3)
        with first.changed:
            first._peers[1].silent = 7.0
            first._peers[1].lines = lambda: iter(())
            lost = tf.errors.UnavailableError(None, None, "Collective ops is aborted by: x")
            asked = threading.Thread(target=third.why, args=(lost,))
            asked.start()
            first.changed.wait_for(lambda: first.broken is not None, SOON)
        asked.join()
        self.assertRegex(first.broken, "worker 1 has not answered for . s: it is stopped")
        self.assertRegex(third.broken, "worker 1 has not answered for . s: it is stopped")

    def test_a_store_that_does_not_answer_is_not_waited_for(self):
        first, second = self.lines(2)
        answers = threading.Event()
        self.addCleanup(answers.set)
        store = self.enter_context(mock.patch.object(lifeline, "context"))
        store.context().set_config_key_value = lambda *_: answers.wait(SOON)
        self.enter_context(mock.patch.object(lifeline, "_current", second))
        with self.assertRaisesRegex(tf.errors.DeadlineExceededError, "silent for 0.1 s"):
            lifeline.put("key", "value", 0.1)
        first.stop("The others have stopped.")
        with self.assertRaisesRegex(RuntimeError, "The others have stopped"):
            lifeline.put("key", "value", SOON)

    def test_what_the_store_refuses_is_raised(self):
        (line,) = self.lines(1)
        store = self.enter_context(mock.patch.object(lifeline, "context"))
        self.enter_context(mock.patch.object(lifeline, "_current", line))
        lifeline.put("key", "value", SOON)
        store.context().set_config_key_value.assert_called_once_with("key", "value")
        refused = tf.errors.AlreadyExistsError(None, None, "the key stands")
        store.context().set_config_key_value.side_effect = refused
        with self.assertRaises(tf.errors.AlreadyExistsError):
            lifeline.put("key", "value", SOON)

    def test_what_the_store_says_of_a_lost_worker_becomes_the_sentence(self):
        first, second = self.lines(2)
        self.enter_context(mock.patch.object(lifeline, "_current", second))
        store = self.enter_context(mock.patch.object(lifeline, "context"))
        lost = tf.errors.UnavailableError(None, None, "Connection reset by peer")
        store.context().set_config_key_value.side_effect = lost
        store.context().get_config_key_value.side_effect = lost
        group = mock.Mock(rank=1, processes=2, timeout=SOON)
        first.fail("ValueError: boom", 3)
        for ask in (MultiWorkerGroup._publish, MultiWorkerGroup._read):
            with self.assertRaisesRegex(RuntimeError, "worker 0 failed after 3 steps: ValueError"):
                ask(group, "key", 0)

    def test_other_versions_stop_all(self):
        server = listen(0)
        port = server.getsockname()[1]

        def other(peer, hello, *where):
            return door.introduce(
                peer, {**hello, "versions": "grace_tf 0 and TensorFlow 1"}, *where
            )

        self.enter_context(mock.patch.object(connections, "introduce", other))
        lines = [Lifeline(0, 2, SOON, token=7, server=server)]
        lines.append(Lifeline(1, 2, SOON, find=lambda: ("127.0.0.1", port, 7)))
        for line in lines:
            self.addCleanup(line.abandon)
            line.until(lambda line=line: line.broken is not None, 20)
            self.assertEqual(
                line.broken,
                "Workers cannot train together, their versions differ: worker 1 of 2 has grace_tf "
                f"0 and TensorFlow 1, worker 0 {versions.HERE}; install the same ones everywhere.",
            )

    def test_which_errors_are_explained(self):
        first, second = self.lines(2)
        lost = tf.errors.UnavailableError(None, None, "Collective ops is aborted by: x")
        own = tf.errors.InvalidArgumentError(None, None, "Collective ops is aborted by: bad shape")
        second.tell("failed", ["ValueError: boom", None])
        self.assertRegex(first.why(lost), "worker 1 failed: ValueError: boom; start all")
        self.assertIsNone(first.why(own))
        self.assertIsNone(first.why(RuntimeError("Collective")))

    def test_an_engine_may_have_errors_and_an_end_of_its_own(self):
        ended = []
        engine = mock.Mock(may_have_failed=lambda error: isinstance(error, KeyError))
        engine.abort = ended.append
        with mock.patch.object(Lifeline, "_run"):
            line = Lifeline(0, 2, SOON, engine=engine)
        line.left[1] = "has ended its program before the others"
        self.assertIsNone(line.why(tf.errors.UnavailableError(None, None, "Collective")))
        self.assertIsNone(line.broken)
        self.assertRegex(line.why(KeyError("HorovodInternalError")), "worker 1 has ended its")
        self.assertEqual(ended, [line.broken])
