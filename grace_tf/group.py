"""The process group of this process: `init`, who am I, `barrier`, `broadcast`, `shard`.

    import grace_tf, tensorflow as tf
    grace_tf.init()                                  # before any TensorFlow operation
    data = grace_tf.shard(dataset)                   # this worker's share
    ...
    grace_tf.broadcast(model.variables)              # worker 0's weights everywhere

Importing this module starts nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.sharding import share
from grace_tf.transports import horovod
from grace_tf.transports.group import Group
from grace_tf.transports.process_group import ProcessGroup, runtime_started
from grace_tf.transports.process_group import local_rank as _local_rank

TIMEOUT = 120.0
_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE")

_current: ProcessGroup | None = None


def init(
    timeout: float | None = None, workers: Sequence[str] | None = None, rank: int | None = None
) -> Group:
    """Joins the workers' process group and returns it; returns when all workers have come.

    It must come before any TensorFlow operation.  Where workers share a host, each sees one GPU of
    its own.  Called again with the same or without arguments it returns the same group.

    After `hvd.init()` Horovod's workers are the group.  Everything else here finds them without
    this call, which then only says how long workers wait for each other.

    Args:
      timeout: seconds that this call, and every collective later on, waits for the others; 120
        unless given.
      workers: the addresses `host:port` of all, in one order on all of them.  Without `workers` and
        `rank` TF_CONFIG says both; without TF_CONFIG the group is this process alone.
      rank: the place of this process among them, from 0.
    Returns: the group.
    Raises: ValueError for wrong arguments or a wrong TF_CONFIG; RuntimeError if TensorFlow has
      already run an operation, if a group with other arguments exists, or if a worker does not come
      in time.
    """
    global _current
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is a positive number of seconds, not {timeout!r}.")
    if (workers is None) != (rank is None):
        raise ValueError("init() takes both workers=[…addresses] and rank=…, or neither.")
    if horovod.running() is not None:
        return _of_horovod(timeout, workers)
    if workers is not None:
        addresses, rank = _checked(workers, rank)
    elif _current is not None:
        addresses, rank = _current.addresses, _current.rank
    else:
        addresses, rank = _from_surroundings()
    if _current is None:
        _current = _make(addresses, rank, TIMEOUT if timeout is None else float(timeout))
    elif (addresses, rank, timeout or _current.timeout) != (
        _current.addresses,
        _current.rank,
        _current.timeout,
    ):
        raise RuntimeError(
            f"This process already is worker {_current.rank} of {_current.size} with timeout="
            f"{_current.timeout:g}; a process joins one group, once."
        )
    return _current


def _of_horovod(timeout: float | None, workers: Sequence[str] | None) -> Group:
    running = current()
    if workers is not None:
        raise RuntimeError(
            f"Horovod runs {running.size} workers already: call init() without addresses."
        )
    running.begin(timeout)
    return running


def current() -> Group | None:
    """The group that `init` made or that of Horovod's workers, or None where there is neither.

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
    Raises: RuntimeError where the surroundings speak of several workers and `init` was not called.
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
    """How many workers the surroundings speak of: TF_CONFIG, MPI's and Horovod's launchers."""
    sizes = [os.environ.get(name, "") for name in _LAUNCHERS]
    return max([len(_cluster()[0]), 1, *(int(text) for text in sizes if text.isdigit())])


def barrier() -> None:
    """Returns when all workers have called it; at once alone.

    Raises: RuntimeError if one is gone, has called something else, or does not come within the
      seconds that `init` was told; and as `rank`.
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
            f"There are to be {expected} workers, but this process has joined no group: call "
            f"{_first_call()} first, before any TensorFlow operation.{_under_a_strategy()}"
        )
    return ProcessGroup(["localhost"], 0)


def _first_call() -> str:
    return "horovod.tensorflow's init()" if "HOROVOD_SIZE" in os.environ else "grace_tf.init()"


def _under_a_strategy() -> str:
    if len(_cluster()[0]) < 2:
        return ""
    return (
        " Under MultiWorkerMirroredStrategy call neither init() nor shard(): TensorFlow deals out "
        "the data itself and batch_size is that of all workers together; the strategy knows the "
        "rank (cluster_resolver.task_id) and the size (num_replicas_in_sync)."
    )


def _make(addresses: tuple[str, ...], rank: int, timeout: float) -> ProcessGroup:
    if len(addresses) > 1:
        if runtime_started():
            raise RuntimeError(
                "init() must come before the first TensorFlow operation, but TensorFlow's runtime "
                "has already started: move grace_tf.init() to the top of the program."
            )
        gpus = tf.config.get_visible_devices("GPU")
        if gpus:
            own = gpus[_local_rank(addresses, rank) % len(gpus)]
            tf.config.set_visible_devices([own], "GPU")
    return ProcessGroup(addresses, rank, timeout)


def _checked(workers: Sequence[str], rank: int) -> tuple[tuple[str, ...], int]:
    addresses = (workers,) if isinstance(workers, str) else tuple(workers)
    for address in addresses:
        if not isinstance(address, str) or not address.rpartition(":")[2].isdigit():
            raise ValueError(f"A worker's address is host:port, not {address!r}.")
    if len(set(addresses)) != len(addresses):
        raise ValueError(f"Two workers have the same address among {list(addresses)}.")
    if not 0 <= rank < len(addresses):
        raise ValueError(f"There is no worker {rank} among {len(addresses)} addresses.")
    return addresses, int(rank)


def _cluster() -> tuple[list[str], dict, dict]:
    """TF_CONFIG as (addresses, chief first; cluster; task); ([], {}, {}) without it."""
    text = os.environ.get("TF_CONFIG", "").strip() or "{}"
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        return [*cluster.get("chief", ()), *cluster.get("worker", ())], cluster, task
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"TF_CONFIG is not a cluster in JSON ({error}): {text[:200]}") from error


def _from_surroundings() -> tuple[tuple[str, ...], int]:
    addresses, cluster, task = _cluster()
    kind = task.get("type", "worker")
    if "ps" in cluster or kind not in ("chief", "worker"):
        raise ValueError(
            "A process group has chief and worker tasks only, but TF_CONFIG speaks of "
            f"{'ps' if 'ps' in cluster else kind!r}: parameter servers and evaluators "
            "have no gradient to share."
        )
    if len(addresses) < 2 and expected_size() > 1:
        raise RuntimeError(
            f"There are to be {expected_size()} workers, but nothing tells this process where they "
            "are: call horovod.tensorflow's init() before grace_tf.init(), or set TF_CONFIG."
        )
    if len(addresses) < 2:
        return tuple(addresses) or ("localhost",), 0
    try:
        index = int(task["index"]) + (len(cluster.get("chief", ())) if kind == "worker" else 0)
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"TF_CONFIG's task has no index: {task}.") from error
    return _checked(addresses, index)
