"""Workers that know where worker 0 is, and find each other there: in threads of this process."""

import contextlib
import socket
import threading
import time
from unittest import mock

import pytest
from strangers import Foreign, strange

from grace_tf.transports import reception
from grace_tf.transports.lifeline import door, frames
from grace_tf.transports.world import meeting


def free():
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def met(workers, timeout=20.0):
    """What each of these (rank, size, host) gets, all in threads of this process."""
    port, found = free(), {}

    def come(i, rank, size, host="127.0.0.1"):
        try:
            found[i] = meeting.addresses_of_all(f"{host}:{port}", rank, size, timeout)
        except RuntimeError as error:
            found[i] = str(error)

    threads = [threading.Thread(target=come, args=(i, *w)) for i, w in enumerate(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[i] for i in range(len(workers))]


def test_all_get_the_same_addresses():
    found = met([(2, 4), (0, 4), (3, 4), (1, 4)])
    assert found[1:] == found[:1] * 3
    assert len(set(found[0])) == 4
    assert {address.rpartition(":")[0] for address in found[0]} == {"127.0.0.1"}


def test_workers_that_cannot_meet_are_told_why():
    for told in met([(0, 3), (1, 3), (1, 3)]):
        assert told == "Two workers came with the rank 1: each needs one of its own."
    for told in met([(0, 2), (1, 3)]):
        assert told == "Worker 1 expects 3 workers, and worker 0 2."
    first, second = met([(0, 3), (2, 3)], timeout=1.0)
    assert first == second
    assert "Worker 1 of 3 did not come to 127.0.0.1:" in first and "within 1 s" in first
    (alone,) = met([(1, 2)], timeout=0.5)
    assert alone.startswith("Worker 0 of 2 did not come to 127.0.0.1:")


def test_workers_beside_worker_0_have_its_host():
    """On Debian a host's own name means 127.0.1.1, but its connections come from 127.0.0.1."""
    found = met([(0, 3, "127.0.1.1"), (1, 3, "127.0.1.1"), (2, 3, "localhost")])
    assert found[1:] == found[:1] * 2
    assert {address.rpartition(":")[0] for address in found[0]} == {"127.0.1.1"}


def test_worker_0_is_called_as_one_from_elsewhere_calls_it():
    """Kubeflow gives worker 0 the address localhost for itself, and the others its name."""
    elsewhere = mock.Mock()
    elsewhere.getpeername.return_value = "::ffff:10.0.0.7", 5, 0, 0
    elsewhere.getsockname.return_value = "::ffff:10.0.0.5", 7, 0, 0
    beside = mock.Mock()
    beside.getpeername.return_value = beside.getsockname.return_value = "10.0.0.5", 9
    own = {"host": "localhost", "port": 70}
    here = {2: (beside, {"host": "localhost", "port": 72})}
    here[1] = elsewhere, {"host": "train-master-0", "port": 71}
    assert meeting._found(here, own) == ["train-master-0:70", "10.0.0.7:71", "train-master-0:72"]
    elsewhere.getpeername.return_value = "fe80::2%eth0", 5, 0, 0
    assert meeting._found(here, own)[1] == "[fe80::2]:71"


@contextlib.contextmanager
def waiting(size, job=""):
    """Worker 0 at a port, in a thread; its addresses come into the list."""
    port, found = free(), []
    first = threading.Thread(
        target=lambda: found.append(
            meeting.addresses_of_all(f"127.0.0.1:{port}", 0, size, 20.0, job)
        )
    )
    first.start()
    deadline = time.monotonic() + 20
    while first.is_alive() and time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()  # a stranger without a word
            break
    yield f"127.0.0.1:{port}", found
    first.join()


def greeting(master, **words):
    """A connection on which a worker has said this."""
    host = master.split(":")[0]
    own = {"magic": meeting._MAGIC, "job": "", "size": 2, "host": host, "port": 1}
    own.update(seconds=20.0, **words)
    peer = strange(master, b"")
    challenge = frames.decode(peer.recv(1000))["challenge"]
    peer.sendall(frames.encode(frames.signed(own, "", "hello " + challenge)))
    return peer


def test_strangers_and_workers_of_another_job_are_sent_away():
    with waiting(2, "job 1") as (master, found):
        host, port = master.split(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with greeting(master, job="job 2", rank=1) as other:
            assert other.recv(10) == b""
        found.append(meeting.addresses_of_all(master, 1, 2, 20.0, "job 1"))
    assert found[0] == found[1]


def test_a_worker_that_was_started_again_takes_its_place():
    with waiting(3) as (master, found):
        greeting(master, size=3, rank=1).close()

        def come(rank):
            found.append(meeting.addresses_of_all(master, rank, 3, 20.0))

        second = threading.Thread(target=come, args=(2,))
        second.start()  # now there have been as many as there are to be
        come(1)
        second.join()
    assert len(found) == 3 and found[1:] == found[:1] * 2


def test_strangers_that_say_nothing_hold_up_nobody():
    with mock.patch.object(door, "SPEAKING", 600.0), contextlib.ExitStack() as held:
        with waiting(2) as (master, found):
            for _ in range(20):
                held.enter_context(strange(master, b""))
            found.append(meeting.addresses_of_all(master, 1, 2, 20.0))
    assert found[0] == found[1]


def test_a_door_at_which_nobody_answers_does_not_hold_for_ever():
    with (
        Foreign(None) as silent,
        mock.patch.object(reception, "_ANSWERING", 0.1),
        pytest.raises(RuntimeError, match=r"did not come to .* within 0.5 s: .* does not answer"),
    ):
        meeting.addresses_of_all(silent, 1, 2, 0.5)
