"""How the workers wait for each other before TensorFlow starts."""

import concurrent.futures
import socket
import time
import unittest
import zlib
from unittest import mock

from grace_tf.transports import rendezvous
from grace_tf.transports.lifeline import versions


def addresses(count):
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{first.getsockname()[1]}", *(f"127.0.0.1:{n}" for n in range(1, count))]


def meet(*calls, timeout=20.0):
    """What each `meet(addresses, rank)` said: None or the sentence it raised."""

    def one(call):
        try:
            return rendezvous.meet(*call, timeout)
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
        self.assertEqual(said, ["Workers 1, 3 of 4 did not come within 1 s."] * 2)

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
            hello = rendezvous._HELLO.pack(
                *(b"grace_tf", zlib.crc32(",".join(hosts).encode()), 1, 2),
                b"grace_tf 1.0 and TensorFlow 2.15.1",
            )
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                first = pool.submit(meet, (hosts, 0))
                port = int(hosts[0].rpartition(":")[2])
                told = rendezvous._ask("127.0.0.1", port, hello, time.monotonic() + 20)
                sentence = (
                    "Workers cannot train together, their versions differ: worker 1 of 2 has "
                    "grace_tf 1.0 and TensorFlow 2.15.1, worker 0 grace_tf 1.0 and TensorFlow "
                    "2.16.0; install the same ones everywhere."
                )
                self.assertEqual((told.decode(), first.result(20)), (sentence, [sentence]))

    def test_two_with_one_rank(self):
        hosts = addresses(3)
        said = meet((hosts, 0), (hosts, 1), (hosts, 1))
        self.assertEqual(said, ["Two workers came with the rank 1: each needs one of its own."] * 3)

    def test_the_port_is_taken(self):
        with socket.create_server(("", 0)) as other:
            hosts = [f"127.0.0.1:{other.getsockname()[1]}", "127.0.0.1:1"]
            (said,) = meet((hosts, 0))
        self.assertIn(f"Worker 0 cannot listen at {hosts[0]}", said)

    def test_strangers_are_ignored(self):
        hosts = addresses(2)
        words, deadline = b"GET / HTTP/1.0\r\n".ljust(rendezvous._HELLO.size), time.monotonic() + 20
        self.assertEqual(len(words), rendezvous._HELLO.size)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            first = pool.submit(rendezvous.meet, hosts, 0, 20.0)
            port = int(hosts[0].rpartition(":")[2])
            stranger = pool.submit(rendezvous._ask, "127.0.0.1", port, words, deadline)
            self.assertEqual(stranger.result(20), b"")
            second = pool.submit(rendezvous.meet, hosts, 1, 20.0)
            self.assertIsNone(second.result(20))
            self.assertIsNone(first.result(20))


if __name__ == "__main__":
    unittest.main()
