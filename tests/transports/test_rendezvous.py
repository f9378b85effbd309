"""How the workers wait for each other before TensorFlow starts."""

import concurrent.futures
import contextlib
import json
import socket
import threading
import time
import unittest
import zlib
from unittest import mock

from strangers import Foreign, strange

from grace_tf.transports import reception, rendezvous
from grace_tf.transports.lifeline import door, frames, versions


def addresses(count):
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{first.getsockname()[1]}", *(f"127.0.0.1:{n}" for n in range(1, count))]


def meet(*calls, timeout=20.0):
    """What each `meet(addresses, rank)` said: None or the sentence it raised."""

    def one(call):
        try:
            return rendezvous.meet(*call, timeout).close()
        except RuntimeError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


class RendezvousTest(unittest.TestCase):
    def test_all_come(self):
        for count in (2, 5):
            hosts = addresses(count)
            self.assertEqual(meet(*((hosts, rank) for rank in range(count))), [None] * count)
            # the port is free again at once, for TensorFlow's server
            self.assertEqual(meet(*((hosts, rank) for rank in range(count))), [None] * count)

    def test_everyone_hears_who_is_late(self):
        hosts = addresses(4)
        said = meet((hosts, 0), (hosts, 2), timeout=1.0)
        self.assertEqual(said, [f"Workers 1, 3 of 4 did not come to {hosts[0]} within 1 s."] * 2)

    def test_the_first_is_late(self):
        hosts = addresses(2)
        said = meet((hosts, 1), timeout=0.5)
        self.assertEqual(said, [f"Worker 0 of 2 did not come to {hosts[0]} within 0.5 s."])

    def test_different_addresses(self):
        hosts = addresses(2)
        said = meet((hosts, 0), ([hosts[0], "127.0.0.1:2"], 1))
        self.assertEqual(
            said,
            ["Worker 1 has other addresses than worker 0: all need the same, in one order."] * 2,
        )

    def test_other_versions(self):
        hosts = addresses(2)
        with mock.patch.object(versions, "HERE", "grace_tf 1.0 and TensorFlow 2.16.0"):
            hello = {"magic": rendezvous._MAGIC, "rank": 1, "size": 2}
            hello["addresses"] = zlib.crc32(",".join(hosts).encode())
            hello["versions"] = "grace_tf 1.0 and TensorFlow 2.15.1"
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                first = pool.submit(meet, (hosts, 0))
                with self.assertRaises(RuntimeError) as told:
                    reception.call(hosts[0], hello, 2, 20.0, time.monotonic() + 20)
                sentence = (
                    "Workers cannot train together, their versions differ: worker 1 of 2 has "
                    "grace_tf 1.0 and TensorFlow 2.15.1, worker 0 grace_tf 1.0 and TensorFlow "
                    "2.16.0; install the same ones everywhere."
                )
                self.assertEqual((str(told.exception), first.result(20)), (sentence, [sentence]))

    def test_two_with_one_rank(self):
        hosts = addresses(3)
        said = meet((hosts, 0), (hosts, 1), (hosts, 1))
        self.assertEqual(said, ["Two workers came with the rank 1: each needs one of its own."] * 3)

    def test_the_port_is_taken(self):
        with socket.create_server(("", 0)) as other:
            hosts = [f"127.0.0.1:{other.getsockname()[1]}", "127.0.0.1:1"]
            (said,) = meet((hosts, 0))
        self.assertIn(f"Worker 0 cannot listen at {hosts[0]}", said)

    def test_the_first_to_come_has_no_longer_to_wait_than_it_said(self):
        """Worker 0, which has come later, ends the wait of all when that of worker 1 is over."""
        hosts, said = addresses(3), []
        early = threading.Thread(target=lambda: said.extend(meet((hosts, 1), timeout=0.5)))
        early.start()
        said.extend(meet((hosts, 0), timeout=600.0))
        early.join()
        self.assertEqual(len(said), 2)
        for told in said:
            self.assertTrue(told.startswith(f"Worker 2 of 3 did not come to {hosts[0]}"), told)


class StrangersTest(unittest.TestCase):
    """Strangers hold up nobody, and end no start."""

    def among(self, *strangers):
        """Lets two workers meet where these strangers came before worker 1."""
        hosts = addresses(2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as held:
            first = pool.submit(meet, (hosts, 0))
            came = [held.enter_context(strange(hosts[0], said)) for said in strangers]
            self.assertEqual(meet((hosts, 1)), [None])
            self.assertEqual(first.result(20), [None])
            return came

    def test_a_stranger_is_sent_away_without_a_word(self):
        hosts = addresses(2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(meet, (hosts, 0))
            for said in (
                b"GET / HTTP/1.0\r\n\r\n",
                b"SSH-2.0-OpenSSH_9.2\r\n",
                b"\x16\x03\x01\n\xff\xfe",
                b"[" * 60_000 + b"\n",
                b"a line without an end" * 1000,
                b'{"magic": "grace_tf rendezvous", "rank": "1", "seconds": NaN}\n',
            ):
                with strange(hosts[0], said) as stranger:
                    heard = b""
                    with contextlib.suppress(ConnectionResetError):
                        while more := stranger.recv(1000):
                            heard += more
                    self.assertLessEqual(heard.count(b"\n"), 1)  # the challenge
            self.assertEqual(meet((hosts, 1)), [None])
            self.assertEqual(first.result(20), [None])

    def test_only_who_knows_the_secret_is_let_in(self):
        hosts, said = addresses(2), []

        def come(rank, secret, timeout):
            try:
                said.append(rendezvous.meet(hosts, rank, timeout, secret=secret).close())
            except RuntimeError as error:
                said.append(str(error))

        first = threading.Thread(target=come, args=(0, "of this job", 20.0))
        first.start()
        come(1, "of another", 0.5)
        self.assertRegex(said.pop(), "did not come .* or a worker 0 with another secret of the job")
        come(1, "of this job", 20.0)
        first.join()
        self.assertEqual(said, [None, None])

    def test_worker_0_tells_that_a_secret_was_wrong(self):
        hosts = addresses(2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(meet, (hosts, 0), timeout=1.0)
            with self.assertRaises(RuntimeError):
                rendezvous.meet(hosts, 1, 0.5, secret="of another")
            (said,) = first.result(20)
        self.assertIn("within 1 s; a worker with another secret of the job was sent away", said)

    def test_a_hello_given_back_is_no_answer(self):
        hello = {"magic": rendezvous._MAGIC, "rank": 2, "challenge": "c"}
        with Foreign(None) as address, mock.patch.object(reception, "_ANSWERING", 0.1):
            lines = [frames.encode({"magic": rendezvous._MAGIC, "challenge": "d"})]
            lines.append(frames.encode(frames.signed(hello, "", door._HELLO + "m")))
            with (
                mock.patch.object(door._Lines, "next", lambda _: lines.pop(0)),
                mock.patch.object(door.secrets, "token_hex", lambda _: "m"),
                mock.patch.object(reception, "_PAUSE", 1.0),  # one attempt
            ):
                (said,) = meet(([address, "127.0.0.1:1"], 1), timeout=0.5)
        self.assertIn("what listens there is no worker", said)

    def test_worker_0_must_know_the_secret_too(self):
        """What listens in its place may know all of the protocol."""
        says = [{"magic": rendezvous._MAGIC, "challenge": "c"}, {"magic": rendezvous._MAGIC}]
        says[1].update(go=True, proof="0" * 64)
        with Foreign(b"".join(map(frames.encode, says)), ends=False) as address:
            (said,) = meet(([address, "127.0.0.1:1"], 1), timeout=0.5)
        self.assertIn("what listens there is no worker", said)

    def test_a_proof_serves_one_challenge_and_the_words_that_it_was_made_for(self):
        words = frames.signed({"rank": 1, "seconds": 0.1}, "secret", "challenge")
        again = frames.decode(frames.encode(words))
        self.assertTrue(frames.proved(again, "secret", "challenge"))
        self.assertFalse(frames.proved(again, "secret", "another"))
        self.assertFalse(frames.proved(again, "other", "challenge"))
        # Half a character: what Python makes of a variable that holds bytes which are no text.
        self.assertTrue(frames.proved(frames.signed({}, "\udcff", "c"), "\udcff", "c"))
        self.assertFalse(frames.proved({**again, "rank": 2}, "secret", "challenge"))
        self.assertFalse(frames.proved({"rank": 1, "proof": "\u00e9"}, "secret", "challenge"))

    def test_twenty_that_say_nothing_hold_up_nobody(self):
        with mock.patch.object(door, "SPEAKING", 600.0):
            self.among(*[b""] * 20)

    def test_of_more_than_can_be_served_the_oldest_goes(self):
        with (
            mock.patch.object(door, "SPEAKING", 600.0),
            mock.patch.object(door, "STRANGERS", 3),
        ):
            self.among(*[b""] * 20)

    def test_who_speaks_slowly_has_no_more_time_than_who_says_nothing(self):
        hosts = addresses(2)
        with (
            mock.patch.object(door, "SPEAKING", 0.5),
            concurrent.futures.ThreadPoolExecutor(1) as pool,
        ):
            first = pool.submit(meet, (hosts, 0))
            with strange(hosts[0], b"a") as stranger, self.assertRaises(OSError):
                stranger.settimeout(0.01)
                while True:  # a byte whenever nothing has come, until the connection ends
                    try:
                        if not stranger.recv(1):
                            raise ConnectionResetError
                    except TimeoutError:
                        stranger.sendall(b"a")
            self.assertEqual(meet((hosts, 1)), [None])
            self.assertEqual(first.result(20), [None])

    def test_noise_that_begins_as_a_hello_ends_no_start(self):
        noise = bytes(range(256)) * 2
        named = {"magic": rendezvous._MAGIC, "rank": 1, "seconds": 1, "versions": "\x1b[2J\ufffd"}
        half = {**named, "proof": "\ud800"}  # of a character
        self.among(
            b"grace_tf" + noise, *(json.dumps(each).encode() + b"\n" for each in (named, half))
        )

    def test_numbers_that_no_worker_says_end_no_start(self):
        """Also where the secret is empty, so that everyone knows it."""
        hosts = addresses(2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(meet, (hosts, 0))
            for words in (
                {"seconds": 10**400},
                {"seconds": -1},
                {"seconds": float("nan")},
                {"rank": True},
                {"rank": 1.0},
            ):
                hello = {"magic": rendezvous._MAGIC, "rank": 1, "seconds": 20.0, **words}
                with strange(hosts[0], b"") as stranger:
                    answer = door.introduce(stranger, hello, "", time.monotonic() + 20)
                    self.assertEqual(answer[:2], (None, b""), words)
            self.assertEqual(meet((hosts, 1)), [None])
            self.assertEqual(first.result(20), [None])

    def test_what_listens_in_worker_0_s_place_is_told(self):
        for says, told in (
            (None, "what listens there does not answer as worker 0 does; give it another port"),
            (
                b"",
                "what listens there ends the connection without an answer; it may be another "
                "program, or a worker 0 with another secret of the job (init(secret=…))",
            ),
            (
                b"SSH-2.0-OpenSSH_9.2\r\n",
                "what listens there is no worker, it says 'SSH-2.0-OpenSSH_9.2'; take another port",
            ),
            (
                b"\x00\xff\x1b[2J\n",
                "what listens there is no worker, it says 6 bytes that are no text; take another "
                "port",
            ),
        ):
            with (
                self.subTest(says),
                Foreign(says) as address,
                mock.patch.object(reception, "_ANSWERING", 0.1),
            ):
                (said,) = meet(([address, "127.0.0.1:1"], 1), timeout=0.5)
                self.assertEqual(
                    said, f"Worker 0 of 2 did not come to {address} within 0.5 s: {told}."
                )


if __name__ == "__main__":
    unittest.main()
