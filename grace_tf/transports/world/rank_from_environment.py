"""Reads from environment variables the rank of this process, and the addresses of all workers.

It returns the addresses of all workers, from TF_CONFIG, or a `Launch` where a scheduler has started
this process.  Where several schedulers have set variables, the innermost counts:

    RANK, WORLD_SIZE                                 set by hand, by Kubeflow's PyTorchJob, by
                                                     torchrun, which keeps MASTER_PORT for itself
    OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE       mpirun of Open MPI
    PMI_RANK, PMI_SIZE                               mpirun of MPICH and Intel MPI
    SLURM_PROCID, SLURM_STEP_NUM_TASKS               srun; in a batch script without srun there are
                                                     no steps, so it runs alone

MASTER_ADDR and MASTER_PORT say where worker 0 listens.  Without them the first host of an srun
step, or the only host of mpirun, is known, and the port follows from the number of the job.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zlib
from collections.abc import Sequence

_PORTS = range(20_000, 32_000)  # below the ports that systems give out by themselves
_RANKS = {
    "RANK and WORLD_SIZE": ("RANK", "WORLD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpirun (PMI)": ("PMI_RANK", "PMI_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}


@dataclasses.dataclass(frozen=True)
class Launch:
    """According to `by` this is worker `rank` of `size`; worker 0 listens at `master`, host:port.

    master: None where it is unknown; `why` says what is missing.  job: its name, if it has one.
    """

    by: str
    rank: int
    size: int
    master: str | None = None
    why: str = ""
    job: str = ""


def launch() -> Launch | None:
    """This process as its scheduler describes it; None without a scheduler.

    Raises ValueError where RANK and WORLD_SIZE contradict another scheduler, and for a rank that is
    not below the size.
    """
    found = [Launch(by, *pair) for by, names in _RANKS.items() if (pair := _pair(*names))]
    if not found:
        return None
    first = found[0]
    if not first.rank < first.size:
        raise ValueError(f"{first.by} say that this is worker {first.rank} of {first.size}.")
    # Under SLURM, mpirun uses srun itself, so that workers also see numbers of srun, not theirs.
    others = [t for t in found[1:2] if (t.rank, t.size) != (first.rank, first.size)]
    if first.by == "RANK and WORLD_SIZE" and others:
        raise ValueError(
            f"RANK and WORLD_SIZE say that this is worker {first.rank} of {first.size}, "
            f"{others[0].by} says {others[0].rank} of {others[0].size}: unset RANK and WORLD_SIZE, "
            "or tell grace_tf.init() rank, size and master."
        )
    if first.by == "mpirun (PMI)" and found[-1].by == "srun" and not others:
        first = found[-1]  # whose plugin for PMI sets these variables too
    first = dataclasses.replace(first, job=_job(first.by))
    master, why = _master(first)
    return dataclasses.replace(first, master=master, why=why)


def by() -> str:
    """The source that names several workers, as " (by srun)"; "" without one."""
    found = launch()
    return f" (by {found.by})" if found is not None and found.size > 1 else ""


def sizes() -> list[int]:
    """The numbers of workers that launchers have written into the environment."""
    found = launch()
    names = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE")
    counts = [n for name in names if (n := _number(name)) is not None]
    return counts if found is None else [*counts, found.size]


def _master(first: Launch) -> tuple[str | None, str]:
    host, port = (os.environ.get(name, "").strip() for name in ("MASTER_ADDR", "MASTER_PORT"))
    if port and not is_port(port):
        return None, f"MASTER_PORT is a number from 1 to {2**16 - 1}, not {port!r}"
    if host and port:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            return None, "torchrun listens at MASTER_PORT itself"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}", ""
    if host or port:
        return None, "of MASTER_ADDR and MASTER_PORT only one is set"
    nodes = os.environ.get("SLURM_STEP_NODELIST", "")
    if first.by == "srun" and nodes and first.job:
        return f"{first_host(nodes)}:{_port(first.job)}", ""
    on_one_host = _number("OMPI_COMM_WORLD_LOCAL_SIZE") == first.size
    if first.by == "mpirun" and first.job and on_one_host:
        return f"127.0.0.1:{_port(first.job)}", ""
    return None, "MASTER_ADDR and MASTER_PORT are not set"


def _job(by: str) -> str:
    """The name of the job: the same on all its workers, and different for every other job."""
    if by == "srun":
        ids = [os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
        return ".".join(ids) if all(ids) else ""
    if by == "mpirun":
        return os.environ.get("PMIX_NAMESPACE") or os.environ.get("OMPI_MCA_ess_base_jobid", "")
    return ""


def first_host(nodes: str) -> str:
    """The first host of a list as SLURM writes it: gpu[07-09,12],login gives gpu07."""
    pieces = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    if not pieces:
        raise ValueError(f"SLURM_STEP_NODELIST is no list of hosts: {nodes!r}.")
    return "".join(piece or "" for piece in pieces.groups())


def _port(job: str) -> int:
    return _PORTS[zlib.crc32(job.encode()) % len(_PORTS)]


def _pair(rank: str, size: str) -> tuple[int, int] | None:
    workers = _number(size)
    place = None if workers is None else _number(rank)
    return None if place is None else (place, workers)


def _number(name: str) -> int | None:
    """The number in this variable; None without it.  Raises ValueError for anything else."""
    text = os.environ.get(name, "").strip()
    if text and not text.isdecimal():
        raise ValueError(f"{name} is a number of 0 or more, not {text!r}: correct or unset it.")
    return int(text) if text else None


def is_port(text: str) -> bool:
    """Whether this is the number of a TCP port."""
    return text.isdecimal() and 0 < int(text) < 2**16


def checked(workers: Sequence[str], rank: int) -> tuple[tuple[str, ...], int]:
    """The addresses and the rank; raises ValueError where they are impossible."""
    if isinstance(workers, str):
        meant = [address.strip() for address in workers.split(",")]
        raise ValueError(f"workers is a list of addresses, not a string: give {meant}.")
    addresses = tuple(workers)
    for address in addresses:
        if not isinstance(address, str) or not is_port(address.rpartition(":")[2]):
            raise ValueError(f"A worker's address is host:port, not {address!r}.")
    if len(set(addresses)) != len(addresses):
        raise ValueError(f"Two workers have the same address among {list(addresses)}.")
    if not 0 <= rank < len(addresses):
        raise ValueError(f"There is no worker {rank} among {len(addresses)} addresses.")
    return addresses, int(rank)


def cluster() -> tuple[list[str], dict, dict]:
    """TF_CONFIG as (addresses, chief first; cluster; task); ([], {}, {}) without it.

    Raises ValueError where it cannot be read, and for a task beyond the cluster.
    """
    text = os.environ.get("TF_CONFIG", "").strip() or "{}"
    try:
        config = json.loads(text)
        jobs, task = config.get("cluster") or {}, config.get("task") or {}
        addresses = [*jobs.get("chief", ()), *jobs.get("worker", ())]
        kind = task.get("type", "worker")
        members = len(jobs.get(kind, ()))
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"TF_CONFIG is not a cluster in JSON ({error}): {text[:200]}") from error
    # An evaluator is no part of the cluster, and a task without any cluster is alone.
    if addresses and "index" in task and (members or kind in ("chief", "worker")):
        if not 0 <= _index(task) < members:
            raise ValueError(
                f"There is no {kind} {task['index']} among {members} in TF_CONFIG's cluster: the "
                "index of a task counts from 0 within its type."
            )
    return addresses, jobs, task


def compared(addresses: Sequence[str]) -> tuple[str, ...]:
    """What all workers must have alike, where this one uses `addresses`.

    It is these, except where the launcher emulates links by a relay: then each worker reaches the
    others at ports of its own, and TF_CONFIG has the true addresses beside its cluster.
    """
    try:
        config = json.loads(os.environ.get("TF_CONFIG", "").strip() or "{}")
        true = config["grace_tf"]["addresses"]
        if list(addresses) == config["cluster"]["worker"]:
            return checked(true, config["task"]["index"])[0]
    except (KeyError, TypeError, ValueError):
        pass  # not of the launcher
    return tuple(addresses)


def _index(task: dict) -> int:
    try:
        return int(task["index"])
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"TF_CONFIG's task has no index: {task}.") from error


def of_tf_config() -> tuple[int, tuple[str, ...]]:
    """(rank, addresses of all) from TF_CONFIG; (0, ()) where it names no other worker."""
    addresses, jobs, task = cluster()
    kind = task.get("type", "worker")
    if "ps" in jobs or kind not in ("chief", "worker"):
        raise ValueError(
            "A process group has chief and worker tasks only, but TF_CONFIG speaks of "
            f"{'ps' if 'ps' in jobs else kind!r}: parameter servers and evaluators "
            "have no gradient to share."
        )
    if len(addresses) < 2:
        return 0, ()
    index = _index(task) + (len(jobs.get("chief", ())) if kind == "worker" else 0)
    return checked(addresses, index)[::-1]
