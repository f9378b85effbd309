"""Under Horovod: process sets that train different models, and parts of a group."""

import sys
from unittest import mock

import pytest
from horovod_runs import launch_horovod, needs_horovod

from grace_tf.transports.horovod import group as horovod
from grace_tf.transports.horovod import process_sets
from grace_tf.transports.world import world


@needs_horovod
def test_process_sets_train_different_models_in_one_job():
    run = launch_horovod("horovod_sets.py", "sets", workers=3)
    assert run.code == 0, run.text
    (first, one), (alone, other), (second, same) = run.answers()
    assert [answer["who"] for answer in (first, alone, second)] == [[0, 0, 2], [0, 1, 1], [1, 2, 2]]
    # A process whose training is shorter waits at its end for those with longer ones.
    assert [answer["steps"] for answer in (one, other, same)] == [160, 20, 160]
    assert one["sha"] == same["sha"] != other["sha"]
    for rank, answer in enumerate((first, alone, second)):
        refused, others = answer["refused"], "[0, 2]" if rank == 1 else "[1]"
        assert "call hvd.init(process_sets=[…]) before grace_tf.init(" in refused["early"]
        assert "is an hvd.ProcessSet, not [0, 2]" in refused["type"]
        assert "does not know the process set of [0, 1]" in refused["unknown"]
        assert f"process {rank}, and the process set has {others}" in refused["foreign"]
        assert "takes no other argument than timeout" in refused["more"]
        assert "already, not with [0, 1, 2]: a process joins one group" in refused["second"]


@needs_horovod
def test_a_failure_is_told_within_its_set():
    run = launch_horovod("horovod_sets.py", "fault", workers=3)
    assert run.code == 1, run.text
    assert run.err[0][-1].endswith(
        "Worker 0 of 2 cannot go on, worker 1 failed: ValueError: boom; start all of them again."
    ), run.text
    assert "ValueError: boom" not in "".join(run.err[1]), run.text


@needs_horovod
def test_parts_of_a_group_carry_among_their_workers_only():
    run = launch_horovod("horovod_sets.py", "parts", workers=4)
    assert run.code == 0, run.text
    for rank, (answer,) in enumerate(run.answers()):
        refused = answer["refused"]
        own = f"with this worker's own, {rank}; not "
        assert f"{own}[{(rank + 1) % 4}]." in refused["without me"]
        assert f"{own}[3, 2, 1, 0]." in refused["descending"]
        assert "worker 2 has named other workers" in refused["overlapping"]


@needs_horovod
def test_parts_need_process_sets_that_horovod_knows_or_takes():
    run = launch_horovod("horovod_sets.py", "static", workers=4)
    assert run.code == 0, run.text
    # All workers say the same: what the first part lacks.
    for (answer,) in run.answers():
        assert "has no process set of its processes [0, 2]" in answer["refused"]
        assert answer["refused"].endswith('call hvd.init(process_sets="dynamic").')


def test_a_set_of_some_processes_adds_no_process_set():
    known = {0: [0, 1, 2, 3], 1: [0, 1, 2]}
    hvd = mock.Mock()
    hvd.mpi_ops._basics._get_process_set_ids_and_ranks.return_value = known
    with pytest.raises(RuntimeError, match=r"\[0, 2\].* give it to hvd.init"):
        process_sets.registered(hvd, [0, 2], everywhere=False)
    assert not hvd.add_process_set.called
    assert process_sets.registered(hvd, [0, 1, 2], everywhere=False).process_set_id == 1


def test_a_process_set_is_refused_where_all_of_horovods_workers_train_together(monkeypatch):
    hvd = mock.Mock(
        **{"size.return_value": 3, "rank.return_value": 1, "local_rank.return_value": 1}
    )
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", hvd)
    monkeypatch.setattr(horovod, "_current", None)
    assert world.size() == 3
    with pytest.raises(RuntimeError, match=r"\[0, 1, 2\] already, not with \[1, 2\]"):
        world.init(process_set=mock.Mock(ranks=[1, 2], process_set_id=1))
