"""Workers that a scheduler has started: how its variables are read, and how the workers meet."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from concurrent import futures
from unittest import mock

import pytest
import replicas
from launch import WARM
from launch import surroundings as common
from test_meeting import free

import grace_tf
from grace_tf.transports.world import rank_from_environment
from grace_tf.transports.world import world as group
from grace_tf.transports.world.current_workers import between_processes, refuse_half_a_reduction
from grace_tf.transports.world.rank_from_environment import first_host

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "started.py"
NAMES = ("TF_CONFIG", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "HOROVOD_SIZE")
PREFIXES = ("SLURM_", "OMPI_", "PMI_", "PMIX_")

SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "gpu[07-09,12]",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node3", "MASTER_PORT": "29500"}


def bare():
    """The environment without what a scheduler may have put there."""
    names = {*NAMES, *(name for pair in rank_from_environment._RANKS.values() for name in pair)}
    return {k: v for k, v in os.environ.items() if k not in names and not k.startswith(PREFIXES)}


@pytest.fixture
def surroundings(monkeypatch):
    def put(*variables):
        patch.update({k: v for given in variables for k, v in given.items()})
        return rank_from_environment.launch()

    monkeypatch.setattr(group, "_current", None)
    with mock.patch.dict(os.environ, bare(), clear=True):
        patch = os.environ
        yield put


def test_what_each_scheduler_tells(surroundings):
    assert surroundings({}) is None and group.expected_size() == 1
    found = surroundings(SRUN)
    assert (found.by, found.rank, found.size) == ("srun", 5, 8)
    host, _, port = found.master.partition(":")
    assert host == "gpu07" and int(port) in rank_from_environment._PORTS
    assert group.expected_size() == 8
    # Another step has another port.
    assert surroundings({"SLURM_STEP_ID": "1"}).master != found.master
    assert surroundings({"MASTER_ADDR": "fe80::1", "MASTER_PORT": "77"}).master == "[fe80::1]:77"


def test_a_batch_script_without_srun_runs_alone(surroundings):
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "gpu[07-09]"}
    assert surroundings(batch) is None
    assert grace_tf.init().size == 1


def test_what_is_missing_is_told(surroundings):
    assert surroundings(MPIRUN).master is None
    sentence = (
        "^This is worker 1 of 2 by mpirun, but where worker 0 is cannot be told: MASTER_ADDR and "
        "MASTER_PORT are not set. Call grace_tf.init.master='host:port'.*or init.size=1"
    )
    with pytest.raises(RuntimeError, match=sentence):
        grace_tf.init()
    assert "only one is set" in surroundings({"MASTER_ADDR": "a"}).why
    both = {"MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x"}
    assert surroundings(both).why == "torchrun listens at MASTER_PORT itself"


@pytest.mark.parametrize("given", [{"RANK": "0", "WORLD_SIZE": "-3"}, {"WORLD_SIZE": "-3"}])
def test_a_size_that_is_no_number_is_refused(surroundings, given):
    with pytest.raises(ValueError, match="^WORLD_SIZE is a number of 0 or more, not '-3': correct"):
        surroundings(given)
    with pytest.raises(ValueError, match="WORLD_SIZE is a number"):
        grace_tf.init()
    with pytest.raises(ValueError, match="WORLD_SIZE is a number"):
        between_processes()


@pytest.mark.parametrize("port", ["abc", "0", "70000", "tcp://10.0.0.1:80"])
def test_a_master_port_that_is_no_port_is_told(surroundings, port):
    surroundings(BY_HAND, {"MASTER_PORT": port})
    sentence = f"cannot be told: MASTER_PORT is a number from 1 to 65535, not '{port}'"
    with pytest.raises(RuntimeError, match=sentence):
        grace_tf.init()


def test_mpirun_on_one_host_needs_nothing_else(surroundings):
    own = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_MCA_ess_base_jobid": "3301"}
    assert surroundings(MPIRUN, own).master.startswith("127.0.0.1:")
    assert surroundings({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}).master is None


def test_of_several_the_innermost_counts(surroundings):
    found = surroundings(SRUN, MPIRUN)  # mpirun starts its processes by srun
    assert (found.by, found.rank, found.size) == ("mpirun", 1, 2)
    assert surroundings(BY_HAND, {"WORLD_SIZE": "2"}).by == "RANK and WORLD_SIZE"
    with pytest.raises(ValueError, match="worker 1 of 4, mpirun says 1 of 2: unset RANK"):
        surroundings({"WORLD_SIZE": "4"})
    with pytest.raises(ValueError, match="worker 4 of 4"):
        surroundings({"RANK": "4"})


def test_srun_with_a_plugin_for_pmi_is_srun(surroundings):
    found = surroundings(SRUN, {"PMI_RANK": "5", "PMI_SIZE": "8"})
    assert (found.by, found.rank, found.size) == ("srun", 5, 8)
    assert found.master.startswith("gpu07:") and found.job == "4711.0"
    assert surroundings({"PMI_RANK": "1", "PMI_SIZE": "2"}).by == "mpirun (PMI)"


def test_a_size_without_a_rank_tells_nothing(surroundings):
    assert surroundings({"WORLD_SIZE": "4"}) is None
    assert group.expected_size() == 1 and grace_tf.init().size == 1


def test_a_master_without_a_rank_is_refused(surroundings):
    with pytest.raises(ValueError, match="Nothing tells this process its rank.*rank=…, size=…"):
        grace_tf.init(master="node3:29500")
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    surroundings({"TF_CONFIG": json.dumps(cluster)})
    with pytest.raises(ValueError, match="TF_CONFIG names all workers already"):
        grace_tf.init(master="node3:29500")


def test_a_process_may_say_that_it_is_alone(surroundings):
    surroundings(SRUN)
    with pytest.raises(RuntimeError, match="one of 8 workers .by srun., .*grace_tf.init.size=1"):
        between_processes()
    with pytest.raises(RuntimeError, match="to be 8 workers .by srun.*MultiWorkerMirroredStrategy"):
        grace_tf.rank()
    with pytest.raises(RuntimeError, match="within its process, one of several .by srun."):
        refuse_half_a_reduction(replicas.mirrored(2))
    assert grace_tf.init(size=1).size == grace_tf.size() == 1
    refuse_half_a_reduction(replicas.mirrored(2))
    assert between_processes().size == 1


def test_tf_config_comes_first(surroundings):
    surroundings(BY_HAND)
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    assert rank_from_environment.of_tf_config() == (0, ("a:1", "b:1"))
    with mock.patch.object(group, "_make") as make:
        grace_tf.init()
    assert make.call_args.args[:3] == (("a:1", "b:1"), 0, 120.0)
    assert make.call_count == 1


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[07-09,12],login", "gpu07"),
        ("node1", "node1"),
        ("a,b[1-2]", "a"),
        ("r[3,5]c-ib", "r3c-ib"),
    ],
)
def test_the_first_host_of_a_list(nodes, first):
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"rank": 1}, "or neither, not rank"),
        ({"size": 2, "master": "a:1"}, "or neither, not master, size"),
        ({"rank": 0, "size": 2}, "or neither, not rank, size"),
        ({"workers": ["a:1"], "rank": 0, "master": "a:1"}, "or neither"),
        ({"master": "node3"}, "master is worker 0's host:port, not 'node3'"),
        ({"master": "29500"}, "master is worker 0's host:port, not '29500'"),
        ({"master": "node3:295000"}, "master is worker 0's host:port, not 'node3:295000'"),
        ({"size": 2}, "or size=1; or neither, not size"),
        ({"rank": 2, "size": 2, "master": "a:1"}, "There is no worker 2 among 2"),
    ],
)
def test_wrong_arguments(surroundings, keywords, words):
    with pytest.raises(ValueError, match=words):
        grace_tf.init(**keywords)


def started(environments, *arguments, start=WARM.start):
    """(exit code, its JSON) of each process, started together."""
    words = [sys.executable, "-u", str(PROGRAM)]
    processes = [
        start([*words, *(each.format(rank) for each in arguments)], {**bare(), **common(), **own})
        for rank, own in enumerate(environments)
    ]
    streams = [stream for process in processes for stream in (process.stdout, process.stderr)]
    with futures.ThreadPoolExecutor(len(streams)) as pool:
        try:
            said = [read.result(180).decode() for read in [pool.submit(s.read) for s in streams]]
        except BaseException:
            for process in processes:
                os.kill(process.pid, signal.SIGKILL)
            raise
    codes = [process.wait() for process in processes]
    assert all(out.strip() for out in said[::2]), said
    return codes, [json.loads(out.strip().splitlines()[-1]) for out in said[::2]]


def cold(words, env):
    """A process that imports TensorFlow itself."""
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def check(codes, answers, hosts):
    size = len(answers)
    assert codes == [0] * size, answers
    for rank, answer in enumerate(answers):
        told = answer.pop("told")
        wanted = {"rank": rank, "size": size, "local": rank, "again": True, "hosts": hosts}
        assert answer == {**wanted, "sum": size * (size + 1) / 2}
        assert told.startswith(f"This process already is worker {rank} of {size}")


def test_three_processes_by_rank_and_world_size():
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free())}
    check(*started([{**place, "RANK": str(rank)} for rank in range(3)]), ["localhost"])


def test_two_processes_by_srun():
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": socket.gethostname()}
    step.update(SLURM_JOB_ID=str(free()), SLURM_STEP_ID="3")
    environments = [{**step, "SLURM_PROCID": str(rank)} for rank in range(2)]
    check(*started(environments), [socket.gethostname()])


def test_two_processes_by_mpirun_and_an_address():
    world = {"OMPI_COMM_WORLD_SIZE": "2"}
    environments = [{**world, "OMPI_COMM_WORLD_RANK": str(rank)} for rank in range(2)]
    check(*started(environments, f"127.0.0.1:{free()}"), ["127.0.0.1"])


def test_two_processes_by_arguments_alone():
    check(*started([{}, {}], "{}", "2", f"localhost:{free()}", start=cold), ["localhost"])
