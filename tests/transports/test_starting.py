"""A worker that is lost between the rendezvous and TensorFlow's start: the others hear of it."""

import concurrent.futures
import contextlib
import json
import socket
import threading
import time
from unittest import mock

import pytest
import tensorflow as tf

from grace_tf.transports import rendezvous, starting
from grace_tf.transports.lifeline import frames
from grace_tf.transports.starting import Starting

SOON = 30.0  # seconds; what is waited for comes at once
GONE = "worker 1 is gone without a word: it was killed, crashed or lost its machine"


class StartingTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.never = threading.Event()  # what a start waits for that TensorFlow never ends
        self.addCleanup(self.never.set)

    def workers(self, size):
        """The watches of all workers, connected as the rendezvous leaves them."""
        pairs = {rank: socket.socketpair() for rank in range(1, size)}
        first = Starting(0, size, {rank: here for rank, (here, _) in pairs.items()})
        others = [Starting(rank, size, {0: there}) for rank, (_, there) in pairs.items()]
        for worker in (first, *others):
            self.addCleanup(worker.close)
        return [first, *others]

    def run_all(self, starts, seconds=SOON):
        """What each of these (worker, start) gives, or the sentence that it raises.

        The time of worker 0 is over first, so that it is the one that finds who is late.
        """

        def one(worker, start):
            try:
                return worker.run(start, 7.0, time.monotonic() + seconds + 5 * worker._rank)
            except RuntimeError as error:
                return str(error)

        with concurrent.futures.ThreadPoolExecutor(len(starts)) as pool:
            return list(pool.map(one, *zip(*starts)))

    def hang(self):
        self.never.wait(SOON)

    def test_all_start(self):
        workers = self.workers(3)
        met = threading.Barrier(3)
        starts = [(worker, lambda i=i: met.wait(SOON) * 0 + i) for i, worker in enumerate(workers)]
        self.assertEqual(self.run_all(starts), [0, 1, 2])

    def test_a_worker_that_is_killed_ends_the_start_of_all_others(self):
        first, second, third = self.workers(3)
        second.close()
        said = self.run_all([(first, self.hang), (third, self.hang)])
        self.assertEqual(
            said,
            [f"Worker {n} of 3 cannot go on, {GONE}; start all of them again." for n in (0, 2)],
        )

    def test_a_worker_that_cannot_start_tells_why(self):
        def refuse():
            raise RuntimeError("Worker 1 cannot listen at a:1: it is taken.")

        first, second, third = self.workers(3)
        said = self.run_all([(first, self.hang), (second, refuse), (third, self.hang)])
        told = "worker 1 failed: RuntimeError: Worker 1 cannot listen at a:1: it is taken"
        self.assertEqual(said[1], "Worker 1 cannot listen at a:1: it is taken.")
        for n in (0, 2):
            self.assertEqual(
                said[n], f"Worker {n} of 3 cannot go on, {told}; start all of them again."
            )

    def test_what_tensorflow_says_of_a_lost_worker_is_not_the_cause(self):
        first, second = self.workers(2)

        def lose():
            second.close()
            raise RuntimeError("task 1 is gone") from tf.errors.UnavailableError(None, None, "x")

        self.assertEqual(
            self.run_all([(first, lose)]),
            [f"Worker 0 of 2 cannot go on, {GONE}; start all of them again."],
        )

    def test_a_stopped_worker_is_named_at_the_deadline(self):
        first, second, third = self.workers(3)
        with (
            mock.patch.object(starting, "_BEAT", 0.05),
            mock.patch.object(starting, "_SILENT", 0.5),
        ):
            said = self.run_all([(first, self.hang), (third, self.hang)], seconds=1.0)
        for worker, sentence in zip((0, 2), said):
            self.assertRegex(
                sentence,
                f"^Worker {worker} of 3 cannot go on, worker 1 has not answered for . s: it is "
                "stopped",
            )

    def test_servers_that_do_not_find_each_other(self):
        first, second = self.workers(2)
        with mock.patch.object(starting, "_BEAT", 0.05):
            (said,) = self.run_all([(first, self.hang)], seconds=0.2)
        self.assertStartsWith(
            said,
            "Worker 0 of 2 has met the others, but TensorFlow has not connected them within 7 s",
        )
        self.assertEqual(
            self.run_all([(second, self.hang)]),
            [
                "Worker 1 of 2 cannot go on, worker 0 did not start TensorFlow within 7 s; start "
                "all of them again."
            ],
        )


def test_what_worker_0_says_together_with_its_answer_counts():
    """Else worker 0 is blamed, which ends because of worker 2."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        hosts = [f"127.0.0.1:{server.getsockname()[1]}", "a:1", "b:1"]
        second = pool.submit(rendezvous.meet, hosts, 1, SOON)
        first, _ = server.accept()
        with first:
            magic = {"magic": rendezvous._MAGIC}
            first.sendall(frames.encode({**magic, "challenge": "c"}))
            hello = frames.decode(first.makefile("rb").readline())
            answer = frames.signed({**magic, "go": True}, "", f"answer {hello['challenge']}")
            lost = {"lost": 2, "how": "is gone"}
            first.sendall(frames.encode(answer) + frames.encode(lost))
        watch = second.result(SOON)
        with pytest.raises(RuntimeError, match="^Worker 1 of 3 cannot go on, worker 2 is gone; "):
            watch.run(threading.Event().wait, 7.0, time.monotonic() + SOON)


def test_rubbish_of_a_worker_ends_the_start_with_its_sentence():
    for said in (b"noise\n", b"7\n", b"[]\n", b'"lost"\n', b"\xff\n"):
        here, there = socket.socketpair()
        with contextlib.closing(Starting(0, 2, {1: here})), there:
            there.sendall(said)
            with pytest.raises(RuntimeError, match="worker 1 sends what no worker of this version"):
                Starting(0, 2, {1: here}).run(threading.Event().wait, 7.0, time.monotonic() + SOON)


def test_a_line_has_a_longest_length_and_a_greatest_depth():
    deep = b"[" * frames.DEEPEST + b"]" * frames.DEEPEST
    assert frames.decode(deep) is not None
    wide = json.dumps([[1], {"[[[{{{": []}] * 1000).encode()
    assert len(frames.decode(wide)) == 2000
    assert frames.decode(b'["' + b"[" * 60_000 + b'\\""]')
    for line in (
        b"[" + deep + b"]",
        b"[" * 60_000,
        b"[" * 20 + b'"' + b'\\"' * 400_000,  # in which every quote may begin a string
        b'{"a":' * 60_000,
        b"[" * 60_000 + b"]" * 60_000,
        b" " * (frames.LONGEST + 1),
        b"\xff\xfe[\x00]\x00",
        b"",
    ):
        with contextlib.suppress(ValueError):
            raise AssertionError(f"{frames.decode(line)} came of {line[:20]}")
