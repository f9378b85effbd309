"""Horovod's own collectives among the processes of one of its process sets.

A collective takes this process's buffer and a key, and runs Horovod's collective under a name made
of the key.  A `HorovodGroup` is such a transport, and so is each part of it.
"""

from __future__ import annotations

import abc
import zlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from grace_tf.transports import collectives
from grace_tf.transports.base import Tensors
from grace_tf.transports.group import Group
from grace_tf.transports.rows import GathersRows

# The dtypes of `sum` and `max`.  Horovod cannot reduce bfloat16: `_sum_bfloat16` adds it up, and a
# maximum of it travels as float32.
_REDUCED = "float16", "bfloat16", "float32", "float64", "int32", "int64"


class HorovodSet(GathersRows):
    """Carries a step among some of Horovod's processes; a set may have a single process.

    Attributes:
      ranks: Horovod's numbers of these processes, ascending; worker w is process `ranks[w]`.
    """

    ranks: tuple[int, ...]

    def __init__(self, hvd: ModuleType, ranks: Sequence[int], process_set: Any = None) -> None:
        """`process_set` is Horovod's object for these ranks; None for all processes."""
        self._hvd, self.ranks = hvd, tuple(ranks)
        self.size, self.workers = len(self.ranks), (self.ranks.index(hvd.rank()),)
        self._among = {} if process_set is None else {"process_set": process_set}
        self._marks, self._suffix = collectives.Marks(), ""

    def _sum(self, buffers: Tensors, key: int) -> Tensors:
        if buffers[0].dtype == tf.bfloat16 and self.size > 1:
            with tf.device("/CPU:0"):
                return self._sum_bfloat16(buffers, key)
        return [self._reduce(buffers[0], key, self._hvd.Sum, "sum")]

    def _max(self, buffers: Tensors, key: int) -> Tensors:
        return [self._reduce(buffers[0], key, self._hvd.Max, "max")]

    def _gather(self, buffers: Tensors, key: int) -> Tensors:
        if self.size == 1 or buffers[0].shape.num_elements() == 0:
            return [tf.tile(buffers[0][None], [self.size, 1])]
        if self.size == 2:
            return [self._ordered(buffers[0], self._swap(buffers[0], key, "gather"))]

        def gather(row: tf.Tensor) -> tf.Tensor:
            return self._run(self._hvd.allgather, row[None], key, "gather")

        rows = collectives.moved(buffers[0], gather)
        return [tf.ensure_shape(rows, [self.size, buffers[0].shape[0]])]

    def _all_to_all(self, buffers: Tensors, key: int) -> Tensors:
        if self.size == 1 or buffers[0].shape.num_elements() == 0:
            return [tf.identity(buffers[0])]
        if self.size == 2:
            (me,) = self.workers
            theirs = self._swap(buffers[0][1 - me], key, "all_to_all")
            return [self._ordered(buffers[0][me], theirs)]

        def send(rows: tf.Tensor) -> tf.Tensor:
            return self._run(self._hvd.alltoall, rows, key, "all_to_all")

        return [tf.ensure_shape(collectives.moved(buffers[0], send), buffers[0].shape)]

    def _swap(self, buffer: tf.Tensor, key: int, kind: str) -> tf.Tensor:
        """Returns the buffer of the other worker; only for a set of two workers.

        An all-reduce adds up the bytes of both buffers modulo 256.  Each worker subtracts its own
        bytes from the sum, and what is left are the bytes of the other worker.  Between two workers
        an all-reduce sends as many bytes as a gather, but takes less time.  In an all-reduce Gloo
        lets both workers send at the same time.  In a gather one mostly sends after the other.
        """

        def swap(own: tf.Tensor) -> tf.Tensor:
            mine = tf.bitcast(own, tf.uint8)
            both = self._run(self._hvd.allreduce, mine, key, kind, op=self._hvd.Sum)
            return tf.bitcast(both - mine, own.dtype)

        return tf.ensure_shape(collectives.moved(buffer, swap), buffer.shape)

    def _ordered(self, own: tf.Tensor, theirs: tf.Tensor) -> tf.Tensor:
        """Stacks both buffers in the order of the workers: the first row is that of worker 0."""
        with tf.device("/CPU:0"):
            return tf.stack([own, theirs] if self.workers == (0,) else [theirs, own])

    def _sum_bfloat16(self, buffers: Tensors, key: int) -> Tensors:
        """The sum of bfloat16, in float32 and rounded once, for the bytes of an all-reduce.

        Each worker gets one part of everyone's buffer, adds it up, and gives the sum to all.  Two
        workers send each other the whole buffer instead: the same bytes in one collective.
        """
        (length,) = buffers[0].shape
        if self.size == 2:
            return [_sum_of_rows(self._gather(buffers, key)[0])]
        part = -(-length // self.size)
        padded = tf.pad(buffers[0], [[0, self.size * part - length]])
        (rows,) = self._all_to_all([tf.reshape(padded, [self.size, part])], key)
        (sums,) = self._gather([_sum_of_rows(rows)], key)
        return [tf.reshape(sums, [-1])[:length]]

    def _reduce(self, buffer: tf.Tensor, key: int, operation: Any, kind: str) -> tf.Tensor:
        if buffer.dtype.name not in _REDUCED:
            raise TypeError(
                f"{buffer.dtype.name} cannot be reduced; there are {', '.join(_REDUCED)}."
            )
        if self.size == 1 or buffer.shape.num_elements() == 0:
            return tf.identity(buffer)
        with tf.device("/CPU:0"):
            wide = tf.float32 if buffer.dtype == tf.bfloat16 else buffer.dtype
            carried = tf.cast(buffer, wide)
            reduced = self._run(self._hvd.allreduce, carried, key, kind, op=operation)
            return tf.cast(reduced, buffer.dtype)

    def _run(
        self, collective: Callable, buffer: tf.Tensor, key: int, kind: str, **options: Any
    ) -> tf.Tensor:
        collectives.refuse_xla()
        # Names must be equal on all workers, but name scopes may differ, as functions are inlined.
        options.update(name=f"grace_tf.{key}.{kind}{self._suffix}", ignore_name_scope=True)

        def run() -> tf.Tensor:
            return collective(_varying(buffer), **options, **self._among)

        with tf.device("/CPU:0"):
            return self._around(self._marks[key], buffer, run)

    @abc.abstractmethod
    def _around(
        self, mark: tf.Variable, buffer: tf.Tensor, collective: Callable[[], tf.Tensor]
    ) -> tf.Tensor:
        """The result of a collective that takes `buffer`, with a timeout."""


class Part(HorovodSet):
    """The collectives of a group among some of its workers, with names of their own."""

    def __init__(self, whole: HorovodSet, number: int, ranks: Sequence[int], process_set: Any):
        """`number` counts the calls of `Group.part`, the same on all workers of the group."""
        super().__init__(whole._hvd, ranks, process_set)
        self._whole, self._suffix = whole, f".{number}"
        self._marks = collectives.Marks(of_all=False)

    def _around(
        self, mark: tf.Variable, buffer: tf.Tensor, collective: Callable[[], tf.Tensor]
    ) -> tf.Tensor:
        return self._whole._around(mark, buffer, collective)

    def _explain(self, error: Exception) -> str | None:
        return self._whole._explain(error)


def parted(group: Group, ranks: Sequence[int]) -> list[list[int]]:
    """The parts into which the workers of a group divide themselves, each ascending.

    `ranks` is the part of this worker.  Raises ValueError for what is no part, and RuntimeError, on
    every worker, where the parts of all do not fit together.
    """
    ranks = [int(rank) for rank in ranks]
    if (
        group.rank not in ranks
        or ranks != sorted(set(ranks))
        or not set(ranks) <= {*range(group.size)}
    ):
        raise ValueError(
            f"part() takes ascending numbers of workers, 0 to {group.size - 1}, with this worker's "
            f"own, {group.rank}; not {ranks}."
        )
    table = group.handshake([ranks[0], zlib.crc32(repr(ranks).encode())], "part()").tolist()
    parts = [[w for w, (first, _) in enumerate(table) if first == f] for f in range(group.size)]
    for worker, (first, digest) in enumerate(table):
        if zlib.crc32(repr(parts[first]).encode()) != digest:
            raise RuntimeError(
                f"part() must divide the {group.size} workers, but worker {worker} has named "
                f"other workers than those that have named worker {first} as their first."
            )
    return [part for part in parts if part]


def registered(hvd: ModuleType, ranks: Sequence[int], everywhere: bool) -> Any:
    """Horovod's process set of these processes.

    A new one is registered where all of Horovod's processes call this together (`everywhere`).
    Raises RuntimeError where that is not possible.
    """
    missing = f"Horovod has no process set of its processes {list(ranks)}, which a part needs"
    # Horovod has no public list of its process sets, and refuses to add one twice.
    for number, held in hvd.mpi_ops._basics._get_process_set_ids_and_ranks().items():
        if held == list(ranks):
            found = hvd.ProcessSet(held)
            found.process_set_id = number
            return found
    if not everywhere:
        raise RuntimeError(
            f"{missing}, and only all of its processes can add one: give it to "
            "hvd.init(process_sets=[…])."
        )
    try:
        return hvd.add_process_set(list(ranks))
    except ValueError as error:
        if "HOROVOD_DYNAMIC_PROCESS_SETS" not in str(error):
            raise
        raise RuntimeError(
            f'{missing}, and takes no new ones: call hvd.init(process_sets="dynamic").'
        ) from None


def _sum_of_rows(rows: tf.Tensor) -> tf.Tensor:
    """The sum of rows of bfloat16, as bfloat16."""
    return tf.cast(tf.reduce_sum(tf.cast(rows, tf.float32), 0), tf.bfloat16)


def _varying(buffer: tf.Tensor) -> tf.Tensor:
    """The buffer, hidden from TensorFlow's constant folding; nothing is copied.

    Horovod's operations are not stateful, so TensorFlow would compute the result for a constant
    once, while it optimises the graph.  The workers' graphs may differ in what is constant.
    """
    if not tf.inside_function():
        return buffer
    zero = tf.cast(tf.timestamp() < 0, tf.int32)
    return tf.slice(buffer, tf.fill([buffer.shape.rank], zero), buffer.shape)
