"""Under Horovod: the contract of a group, trainings and faults, with two and three workers."""

import re
import sys
import threading
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from horovod_runs import answers_of, launch_horovod, lines_of, needs_horovod
from launch import launch_once

from grace_tf.cli import launcher
from grace_tf.cli.run.addresses import environments
from grace_tf.cli.run.local_and_ssh import Local
from grace_tf.transports.horovod import engine as horovod_engine
from grace_tf.transports.horovod import group as horovod
from grace_tf.transports.horovod.process_sets import HorovodSet

pytestmark = pytest.mark.slow  # many share two runs, and the first of them waits for its end
METHODS = ["none", "qsgd", "topk:ratio=0.1", "powersgd:rank=2", "signsgd", "bf16"]
METHODS += ["qsgd:rounding=nearest>two_hop"]
CONTRACT = "group_contract.py group"
FIT, FIT_ONCE = (" ".join([f"train.py {how}", *METHODS]) for how in ("fit", "fit_once"))


def one_after_the_other(*programs, workers):
    """A run of several programs in the same processes; each must have come to its end."""
    words = " -- ".join(programs).split()
    return launch_once("under_horovod.py", *words, workers=workers, horovod=True).succeeded()


@pytest.fixture(scope="module")
def two():
    calls, nothing_wrong = "horovod_calls.py calls", "faults.py group none"
    programs = calls, CONTRACT, FIT, "train.py callback", "train.py nan", nothing_wrong
    return one_after_the_other(*programs, workers=2)


@pytest.fixture(scope="module")
def three():
    # With three workers there is one training.  Horovod may add up three gradients in another order
    # in each run, so two runs may end with different bits, and comparing them would prove nothing.
    return one_after_the_other(CONTRACT, FIT_ONCE, "horovod_calls.py end", workers=3)


@needs_horovod
@pytest.mark.parametrize("workers", ["two", "three"])
def test_a_group_of_horovods_workers_keeps_the_contract(workers, request):
    for lines in lines_of(request.getfixturevalue(workers), CONTRACT):
        assert lines == ["held"]


class FakeHorovod:
    """Horovod for worker 1 of three workers with equal buffers; counts the bytes that it sends."""

    def __init__(self, buffer):
        size = -(-len(buffer) // 3)
        padded = np.pad(np.asarray(buffer, np.float32), [0, 3 * size - len(buffer)])
        self.sums, self.sent = tf.cast(3 * padded.reshape(3, size), tf.bfloat16), 0

    def rank(self):
        return 1

    def alltoall(self, rows, **_):
        self.sent += 2 * tf.size(rows).numpy() * rows.dtype.size // 3
        return tf.tile(rows[1:2], [3, 1])

    def allgather(self, row, **_):
        self.sent += 2 * tf.size(row).numpy() * row.dtype.size
        tf.debugging.assert_equal(tf.bitcast(row, tf.uint16), tf.bitcast(self.sums[1:2], tf.uint16))
        return tf.bitcast(self.sums, row.dtype)


class Unwatched(HorovodSet):
    def _around(self, mark, buffer, collective):
        return collective()


@pytest.mark.parametrize("length", [1, 8, 9])
def test_bfloat16_is_summed_for_the_bytes_of_an_all_reduce(length):
    buffer = tf.cast(tf.linspace(0.1, 3.0, length), tf.bfloat16)
    module = FakeHorovod(buffer)
    (total,) = Unwatched(module, [0, 1, 2]).sum([buffer], 1)
    assert total.dtype == tf.bfloat16
    np.testing.assert_array_equal(total, tf.cast(3 * tf.cast(buffer, tf.float32), tf.bfloat16))
    assert module.sent == 2 * 2 * (-(-length // 3)) * 2  # 2 · (N − 1) / N of n elements of 2 bytes


class FakePair:
    """Replaces the Horovod module in one of two workers.  It has an all-reduce, and nothing else.

    `theirs` is the buffer of the other worker.
    """

    Sum = "sum"

    def __init__(self, rank, theirs):
        self.rank, self.sent = lambda: rank, 0
        self._theirs = theirs

    def allreduce(self, bytes_, op, **_):
        assert op == self.Sum
        self.sent += tf.size(bytes_).numpy() * bytes_.dtype.size  # 2 · (N − 1) / N of it
        return bytes_ + tf.bitcast(self._theirs, bytes_.dtype)


@pytest.mark.parametrize("me", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int64", "uint32"])
def test_two_workers_gather_by_an_all_reduce_which_gloo_sends_both_ways_at_once(dtype, me):
    bits = np.random.default_rng(7).integers(0, 256, [2, 2, 24], np.uint8)  # NaN and -0.0 too
    rows = [tf.constant(each.view(tf.as_dtype(dtype).as_numpy_dtype)) for each in bits]
    mine, theirs = rows[me], rows[1 - me]
    module = FakePair(me, theirs[0])
    (gathered,) = Unwatched(module, [0, 1]).gather([mine[0]], 1)
    assert module.sent == bits[0, 0].size
    np.testing.assert_array_equal(tf.bitcast(gathered, tf.uint8).numpy().reshape(2, -1), bits[:, 0])
    module = FakePair(me, theirs[me])
    (swapped,) = Unwatched(module, [0, 1]).all_to_all([mine], 1)
    assert module.sent == bits[0, 0].size
    np.testing.assert_array_equal(tf.bitcast(swapped, tf.uint8).numpy().reshape(2, -1), bits[:, me])


def test_an_error_of_gloo_in_a_node_of_ours_means_a_lost_worker():
    node = "\n\t [[{{node sgd_1/grace_tf.1073741891.gather}}]] [Op:__inference_step_7]"
    said = "[pair.cc:589] Read error [127.0.0.1]:7: Connection reset by peer"
    lost = horovod_engine.Engine.lost_a_peer
    assert lost(tf.errors.UnknownError(None, None, said + node))
    assert lost(tf.errors.UnknownError(None, None, "Horovod has been shut down."))
    gone = "Allgather: Process set provided does not exist, or has not been registered."
    assert lost(tf.errors.InvalidArgumentError(None, None, gone))
    assert not lost(tf.errors.UnknownError(None, None, said))
    assert not lost(tf.errors.InvalidArgumentError(None, None, said + node))


def test_what_horovod_says_after_its_end_is_explained_by_a_loss_but_means_none():
    ended = "Horovod has not been initialized; use hvd.init()."
    engine = horovod_engine.Engine(mock.Mock())
    assert engine.may_have_failed(tf.errors.FailedPreconditionError(None, None, ended))
    assert not engine.lost_a_peer(tf.errors.FailedPreconditionError(None, None, ended))
    assert not engine.may_have_failed(tf.errors.FailedPreconditionError(None, None, "no value"))


def test_last_words_wait_for_horovods_end_but_not_without_bound():
    ends, hvd = threading.Event(), mock.Mock()
    engine = horovod_engine.Engine(hvd)
    engine.quiet()
    engine.quiet()
    hvd.shutdown.assert_called_once_with()
    hvd.shutdown = ends.wait
    with mock.patch.object(horovod_engine, "_QUIET", 0.0):
        horovod_engine.Engine(hvd).quiet()
    ends.set()


@needs_horovod
@pytest.mark.parametrize(
    "workers, program, trainings",
    [("two", FIT, 2), ("three", FIT_ONCE, 1)],
    ids=["two", "three"],
)
def test_fit_ends_with_the_same_weights_on_every_worker(workers, program, trainings, request):
    told = answers_of(request.getfixturevalue(workers), program)
    for i, method in enumerate(METHODS):
        assert all(len(worker[i]["shas"]) == trainings for worker in told)
        assert len({sha for worker in told for sha in worker[i]["shas"]}) == 1, method


@needs_horovod
def test_fit_ends_with_the_bits_of_a_process_group(two):
    # Once: its own trainings repeat themselves (tests/keras/test_training.py).
    plain = launch_once("train.py", "fit_once", *METHODS).succeeded().answers()
    # Sums of three would depend on the engine's order.
    for ours, theirs in zip(answers_of(two, FIT), plain, strict=True):
        for told, wanted in zip(ours, theirs, strict=True):
            assert told == {**wanted, "shas": wanted["shas"] * 2}


@needs_horovod
def test_the_callback_keeps_workers_alike(two):
    first, second = answers_of(two, "train.py callback")
    assert first[-1] == second[-1]


@needs_horovod
def test_a_nan_on_one_worker_leaves_state_untouched_on_all(two):
    first, second = answers_of(two, "train.py nan")
    for answers in first, second:
        middle = [answer for answer in answers if "leaves" in answer]
        assert len(middle) == 2
        for answer in middle:
            assert answer["state_untouched"]
            # Without loss scaling the optimizer gets NaN, on every worker alike.
            assert answer["weights_untouched"] == answer["scaled"]
    assert first[-1] == second[-1]


@needs_horovod
def test_everything_finds_the_workers_without_init(two):
    for rank, answers in enumerate(answers_of(two, "horovod_calls.py calls")):
        (answer,) = answers
        assert answer["expected"] == 2
        assert answer["who"] == [rank, rank, 2]
        assert answer["shard"] == [[0, 2], [1, 3]][rank]
        assert answer["broadcast"] == [2.0, 2.0]
        assert "Horovod runs 2 workers already" in answer["addresses"]
        assert "right after hvd.init()" in answer["later timeout"]
        assert "SGD is not wrapped" in answer["plain"]
        assert "the optimizer that it was made of" in answer["theirs"]
        assert "use grace_tf.wrap() alone" in answer["twice"]
        assert answer["constant"] == [2.0] * 4


@needs_horovod
def test_horovod_that_was_shut_down_is_told(three):
    for (answer,) in answers_of(three, "horovod_calls.py end"):
        assert "Horovod has" in answer["shut down"]


@needs_horovod
def test_nothing_is_said_where_nothing_is_wrong(two):
    assert all(lines == ["trained"] for lines in lines_of(two, "faults.py group none"))
    assert not [line for lines in two.err for line in lines if "cannot go on" in line]


AGAIN = r"; start all of them again\.$"
SENTENCES = {
    "SIGKILL": r"worker 1 is gone without a word: it was killed, crashed or lost its machine",
    "raise": r"worker 1 failed after 3 steps: ValueError: boom",
    "exit": r"worker 1 left after 3 steps: it has ended its program before the others",
    "SIGSTOP": r"worker 1 (has not answered for \d+ s: it is stopped, or its machine hangs"
    r"|did not take part within 8 s)",
}


@needs_horovod
@pytest.mark.parametrize("fault", SENTENCES)
def test_the_survivor_says_whose_fault_it_was(fault):
    linger = 1 if fault == "SIGSTOP" else 60
    run = launch_horovod("under_horovod.py", "faults.py", "group", fault, linger=linger)
    assert run.code not in (0, launcher.TIMED_OUT), run.text
    last = re.sub(r"^\w+Error: ", "", run.err[0][-1])
    assert re.match(f"Worker 0 of 2 cannot go on, {SENTENCES[fault]}{AGAIN}", last), run.text
    assert "trained" not in run.out[0]


GONE = SENTENCES["SIGKILL"] + ", before all workers had met"
LOST_AT_START = {
    ("SIGKILL", "init"): GONE,
    ("SIGKILL", "fit"): GONE,  # of a program that never calls grace_tf.init()
    ("SIGSTOP", "init"): "worker 1 did not take part within 6 s",
}


@needs_horovod
@pytest.mark.parametrize("fault, where", LOST_AT_START)
def test_a_worker_lost_before_its_first_call_is_named(fault, where):
    linger = 1 if fault == "SIGSTOP" else 60
    run = launch_horovod("horovod_calls.py", "start", fault, where, workers=3, linger=linger)
    # Horovod's threads may log an error of theirs while the process ends.
    errors = [[line for line in lines if not line.startswith("[")] for lines in run.err]
    said = [lines[-1] for rank, lines in enumerate(errors) if rank != 1 and lines]
    assert run.code not in (0, launcher.TIMED_OUT) and said, run.text
    for last in said:
        sentence = f"cannot go on, {LOST_AT_START[fault, where]}{AGAIN}"
        assert re.search(f"^RuntimeError: Worker [02] of 3 {sentence}", last), run.text


@needs_horovod
@pytest.mark.parametrize("how", [[], ["eager"], ["meet"]])
def test_a_worker_that_does_not_take_part_is_named(how):
    run = launch_horovod("horovod_calls.py", "late", *how, linger=1)
    assert run.code not in (0, launcher.TIMED_OUT), run.text
    assert re.search("worker 1 (did not take part|has not answered)", run.err[0][-1]), run.text


@needs_horovod
@pytest.mark.parametrize(
    "fault, sentence",
    [
        ("loss", "Workers cannot train together, the loss is mse on worker 0 and mae on worker 1"),
        ("batches", "worker 1 of 2 waits in the first step's comparison, but worker 0 waits in a"),
    ],
)
def test_what_one_worker_alone_compiles_is_told_by_both(fault, sentence):
    run = launch_horovod("under_horovod.py", "compiled.py", "group", fault)
    assert run.code not in (0, launcher.TIMED_OUT), run.text
    for lines in run.err:
        assert sentence in lines[-1], run.text


@needs_horovod
def test_the_first_fit_compares_models_also_without_init():
    run = launch_horovod("horovod_calls.py", "loss")
    assert run.code not in (0, launcher.TIMED_OUT), run.text
    for lines in run.err:
        assert "the loss is mse on worker 0 and mae on worker 1" in lines[-1], run.text


def test_elastic_is_refused(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", mock.Mock())
    with pytest.raises(RuntimeError, match="hvd.elastic changes the number of workers"):
        horovod.running()


def test_a_horovod_that_stops_meanwhile_leaves_the_group_of_this_process(monkeypatch):
    stopping = mock.Mock(rank=mock.Mock(side_effect=ValueError("has not been initialized")))
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", stopping)
    monkeypatch.setattr(horovod, "_current", group := object())
    assert horovod.running() is group  # its next collective says which worker was lost


@needs_horovod
def test_the_launcher_tells_each_worker_who_it_is():
    with environments([Local("localhost") for _ in range(3)], False, True) as found:
        assert [each["HOROVOD_RANK"] for each in found] == ["0", "1", "2"]
        assert {each["HOROVOD_SIZE"] for each in found} == {"3"}
        assert all("TF_CONFIG" in each for each in found)


@needs_horovod
def test_workers_on_two_hosts_are_told_how_to_reach_each_other():
    far = {"here": False, "port": 1, "client": "127.0.0.1", "interface": "eth7"}
    there = types.SimpleNamespace(host="me@x.invalid", server="192.0.2.7", **far)
    with environments([Local("localhost"), there, there], False, True, {"A": "1"}) as found:
        assert [each["HOROVOD_HOSTNAME"] for each in found] == ["127.0.0.1"] + ["192.0.2.7"] * 2
        assert [each["HOROVOD_LOCAL_RANK"] for each in found] == ["0", "0", "1"]
        assert [each["HOROVOD_GLOO_IFACE"] for each in found] == ["lo", "eth7", "eth7"]
        assert {each["HOROVOD_GLOO_RENDEZVOUS_ADDR"] for each in found} == {"127.0.0.1"}
        assert {each["A"] for each in found} == {"1"} and "HOME" not in found[1]
