"""Under Horovod: the contract of a group, trainings and faults, with two and three workers."""

import importlib.util
import io
import json
import os
import pathlib
import re
import sys

import pytest
import tensorflow as tf

from grace_tf.cli import doctor, launcher
from grace_tf.cli.addresses import environments
from grace_tf.transports import horovod

PROGRAMS = pathlib.Path(__file__).parent / "programs"
METHODS = ["none", "qsgd", "topk:ratio=0.1", "powersgd:rank=2", "signsgd", "bf16"]
METHODS += ["qsgd:rounding=nearest>two_hop"]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason=f"Horovod is {doctor.horovod()}",
)


def launch(*arguments, workers=2, under=True, linger=60):
    """The exit code, each worker's lines on stdout, and its lines on stderr."""
    out, err = io.StringIO(), io.StringIO()
    command = [str(PROGRAMS / "under_horovod.py"), *arguments]
    if not under:
        command = [str(PROGRAMS / arguments[0]), *arguments[1:]]
    path = [str(pathlib.Path(launcher.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        code = launcher.run(
            [sys.executable, "-u", *command],
            workers,
            timeout=240,
            linger=linger,
            stdout=out,
            stderr=err,
            horovod=True,
        )
    streams = []
    for stream in out, err:
        said = {str(rank): [] for rank in range(workers)}
        for line in stream.getvalue().splitlines():
            match = re.match(r"\[(\d+)\] (.*\S)", line)
            if match:
                said[match[1]].append(match[2])
        streams.append(said)
    return code, *streams


def answers(lines):
    """What a worker printed as JSON."""
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize("workers", [2, 3])
def test_a_group_of_horovods_workers_keeps_the_contract(workers):
    code, out, err = launch("group_contract.py", "group", workers=workers)
    assert code == 0, err
    assert all("held" in lines for lines in out.values())


def test_an_error_of_gloo_in_a_node_of_ours_means_a_lost_worker():
    node = "\n\t [[{{node sgd_1/grace_tf.1073741891.gather}}]] [Op:__inference_step_7]"
    said = "[pair.cc:589] Read error [127.0.0.1]:7: Connection reset by peer"
    lost = horovod._Engine.lost_a_peer
    assert lost(tf.errors.UnknownError(None, None, said + node))
    assert lost(tf.errors.UnknownError(None, None, "Horovod has been shut down."))
    assert not lost(tf.errors.UnknownError(None, None, said))
    assert not lost(tf.errors.InvalidArgumentError(None, None, said + node))


@pytest.mark.parametrize("workers", [2, 3])
def test_fit_ends_with_the_same_weights_on_every_worker(workers):
    code, out, err = launch("train.py", "fit", *METHODS, workers=workers)
    assert code == 0, err
    told = [answers(lines) for lines in out.values()]
    for i, method in enumerate(METHODS):
        shas = {sha for worker in told for sha in worker[i]["shas"]}
        assert len(shas) == 1, (method, shas)
    if workers > 2:
        return  # sums of three depend on the engine's order
    plain = launcher_of_a_process_group("train.py", "fit", *METHODS)
    assert told[0] == plain


def launcher_of_a_process_group(*arguments):
    """What worker 0 prints of the same program in a process group."""
    out, err = io.StringIO(), io.StringIO()
    command = [sys.executable, "-u", str(PROGRAMS / arguments[0]), *arguments[1:]]
    code = launcher.run(command, 2, timeout=240, stdout=out, stderr=err)
    assert code == 0, err.getvalue()
    lines = [line[4:] for line in out.getvalue().splitlines() if line.startswith("[0] {")]
    return answers(lines)


def test_the_callback_and_a_nan_on_one_worker():
    code, out, err = launch("train.py", "callback")
    assert code == 0, err
    ends = [answers(lines)[-1] for lines in out.values()]
    assert ends[0] == ends[1]
    code, out, err = launch("train.py", "nan")
    assert code == 0, err
    for lines in out.values():
        middle = [answer for answer in answers(lines) if "leaves" in answer]
        assert len(middle) == 2
        for answer in middle:
            assert answer["state_untouched"]
            # Without loss scaling the optimizer gets NaN, on every worker alike.
            assert answer["weights_untouched"] == answer["scaled"]
    assert answers(out["0"])[-1] == answers(out["1"])[-1]


def test_everything_finds_the_workers_without_init():
    code, out, err = launch("horovod_calls.py", "calls", under=False)
    assert code == 0, err
    for rank, lines in out.items():
        (answer,) = answers(lines)
        assert answer["expected"] == 2
        assert answer["who"] == [int(rank), int(rank), 2]
        assert answer["shard"] == [[0, 2], [1, 3]][int(rank)]
        assert answer["broadcast"] == [2.0, 2.0]
        assert "Horovod runs 2 workers already" in answer["addresses"]
        assert "right after hvd.init()" in answer["later timeout"]
        assert "SGD is not wrapped" in answer["plain"]
        assert "the optimizer that it was made of" in answer["theirs"]
        assert "use grace_tf.wrap() alone" in answer["twice"]
        assert answer["constant"] == [2.0] * 4
        assert "Horovod has" in answer["shut down"]


AGAIN = r"; start all of them again\.$"
SENTENCES = {
    "SIGKILL": r"worker 1 is gone without a word: it was killed, crashed or lost its machine",
    "raise": r"worker 1 failed: ValueError: boom",
    "exit": r"worker 1 has ended its program before the others",
    "SIGSTOP": r"worker 1 (has not answered for \d+ s: it is stopped, or its machine hangs"
    r"|did not take part within 8 s)",
}


@pytest.mark.parametrize("fault", SENTENCES)
def test_the_survivor_says_whose_fault_it_was(fault):
    linger = 1 if fault == "SIGSTOP" else 60
    code, out, err = launch("faults.py", "group", fault, linger=linger)
    assert code not in (0, launcher.TIMED_OUT), err
    last = re.sub(r"^\w+Error: ", "", err["0"][-1])
    assert re.match(f"Worker 0 of 2 cannot go on, {SENTENCES[fault]}{AGAIN}", last), err
    assert "trained" not in out["0"]


@pytest.mark.parametrize("how", [[], ["eager"]])
def test_a_worker_that_does_not_take_part_is_named(how):
    code, _, err = launch("horovod_calls.py", "late", *how, under=False, linger=1)
    assert code not in (0, launcher.TIMED_OUT), err
    assert re.search("worker 1 (did not take part|has not answered)", err["0"][-1]), err


def test_nothing_is_said_where_nothing_is_wrong():
    code, out, err = launch("faults.py", "group", "none")
    assert code == 0, err
    assert all("trained" in lines for lines in out.values())
    assert not [line for lines in err.values() for line in lines if "cannot go on" in line]


def test_elastic_is_refused(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    code, _, err = launch("train.py", "fit", "qsgd", linger=5)
    assert code == 1
    assert "hvd.elastic changes the number of workers" in err["0"][-1], err


def test_the_launcher_tells_each_worker_who_it_is():
    with environments(3, False, True) as found:
        assert [each["HOROVOD_RANK"] for each in found] == ["0", "1", "2"]
        assert {each["HOROVOD_SIZE"] for each in found} == {"3"}
        assert all("TF_CONFIG" in each for each in found)
