"""The group of this process: `init`, `rank`, `size`, `barrier`, `broadcast`, `shard`.

    import grace_tf, tensorflow as tf
    grace_tf.init()                                  # before any TensorFlow operation
    data = grace_tf.shard(dataset)                   # this worker's share
    ...
    grace_tf.broadcast(model.variables)              # worker 0's weights everywhere

Importing this module starts nothing.
"""

from __future__ import annotations

import numbers
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.transports.group import Group
from grace_tf.transports.horovod import group as horovod
from grace_tf.transports.lifeline.secret import of_job
from grace_tf.transports.process_group import ProcessGroup, runtime_started
from grace_tf.transports.process_group import local_rank as _local_rank
from grace_tf.transports.reception import LONGEST_WAIT
from grace_tf.transports.world import rank_from_environment
from grace_tf.transports.world.data_shards import share
from grace_tf.transports.world.meeting import addresses_of_all

TIMEOUT = 120.0

_current: ProcessGroup | None = None


def init(
    timeout: float | None = None,
    workers: Sequence[str] | None = None,
    rank: int | None = None,
    size: int | None = None,
    master: str | None = None,
    process_set: Any = None,
    secret: str | None = None,
) -> Group:
    """Joins the workers' process group and returns it; returns when all workers have come.

    It must come before any TensorFlow operation.  Where workers share a host, each sees a GPU of
    its own.  A second call with the same arguments, or without, returns the same group.

    After `hvd.init()` Horovod's workers are the group.  The other functions here find them without
    this call; it only sets the timeout and the process set.  Horovod ends in all its processes at
    once, so at its end a process waits for the processes of other sets.

    Args:
      timeout: seconds that this call, and every collective later on, waits for the others; 120
        unless given.  When they have met, TensorFlow has at least ten seconds to connect them.  The
        end of a tf.data iterator may hold a worker for up to 60 s, see docs/workers.md.
      workers: the addresses `host:port` of all, in one order on all of them.
      rank: the place of this process among them, from 0.
      size, master: instead of all addresses, the number of workers and the `host:port` where worker
        0 waits for the others.  `master` alone completes the variables of a scheduler; `size=1`
        alone means that there are no others, whatever the environment says.
        Without arguments TF_CONFIG or a scheduler gives all of it, see rank_from_environment.py;
        without both the group is this process alone.
      process_set: the `hvd.ProcessSet` whose processes train together.  `rank()` and `size()` count
        within the set; `local_rank()` counts all of Horovod's processes on the host.
      secret: a text that only the workers of this job know, such as a file of the job gives it;
        others cannot join, nor keep them from meeting by words of their own.  The launcher makes
        one for each run and passes it on, and mpirun of Open MPI 4 has one.
    Returns: the group.
    Raises: ValueError for wrong arguments or a wrong TF_CONFIG; RuntimeError if TensorFlow has
      already run an operation, if a group with other arguments exists, or if a worker does not come
      in time.
    """
    _check_arguments(timeout, workers, rank, size, master, process_set)
    if not isinstance(secret, (str, type(None))):
        raise TypeError(f"secret is a text, not {type(secret).__name__}.")
    if process_set is not None or horovod.running() is not None:
        return _of_horovod(timeout, workers or master, process_set, secret)
    return _join(timeout, workers, rank, size, master, secret)


def _join(timeout, workers, rank, size, master, secret) -> ProcessGroup:
    global _current
    seconds = timeout or (_current.timeout if _current else TIMEOUT)
    deadline = time.monotonic() + seconds
    secret = of_job(secret)
    if workers is not None:
        addresses, rank = rank_from_environment.checked(workers, rank)
    elif _current is not None:
        same = size is None or (rank or 0, size) == (_current.rank, _current.size)
        addresses, rank = _current.addresses if same else (), _current.rank
    else:
        addresses, rank = _from_surroundings(rank, size, master, seconds, deadline, secret)
    _current = _make(addresses, rank, float(seconds), deadline, secret)
    return _current


def _check_arguments(timeout, workers, rank, size, master, process_set) -> None:
    number = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
    if timeout is not None and not (number and 0 < timeout < LONGEST_WAIT):
        raise ValueError(f"timeout is a positive number of seconds, not {timeout!r}.")
    given = {"workers": workers, "rank": rank, "size": size, "master": master}
    names = {name for name, value in given.items() if value is not None}
    if process_set is not None and names:
        raise ValueError("init(process_set=…) takes no other argument than timeout=….")
    sets = [set(), {"workers", "rank"}, {"rank", "size", "master"}, {"master"}]
    if names not in sets and (names, size) != ({"size"}, 1):
        raise ValueError(
            "init() takes both workers=[…addresses] and rank=…; or rank=…, size=… and "
            "master='host:port'; or master alone; or size=1; or neither, not "
            f"{', '.join(sorted(names))}."
        )
    host, _, port = (master or "host:1").rpartition(":")
    if not host or not rank_from_environment.is_port(port):
        raise ValueError(f"master is worker 0's host:port, not {master!r}.")
    if rank is not None and size is not None and not 0 <= rank < size:
        raise ValueError(f"There is no worker {rank} among {size}.")


def _of_horovod(
    timeout: float | None, addresses: Any, process_set: Any, secret: str | None
) -> Group:
    if process_set is not None:
        horovod.join(process_set)
    running = current()
    if addresses is not None:
        raise RuntimeError(
            f"Horovod runs {running.size} workers already: call init() without addresses."
        )
    running.begin(timeout, secret)
    return running


def current() -> Group | None:
    """The group that `init` made or the group of Horovod's workers; None without both.

    Raises RuntimeError where there are both, and as `horovod.running`.
    """
    running = horovod.running()
    if running is None or _current is None or _current.size == 1:
        return running or _current
    raise RuntimeError(
        f"grace_tf.init() has joined {_current.size} workers, and Horovod runs {running.size}: use "
        "one of them. Under Horovod call hvd.init() before grace_tf.init()."
    )


def rank() -> int:
    """The place of this process among the workers.

    Returns: 0 to `size() - 1`; 0 alone.
    Raises: RuntimeError where the environment names several workers and `init` was not called.
    """
    return _group().rank


def local_rank() -> int:
    """The place of this process among the workers of its host.

    Returns: 0 to the number of workers on this host less one; 0 alone.
    Raises: RuntimeError as `rank`.
    """
    return _group().local_rank


def size() -> int:
    """The number of workers.

    Returns: 1 alone.
    Raises: RuntimeError as `rank`.
    """
    return _group().size


def expected_size() -> int:
    """The number of workers by the environment: TF_CONFIG, a scheduler, Horovod's launcher."""
    return max([len(rank_from_environment.cluster()[0]), 1, *rank_from_environment.sizes()])


def barrier() -> None:
    """Returns when all workers have called it; at once alone.

    Raises: RuntimeError if one is gone, has made another call, or does not come within the timeout
      of `init`; and as `rank`.
    """
    _group().barrier()


def broadcast(variables: Iterable, root: int = 0) -> None:
    """Assigns worker `root`'s values to the variables of all workers, bit for bit.

    It runs eagerly; the values travel in pieces of 16 MiB.

    Args:
      variables: TensorFlow or Keras variables (`model.variables`, `optimizer.variables`) of any
        dtype but string, with the same dtypes and shapes in the same order on every worker.
      root: the rank of the worker whose values count, the same on every worker.
    Raises: TypeError for what is no variable or has no bytes; ValueError for an empty list and for
      a root that does not exist; RuntimeError, on every worker, if the variables or roots differ or
      a worker is gone, and as `rank`.
    """
    _group().broadcast(variables, root)


def shard(dataset: Any, *, uneven: str = "refuse") -> Any:
    """This worker's elements of the dataset, w, w + N, …: equally many on every worker.

    Of arrays (NumPy's, tensors, or a tuple or dict of them, with equally many rows) it gives the
    rows w, w + N, … .  The remainder is dropped, since collectives need all workers at every step.
    Every worker must read the same data in the same order: shard first, then shuffle, or shuffle
    with a seed.  Each worker reads all of it and keeps one element in N.  Alone, the data itself.

    A dataset of unknown cardinality is refused, or with `uneven="drop"` dealt out in rounds of N
    elements: where it ends within a round, that round is dropped, on all workers alike, since all
    read the same.

    Args:
      dataset: a `tf.data.Dataset`, or arrays as above.
      uneven: "refuse" or "drop": what happens to a dataset of unknown cardinality.
    Returns: a dataset, or arrays in the same tuple or dict.
    Raises: ValueError if the cardinality is unknown and not to be dropped, or smaller than the
      number of workers, or the arrays' rows differ; TypeError for what has no rows; RuntimeError as
      `rank`.
    """
    if uneven not in ("refuse", "drop"):
        raise ValueError(f'uneven is "refuse" or "drop", not {uneven!r}.')
    group = _group()
    return share(dataset, group.rank, group.size, uneven == "drop")


def _group() -> Group:
    joined = current()
    if joined is not None:
        return joined
    expected = expected_size()
    if expected > 1:
        raise RuntimeError(
            f"There are to be {expected} workers{rank_from_environment.by()}, but this process has "
            f"joined no group: call {_first_call()} first, before any TensorFlow operation."
            f"{_under_a_strategy()}"
        )
    return ProcessGroup(["localhost"], 0)


def _first_call() -> str:
    return "horovod.tensorflow's init()" if "HOROVOD_SIZE" in os.environ else "grace_tf.init()"


def _under_a_strategy() -> str:
    if len(rank_from_environment.cluster()[0]) < 2 and not rank_from_environment.by():
        return ""
    return (
        " Under MultiWorkerMirroredStrategy call neither init() nor shard(): TensorFlow deals out "
        "the data itself and batch_size is that of all workers together; the strategy knows the "
        "rank (cluster_resolver.task_id) and the size (num_replicas_in_sync)."
    )


def _refuse_late() -> None:
    if runtime_started():
        raise RuntimeError(
            "init() must come before the first TensorFlow operation, but TensorFlow's runtime "
            "has already started: move grace_tf.init() to the top of the program."
        )


def _make(
    addresses: tuple[str, ...], rank: int, timeout: float, deadline: float, secret: str
) -> ProcessGroup:
    if _current is not None:
        if (addresses, rank, timeout) != (_current.addresses, _current.rank, _current.timeout):
            raise RuntimeError(
                f"This process already is worker {_current.rank} of {_current.size} with timeout="
                f"{_current.timeout:g}; a process joins one group, once."
            )
        return _current
    if len(addresses) > 1:
        _refuse_late()
        gpus = tf.config.get_visible_devices("GPU")
        if gpus:
            gpu = gpus[_local_rank(addresses, rank) % len(gpus)]
            tf.config.set_visible_devices([gpu], "GPU")
    alike = rank_from_environment.compared(addresses)
    return ProcessGroup(addresses, rank, timeout, deadline, secret, alike)


def _from_surroundings(
    rank: int | None,
    size: int | None,
    master: str | None,
    timeout: float,
    deadline: float,
    secret: str,
) -> tuple[tuple[str, ...], int]:
    """The addresses of all workers and this one's rank, from the first source that has them."""
    if size == 1:
        return ("localhost",), 0
    found, of_tensorflow = (None, ()) if size else rank_from_environment.of_tf_config()
    if of_tensorflow and master:
        raise ValueError("TF_CONFIG names all workers already: call init() without master.")
    if of_tensorflow:
        return of_tensorflow, found
    launch = (
        rank_from_environment.Launch("init()", rank, size, master)
        if size
        else rank_from_environment.launch()
    )
    if launch is None and master:
        raise ValueError(
            "Nothing tells this process its rank, so master says too little: call "
            f"init(rank=…, size=…, master={master!r})."
        )
    if launch is None and expected_size() > 1:
        raise RuntimeError(
            f"There are to be {expected_size()} workers, but nothing tells this process where they "
            "are: call horovod.tensorflow's init() before grace_tf.init(), or set TF_CONFIG."
        )
    if launch is None or launch.size == 1:
        return ("localhost",), 0
    master = master or launch.master
    if master is None:
        raise RuntimeError(
            f"This is worker {launch.rank} of {launch.size} by {launch.by}, but where worker 0 is "
            f"cannot be told: {launch.why}. Call grace_tf.init(master='host:port') on all workers, "
            "with the host of worker 0 and a free port there; or init(size=1) where this process "
            "is alone."
        )
    _refuse_late()
    addresses = addresses_of_all(
        master, launch.rank, launch.size, timeout, launch.job, deadline, secret
    )
    return rank_from_environment.checked(addresses, launch.rank)
