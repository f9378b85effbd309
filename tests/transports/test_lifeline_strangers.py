"""Who comes in at the port of a lifeline, and what strangers do there to no effect."""

import contextlib
import json
import socket
from unittest import mock

from lifelines import SOON, LifelineCase
from strangers import Foreign

from grace_tf.transports.lifeline import (
    connections,
    door,
    frames,
    versions,
)
from grace_tf.transports.lifeline.connections import Lifeline
from grace_tf.transports.lifeline.sockets import listen

say = door.say


class StrangersTest(LifelineCase):
    def test_strangers_are_no_workers(self):
        server = listen(0)
        address = "127.0.0.1", server.getsockname()[1]
        line = Lifeline(0, 2, SOON, token=7, server=server)
        self.addCleanup(line.abandon)
        hello = {"magic": connections._MAGIC, "rank": 1, "versions": versions.HERE}
        hellos = [1, [1, "hello", [7, versions.HERE]], hello, {**hello, "proof": "\ud800"}]
        strangers = [json.dumps(hello).encode() + b"\n" for hello in hellos]
        strangers += [b"[" * 60_000 + b"\n", b"\xff\xfe\n", b"a line without an end" * 10_000]
        for said in (b"GET / HTTP/1.1\r\n\r\n", *strangers):
            with socket.create_connection(("127.0.0.1", server.getsockname()[1])) as stranger:
                stranger.settimeout(SOON)
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    stranger.recv(1000)  # the challenge
                    stranger.sendall(said)
                    self.assertEqual(stranger.recv(1), b"")  # it hangs up
        for worker in (2, 0, -1, "1", [1], None, 10**400):
            self.introduced(server, worker, let_in=False).close()
        self.assertFalse(line.joined(0))
        self.assertIsNone(line.broken)
        second = Lifeline(1, 2, SOON, find=lambda: (*address, 7))  # the thread lives
        self.addCleanup(second.abandon)
        self.assertTrue(line.joined(SOON))

    def test_only_who_knows_the_secret_and_the_token_is_let_in(self):
        server = listen(0)
        here, port = "127.0.0.1", server.getsockname()[1]
        first = Lifeline(0, 2, SOON, token=7, server=server, secret="of this job")
        self.addCleanup(first.abandon)
        for token, secret in ((7, "of another"), (8, "of this job"), (7, "")):
            before = first._door.impostors
            other = Lifeline(1, 2, SOON, find=lambda t=token: (here, port, t), secret=secret)
            self.wait(first, lambda before=before: first._door.impostors > before)
            other.abandon()
            self.assertIsNone(other.broken)
        self.assertFalse(first.joined(0))
        second = Lifeline(1, 2, SOON, find=lambda: (here, port, 7), secret="of this job")
        self.addCleanup(second.abandon)
        self.assertTrue(first.joined(SOON) and second.joined(SOON))

    def test_a_hello_serves_once(self):
        server = listen(0)
        line = Lifeline(0, 3, SOON, token=7, server=server)
        self.addCleanup(line.abandon)
        said = []
        with (
            mock.patch.object(door, "say", lambda *words: (said.append(words[1]), say(*words))),
            self.introduced(server, 1),
            socket.create_connection(("127.0.0.1", server.getsockname()[1]), SOON) as again,
        ):
            again.recv(1000)
            again.sendall(frames.encode(said[0]))
            self.assertEqual(again.recv(1), b"")
            self.assertEqual(list(line._peers), [1])

    def test_what_stands_in_worker_0_s_place_is_not_heard(self):
        says = [{"magic": connections._MAGIC, "challenge": "c"}, {"magic": connections._MAGIC}]
        said = b"".join(map(frames.encode, [*says, [0, "stop", "Stop, I say."]]))
        with Foreign(said) as address:
            host, port = address.split(":")
            line = Lifeline(1, 2, 0.2, find=lambda: (host, int(port), 7))
            line._thread.join(SOON)
            line.abandon()
        self.assertIsNone(line.broken)
        self.assertFalse(line.joined(0))

    def test_a_worker_that_is_stopped_before_it_answers_is_named(self):
        with Foreign(None) as address:
            host, port = address.split(":")
            line = Lifeline(1, 2, 0.2, find=lambda: (host, int(port), 7))
            self.addCleanup(line.abandon)
            line.until(lambda: False, SOON)
        self.assertRegex(line.broken, "worker 0 has not answered for 0 s: it is stopped")

    def test_a_worker_that_had_to_make_room_comes_again(self):
        server = listen(0)
        port, left = server.getsockname()[1], []

        def drop(peer, *hello):
            if not left:
                left.append(peer.close())
                return None, b"", b""
            return door.introduce(peer, *hello)

        with mock.patch.object(connections, "introduce", drop):
            made = [Lifeline(0, 2, SOON, token=7, server=server)]
            made.append(Lifeline(1, 2, SOON, find=lambda: ("127.0.0.1", port, 7)))
            for line in made:
                self.addCleanup(line.abandon)
                self.assertTrue(line.joined(SOON))

    def test_a_worker_that_sends_rubbish_is_lost(self):
        for said in (
            b"noise\n",
            b"[" * 60_000 + b"\n",
            b"a line without an end" * 10_000,
            *(
                frames.encode(words)
                for words in (
                    7,
                    [1, "digest"],
                    [2, "digest", None],  # of another worker
                    [[1], "digest", None],
                    [1, ["digest"], None],
                    [1, "stop", 7],
                    [1, "lost", {"worker": [1], "how": "x"}],
                    [1, "failed", 7],
                    [1, "left", [7]],
                )
            ),
        ):
            server = listen(0)
            line = Lifeline(0, 3, SOON, token=7, server=server)
            with self.introduced(server, 1) as worker:
                with contextlib.suppress(OSError):
                    worker.sendall(said)
                line.until(lambda: False, SOON)
            self.assertRegex(line.broken, "worker 1 (sends what no worker of this version|is gone)")
            self.assertTrue(line._thread.is_alive())
            line.abandon()

    def test_strangers_are_told_once_a_minute(self):
        stranger = mock.Mock(getpeername=lambda: ("10.0.0.9", 4711))
        now = self.enter_context(mock.patch.object(door.time, "monotonic", return_value=1000.0))
        self.enter_context(mock.patch.multiple(door, _unreported=0, _silent_until=0.0))
        with self.assertLogs("grace_tf", "WARNING") as log:
            for seconds in (1000.0, 1001.0, 1059.0, 1060.0, 1070.0):
                now.return_value = seconds
                door.report(stranger, b"GET / HTTP/1.1\r\n")
        told = [record.getMessage() for record in log.records]
        self.assertLen(told, 2)
        self.assertStartsWith(
            told[0],
            "Worker 0 has sent away 1 connection that is no worker's of this job, the last one "
            "from 10.0.0.9, which said 'GET / HTTP/1.1'",
        )
        self.assertStartsWith(told[1], "Worker 0 has sent away 3 connections that are no worker's")

    def test_a_few_hundred_that_say_nothing_exhaust_nothing(self):
        server = listen(0)
        address, port = "127.0.0.1", server.getsockname()[1]
        line = Lifeline(0, 2, SOON, token=7, server=server)
        self.addCleanup(line.abandon)
        with contextlib.ExitStack() as held:
            idle = []
            for _ in range(door.STRANGERS + 100):
                idle.append(held.enter_context(socket.create_connection((address, port), SOON)))
            self.wait(line, lambda: len(line._door._callers) == door.STRANGERS)
            while idle[0].recv(1000):  # the challenge
                pass  # the oldest had to go
            second = Lifeline(1, 2, SOON, find=lambda: (address, port, 7))
            self.addCleanup(second.abandon)
            self.assertTrue(line.joined(SOON))
            # All workers are here: nobody else is let in any more.
            self.wait(line, lambda: line._door.closed)
            with self.assertRaises(OSError):
                socket.create_connection((address, port), SOON)

    def test_who_does_not_introduce_itself_in_time_is_sent_away(self):
        self.enter_context(mock.patch.object(door, "SPEAKING", 0.1))
        server = listen(0)
        line = Lifeline(0, 2, SOON, token=7, server=server)
        self.addCleanup(line.abandon)
        with socket.create_connection(("127.0.0.1", server.getsockname()[1]), SOON) as slow:
            slow.sendall(b"[")
            while slow.recv(1000):  # the challenge
                pass
