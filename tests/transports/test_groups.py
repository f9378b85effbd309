"""Every Group passes the same checks: processes, a strategy's processes, and threads of a test."""

import functools
import itertools
import threading
import traceback
from concurrent import futures
from unittest import mock

import group_contract
import numpy as np
import pytest
import tensorflow as tf
from launch import launch

import grace_tf
from grace_tf.aggregation import schedule_stages, step
from grace_tf.transports.base import PLAN_KEYS
from grace_tf.transports.group import Group
from grace_tf.transports.loopback import Loopback
from grace_tf.transports.process_group import ProcessGroup
from grace_tf.transports.rows import all_rows

SIZE = 3


class Table:
    """Where threads put a value each and take everyone's."""

    def __init__(self, size):
        self.values = [None] * size
        # A busy machine can delay a thread by a minute, so the timeout is long: 500 s, as that of
        # `launch`, which starts processes.
        self.all_here = threading.Barrier(size, timeout=500)

    def exchange(self, rank, value):
        self.values[rank] = value
        self.all_here.wait()
        found = list(self.values)
        self.all_here.wait()
        return found


class ThreadGroup(Group):
    """Threads of one process as an engine: nothing but what a Group asks of its subclass."""

    timeout = 60.0

    def __init__(self, table, rank):
        self.rank = self.local_rank = rank
        self.size, self.workers = len(table.values), (rank,)
        self._everyone = functools.partial(table.exchange, rank)

    def _sum(self, buffers, key):
        return [functools.reduce(tf.add, self._everyone(buffers[0]))]

    def _max(self, buffers, key):
        return [functools.reduce(tf.maximum, self._everyone(buffers[0]))]

    def _gather(self, buffers, key):
        return [tf.stack(self._everyone(buffers[0]))]

    def _all_to_all(self, buffers, key):
        return [tf.stack([rows[self.rank] for rows in self._everyone(buffers[0])])]

    def _rows(self, slices, key):
        totals, _ = all_rows(slices[0], lambda words, name: self._gather([words], key(name))[0])
        return [totals]

    def _handshake(self, words):
        return np.stack(self._everyone(words))

    def _broadcast(self, piece, root):
        return self._everyone(piece)[root]

    def _explain(self, error):
        return "A thread is gone." if isinstance(error, tf.errors.CancelledError) else None


def in_threads(body):
    """The results of `body(group)` of each worker; the first error of any."""
    table = Table(SIZE)

    def work(rank):
        try:
            return body(ThreadGroup(table, rank))
        except BaseException:
            table.all_here.abort()
            raise

    with futures.ThreadPoolExecutor(SIZE) as threads:
        running = [threads.submit(work, rank) for rank in range(SIZE)]
    errors = [error for each in running if (error := each.exception()) is not None]
    own = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    for error in own:
        raise error
    # The only errors are those of the barrier, so one thread reached it after the timeout.  The
    # stack of an error shows in which call its thread was.
    assert not errors, "\n".join("".join(traceback.format_exception(error)) for error in errors)
    return [each.result() for each in running]


@pytest.mark.parametrize("engine, workers", [("group", 2), ("group", 3), ("strategy", 2)])
def test_processes(engine, workers):
    run = launch("group_contract.py", engine, workers=workers).succeeded()
    assert run.out == [["held"]] * workers


def test_threads():
    def body(group):
        group_contract.carries(group, itertools.count(PLAN_KEYS))
        group_contract.compares(group)

    in_threads(body)


def test_one_process_alone():
    group_contract.carries(ProcessGroup(["localhost"], 0), itertools.count(PLAN_KEYS))


def test_a_lost_worker_is_told_in_the_sentence_of_the_engine():
    lost = tf.errors.CancelledError(None, None, "A thread has ended.")

    def body(group):
        with mock.patch.object(group, "_handshake", side_effect=lost):
            told = [group_contract.raised(RuntimeError, group.barrier)]
        with mock.patch.object(group, "_broadcast", side_effect=lost):
            variables = [tf.Variable(1.0)]
            told.append(group_contract.raised(RuntimeError, lambda: group.broadcast(variables)))
        return told

    assert in_threads(body) == [["A thread is gone."] * 2] * SIZE


def test_a_group_says_what_its_subclass_must_write():
    class Silent(Group):
        pass

    with pytest.raises(TypeError, match="_all_to_all.*_broadcast.*_explain.*_gather.*_handshake"):
        Silent()


def collective_error(kind, words="Collective ops is aborted by: Socket closed"):
    return kind(None, None, words)


LOSSES = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_process_group_tells_a_collectives_error_as_a_lost_worker(kind):
    group = ProcessGroup(["localhost"], 0)
    group.size = 2
    told = group.explain(collective_error(kind))
    assert told.startswith("Worker 0 of 2 cannot go on, worker 1 ")
    with pytest.raises(kind, match="no collective"):
        group.explain(collective_error(kind, "no collective"))


@pytest.mark.parametrize("transport", [Loopback(), ProcessGroup(["localhost"], 0)])
def test_an_error_of_an_eager_step_keeps_its_own_message(transport):
    """Alone it became `'Loopback' object has no attribute 'explain'`, in a group a lost worker."""
    error = tf.errors.InvalidArgumentError(None, None, "Incompatible shapes: [2] vs. [3]")
    variable = tf.Variable(tf.ones([2000]))
    with (
        mock.patch.object(step, "between_processes", lambda: transport),
        mock.patch.object(schedule_stages, "exchange", side_effect=error),
        pytest.raises(tf.errors.InvalidArgumentError, match="Incompatible shapes") as found,
    ):
        grace_tf.Aggregator("qsgd")([tf.ones([2000])], [variable])
    assert found.value is error
