"""benchmarks/faults.py judges runs rightly: each thing that may be wrong is found as such."""

import argparse
import importlib.util
import itertools
import mmap
import os
import random

import pytest
from doc_tables import ROOT  # with it the folder of the benchmarks can be imported from
from injection import kinds, memory, strangers, tables, verdict

GONE = "is gone without a word: it was killed, crashed or lost its machine"
BITS = {"weights": "a", "optimizer": "b", "residuals": "c", "first": 4}
OTHERS = {**BITS, "weights": "x"}


def facts(kind, said="", code=1, after=1.0, engine="group", steps=3, **fields):
    """Two workers, of which worker 1 had a fault after `steps`; worker 0 ended `after` seconds."""
    fault = {"kind": kind, "worker": 1, "steps": steps}
    lines = {0: ["noise", said], 1: ["boom"]}
    ended = {0: (code, 100.0 + after), 1: (code, 100.5)}
    given = dict(at=100.0, ended=ended, hung=(), said=lines, ends={0: BITS, 1: BITS})
    given.update(whole=[BITS, BITS], **{"timeout": 10.0, "workers": 2, **fields})
    return verdict.Facts(engine=engine, fault=fault, **given)


def categories(found):
    return [category for category, _ in found]


KILLED = f"RuntimeError: Worker 0 of 2 cannot go on, worker 1 {GONE}; start all of them again."
RAISED = (
    "Worker 0 of 2 cannot go on, worker 1 failed after 3 steps: ValueError: boom; start all of "
    "them again."
)


@pytest.mark.parametrize(
    "kind, said",
    [
        ("SIGKILL", KILLED),
        ("raise", RAISED),
        ("SIGSTOP", KILLED.replace(GONE, "did not take part within 10 s")),
        ("loss", "RuntimeError: Workers cannot train together, the loss of worker 1 is another."),
        ("rows permuted", "The weights of worker 1 of 2 differ from worker 0's after 4 steps."),
        ("learning rate", "The learning rate is 1 on worker 0 and 2 on worker 1."),
    ],
)
def test_a_sentence_with_worker_and_cause_holds(kind, said):
    assert verdict.judge(facts(kind, said)) == []


@pytest.mark.parametrize(
    "kind, said",
    [
        ("SIGKILL", ""),
        ("SIGKILL", KILLED.replace("worker 1", "worker 0")),
        ("SIGKILL", RAISED),
        ("raise", KILLED),
        ("raise", RAISED.replace("3 steps", "2 steps")),
        ("loss", "Worker 0 of 2 cannot go on, worker 1 did not take part within 10 s."),
        ("loss", "Worker 0 of 2 cannot go on, its loss differs."),
        ("loss", "Worker 0 of 2 cannot go on, the loss of worker 11 differs."),
        ("recompiled", "Worker 0 of 2 cannot go on, worker 1 did not take part within 10 s."),
        ("fewer batches", "The weights of worker 1 of 2 differ from worker 0's after 4 steps."),
    ],
)
def test_a_sentence_without_worker_or_cause_is_unclear(kind, said):
    assert categories(verdict.judge(facts(kind, said))) == [verdict.UNCLEAR]


def test_what_ends_well_after_a_fault_that_must_stop_it_is_silent():
    assert verdict.SILENT in categories(verdict.judge(facts("loss", code=0)))


def test_what_ends_too_late_or_never_is_late():
    assert verdict.judge(facts("SIGKILL", KILLED, after=19.9)) == []
    assert categories(verdict.judge(facts("SIGKILL", KILLED, after=20.1))) == [verdict.LATE]
    assert categories(verdict.judge(facts("SIGKILL", hung=[0], code=-9))) == [verdict.LATE]
    assert categories(verdict.judge(facts("noise", hung=[0], code=-9))) == [verdict.LATE]


def test_nothing_injected_holds_never():
    assert categories(verdict.judge(facts("SIGKILL", KILLED, at=None))) == [verdict.ENDED]


def test_a_worker_that_raises_says_so_itself():
    assert verdict.judge(facts("raise", RAISED)) == []
    given = facts("raise", RAISED)
    given.said = {0: [RAISED], 1: ["OtherError: later"]}
    assert categories(verdict.judge(given)) == [verdict.UNCLEAR]


def test_a_fault_without_effect_leaves_every_bit():
    assert verdict.judge(facts("noise", code=0)) == []
    alike = {0: OTHERS, 1: OTHERS}
    assert categories(verdict.judge(facts("noise", code=0, ends=alike))) == [verdict.SILENT]
    for name in ("optimizer", "residuals"):
        ends = {0: BITS, 1: {**BITS, name: "x"}}
        assert categories(verdict.judge(facts("noise", code=0, ends=ends))) == [verdict.SILENT]
    assert categories(verdict.judge(facts("noise", KILLED))) == [verdict.ENDED]
    assert categories(verdict.judge(facts("noise", code=0, ends={0: BITS}))) == [verdict.SILENT]


def test_where_either_may_follow_one_must_hold():
    said = "Worker 0 of 2 cannot go on, worker 1 has compiled its model again."
    assert verdict.judge(facts("recompiled, same optimizer", said)) == []
    assert verdict.judge(facts("recompiled, same optimizer", code=0)) == []
    apart = facts("recompiled, same optimizer", code=0, ends={0: OTHERS, 1: BITS})
    assert categories(verdict.judge(apart)) == [verdict.SILENT]
    assert verdict.judge(facts("recompiled, same optimizer", KILLED))


def test_where_worker_0_s_values_count_workers_end_alike():
    assert verdict.judge(facts("EarlyStopping", code=0, ends={0: OTHERS, 1: OTHERS})) == []
    apart = facts("EarlyStopping", code=0, ends={0: OTHERS, 1: BITS})
    assert categories(verdict.judge(apart)) == [verdict.SILENT]
    # Under this strategy the rate is worker 0's, and that must be said.
    quiet = facts("learning rate", code=0, engine="strategy")
    assert categories(verdict.judge(quiet)) == [verdict.SILENT]
    told = facts("learning rate", "The learning rate is worker 0's.", code=0, engine="strategy")
    assert verdict.judge(told) == []


def test_lost_work_and_lost_backups_are_found():
    said = "The backup backup/5 is damaged and is left out: its weights are not those saved."
    assert verdict.judge(facts("cut", said, code=0, saved=4)) == []
    assert categories(verdict.judge(facts("cut", code=0, saved=4))) == [verdict.SILENT]
    assert categories(verdict.judge(facts("cut", said, code=0, saved=5))) == [verdict.LOST]
    assert categories(verdict.judge(facts("cut", KILLED))) == [verdict.LOST]
    said = "RuntimeError: BackupAndRestore: worker 1 of 2 has no backup, but others have."
    assert verdict.judge(facts("no backup", said)) == []
    gone = facts("no backup", said, changed=["backup/4/latest.weights.h5"])
    assert categories(verdict.judge(gone)) == [verdict.LOST]


def test_a_training_that_was_started_again_ends_with_the_bits():
    assert verdict.resumed(facts("SIGKILL", code=0, saved=4)) == []
    assert categories(verdict.resumed(facts("SIGKILL", code=0, saved=5))) == [verdict.LOST]
    apart = facts("SIGKILL", code=0, ends={0: OTHERS, 1: OTHERS})
    assert categories(verdict.resumed(apart)) == [verdict.LOST]
    assert categories(verdict.resumed(facts("SIGKILL", code=0, hung=[1]))) == [verdict.LATE]


def test_memory_that_outlives_the_workers_is_left():
    kind, held = "killed while it is shared", ["self maps"]
    assert verdict.judge(facts(kind, KILLED, held=held)) == []
    found = verdict.judge(facts(kind, KILLED, held=held, left=["7 maps holds memory of the run"]))
    assert categories(found) == [verdict.LEFT]
    # Workers that add up through sockets have nothing to leave.
    assert categories(verdict.judge(facts(kind, KILLED))) == [verdict.ENDED]
    assert verdict.judge(facts("killed while it is made", KILLED, steps=0)) == []


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
def test_open_files_and_mappings_of_a_run_s_memory_are_found(tmp_path, monkeypatch):
    of_another_run = os.memfd_create("grace_tf")
    monkeypatch.setattr(os, "memfd_create", os.memfd_create)  # restored when the test ends
    monkeypatch.setattr(memory, "names", set)  # other tests may add names meanwhile
    memory.watch({"folder": tmp_path})
    file, own = os.memfd_create("grace_tf"), os.getpid()
    os.truncate(file, mmap.PAGESIZE)
    with mmap.mmap(file, mmap.PAGESIZE):  # which duplicates the descriptor
        os.close(file)
        assert memory.holders(tmp_path, "self") == ["self maps", "self fd"]
        found = memory.left(tmp_path, set())
        assert found == [f"{own} {how} holds memory of the run" for how in ("maps", "fd")]
    assert memory.left(tmp_path, set()) == []
    os.close(of_another_run)


def test_a_new_name_in_shared_memory_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "names", lambda: {"of another program", "new"})
    assert memory.left(tmp_path, {"of another program"}) == ["/dev/shm/new is left"]


def test_the_faults_are_of_all_kinds_and_the_same_for_a_seed():
    # By its path: there is a tests/programs/faults.py too.
    spec = importlib.util.spec_from_file_location("injected", ROOT / "benchmarks" / "faults.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    for engine in kinds.ENGINES:
        named = [name for name, kind in kinds.KINDS.items() if engine in kind.engines]

        def plan(seed, engine=engine, named=named):
            args = argparse.Namespace(kinds=named, workers=[2, 3], seed=seed)
            return list(itertools.islice(program.plan(args, engine), 3 * len(named)))

        first = plan(0)
        assert first == plan(0) and first != plan(1)
        assert {fault["kind"] for fault in first} == {*named}
        for fault in first:
            assert 0 <= fault["worker"] < fault["workers"]
            outcomes = kinds.KINDS[fault["kind"]].outcomes(engine)
            assert fault["stops"] == any(isinstance(each, kinds.Stops) for each in outcomes)


@pytest.mark.parametrize("name", [n for n, k in kinds.KINDS.items() if k.family == "strangers"])
def test_every_stranger_has_words_of_its_own(name):
    said = strangers.words(name, random.Random(0))
    assert (said == b"") == (name == "silent connections")
    assert said == strangers.words(name, random.Random(0))


def test_the_tables_count_what_is_wrong():
    machine = {"kind": "machine", "tensorflow": "2.21.0"}
    run = {"engine": "group", "kind": "SIGKILL", "seconds": 1.0, "stops": True, "resumed": None}
    rows = [
        machine,
        {**run, "wrong": [], "resumed": True},
        {**run, "wrong": [[verdict.LATE, "x"], [verdict.LATE, "y"], [verdict.UNCLEAR, "z"]]},
    ]
    found = tables.of_rows(rows)
    told = "| 2.21 | process group | 2 | 0 | 1 | 0 | 1 | 0 | 0 | 1.0 s | 1 of 1 |"
    assert told in found["faults"]
    assert "| lost worker | SIGKILL | stops | 1 of 2 |" in found["fault-kinds"]
