"""The processes of a host meet in shared memory; here threads of one process take their places."""

import logging
import os
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from grace_tf.ops.backend import native
from grace_tf.transports import meeting_in_memory
from grace_tf.transports.group import Group
from grace_tf.transports.hosts import pieces_of
from grace_tf.transports.lifeline import frames
from grace_tf.transports.loopback import Loopback
from grace_tf.transports.shared_memory import SharedMemory

pytestmark = pytest.mark.skipif(
    not native.available() or not hasattr(os, "memfd_create"), reason="needs the native library"
)


class Line:
    """What the meeting needs of a lifeline."""

    def __init__(self, secret):
        self._secret, self.ends = secret, []

    def proof(self, words, purpose):
        return frames.signed(words, self._secret, purpose)["proof"]

    def at_the_break(self, end):
        self.ends.append(end)


class Place(Group):
    """One of several groups of this process, whose handshakes meet in a barrier of threads."""

    def __init__(self, rank, size, barrier, table, secret="of the job", timeout=60.0):
        self.rank, self.size, self.workers, self.timeout = rank, size, (rank,), timeout
        self.lifeline, self._barrier, self._table = Line(secret), barrier, table

    def _handshake(self, words):
        self._table[self.rank] = words
        self._barrier.wait(60)
        everyones = np.stack([self._table[rank] for rank in range(self.size)])
        self._barrier.wait(60)
        return everyones

    def _broadcast(self, piece, root):
        raise AssertionError

    _sum = _max = _gather = _all_to_all = _rows = _messages = _broadcast

    def _explain(self, error):
        return None


def places(size, **keywords):
    barrier, table = threading.Barrier(size), {}
    return [Place(rank, size, barrier, table, **keywords) for rank in range(size)]


def on_all(groups, run):
    """The result of `run(place)` in a thread for each."""
    results = [None] * len(groups)

    def one(i):
        try:
            results[i] = run(groups[i])
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=[i], daemon=True) for i in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    return results


def meet(groups):
    return on_all(groups, lambda each: meeting_in_memory.shared(each, range(each.size)))


def transports(size, **keywords):
    groups = places(size, **keywords)
    segments = meet(groups)
    assert all(segments), segments
    sockets = [types.SimpleNamespace(size=size, workers=(i,)) for i in range(size)]
    return [SharedMemory(*each) for each in zip(sockets, groups, segments)]


class SharedMemoryTest(tf.test.TestCase):
    def test_lists_are_added_up_in_the_order_of_places(self):
        size, shapes = 3, [(300, 700), (5,), (), (0,), (64, 2)]
        draw = np.random.default_rng(3)
        lists = [[draw.normal(size=s).astype(np.float32) for s in shapes] for _ in range(size)]
        wanted = [(a + b) + c for a, b, c in zip(*lists)]
        for traced in (False, True):

            def step(each, traced=traced):
                def add():
                    own = [tf.constant(x) for x in lists[each.workers[0]]]
                    return each.sum_lists([own], 7 + traced)[0]

                return (tf.function(add) if traced else add)()

            for sums in on_all(transports(size), step):
                for got, total in zip(sums, wanted):
                    self.assertAllEqual(got, total)

    def test_every_dtype_that_a_lane_may_have_is_added_up(self):
        for dtype in ["float16", "bfloat16", "float64", "int32", "int64"]:
            run = on_all(
                transports(2),
                lambda each, d=dtype: each.sum([tf.cast(tf.range(2000) % 50, d)], 1)[0],
            )
            for got in run:
                self.assertEqual(got.dtype.name, dtype)
                self.assertAllEqual(tf.cast(got, tf.int64), 2 * (np.arange(2000) % 50))

    def test_narrow_sums_have_the_bits_of_bfloat16(self):
        draw = np.random.default_rng(4)
        x = tf.constant(draw.normal(size=[2, 5000]).astype(np.float32))
        a, b = tf.unstack(tf.cast(x, tf.bfloat16))
        wanted = tf.cast(a + b, tf.float32)
        for (got,) in on_all(
            transports(2), lambda each: each.sum_lists([[x[each.workers[0]]]], 1, True)[0]
        ):
            self.assertAllEqual(got, wanted)

    def test_pieces_are_joined_as_the_transports_do_without_memory(self):
        for n in (3, 64, 1001, 300_000):
            whole = np.arange(4 * n, dtype=np.float32).reshape(4, n)
            lengths = pieces_of(n, 3)
            self.assertEqual(sum(lengths), n)
            self.assertGreater(min(lengths), 0)
            begins = np.cumsum([0, *lengths])

            def join(each, whole=whole, lengths=lengths, begins=begins):
                place = each.workers[0]
                own = tf.constant(whole[:, begins[place] : begins[place + 1]])
                return each.join([own], lengths, 5)[0]

            for got in on_all(transports(3), join):
                self.assertAllEqual(got, whole)

    def test_more_collectives_than_threads_may_start_in_any_order(self):
        """Each that waits would hold a thread of TensorFlow for ever if it held one at all."""
        count = 60

        def step(each):
            order = range(count) if each.workers[0] == 0 else range(count)[::-1]

            @tf.function
            def sums():
                found = {}
                for i in order:
                    (found[i],) = each.sum([tf.fill([10], float(i))], 100 + i)
                return [found[i] for i in range(count)]

            return sums()

        for sums in on_all(transports(2), step):
            self.assertAllEqual(tf.stack(sums)[:, 0], 2.0 * np.arange(count))

    def test_a_break_of_the_lifeline_ends_what_waits(self):
        one, two = transports(2)

        def step(each):
            if each is one:
                return each.sum([tf.zeros([8])], 1)
            for end in each._group.lifeline.ends:
                end()

        error = on_all([one, two], step)[0]
        self.assertIsInstance(error, tf.errors.UnavailableError)
        self.assertIn("Collective instance 1 of the processes of a host", str(error))
        with self.assertRaises(tf.errors.UnavailableError):
            two.sum([tf.zeros([8])], 2)

    def test_without_a_lifeline_s_watch_a_wait_ends_at_the_timeout(self):
        one, _ = transports(2, timeout=0.2)
        with self.assertRaises(tf.errors.DeadlineExceededError):
            one.sum([tf.zeros([8])], 1)

    def test_what_cannot_be_added_up_is_refused(self):
        one, _ = transports(2)
        with self.assertRaisesRegex(TypeError, "uint32 cannot be summed"):
            one.sum([tf.zeros([8], tf.uint32)], 1)


def refused(groups, caplog):
    """What worker 0 logs where none of the places gets a memory."""
    with caplog.at_level(logging.WARNING, "grace_tf"):
        assert meet(groups) == [None] * len(groups)
    (record,) = caplog.records
    return record.getMessage()


def test_a_process_of_another_job_shares_no_memory(caplog):
    groups = places(3)
    groups[2].lifeline = Line("of another job")
    said = refused(groups, caplog)
    assert "through sockets" in said
    assert "worker 2 finds in it no proof that it is of this job" in said


def test_a_place_that_does_not_prove_itself_ends_the_meeting(caplog, monkeypatch):
    original = meeting_in_memory._write_proof

    def forgets(group, file, words, place):
        return place == 1 or original(group, file, words, place)

    monkeypatch.setattr(meeting_in_memory, "_write_proof", forgets)
    assert "worker 0 finds in it no proof" in refused(places(2), caplog)


def test_only_a_file_in_memory_that_nobody_can_shorten_is_mapped(caplog, monkeypatch, tmp_path):
    def ordinary(size):
        file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(file, 0, size)
        return file

    monkeypatch.setattr(meeting_in_memory, "_made", ordinary)
    assert "worker 1 finds another file than the memory" in refused(places(2), caplog)


def test_where_one_process_cannot_all_use_sockets(caplog, monkeypatch):
    def absent(process, number, size):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(meeting_in_memory, "_opened", absent)
    assert "worker 1 cannot open it ([Errno 13] Permission denied)" in refused(places(2), caplog)


def test_no_file_of_a_meeting_stays_open_or_has_a_name():
    before, names = len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    assert all(meet(places(2)))
    assert len(os.listdir("/proc/self/fd")) == before
    assert set(os.listdir("/dev/shm")) == names
    assert "/memfd:grace_tf (deleted)" in open("/proc/self/maps").read()


def test_a_worker_alone_on_its_host_needs_none():
    (group,) = places(1)
    assert meeting_in_memory.shared(group, [0]) is None
    x = tf.ones([3, 4])
    assert Loopback(1).join([x], [4], 1)[0] is x
    assert Loopback(1).sum_lists([[x]], 1)[0][0] is x
