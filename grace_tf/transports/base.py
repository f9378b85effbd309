"""What the line asks of a network, and nothing more: collectives over flat buffers."""

from __future__ import annotations

import abc
import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Callable

import tensorflow as tf

PLAN_KEYS = 1 << 20  # plans draw their keys from [PLAN_KEYS, 2**31); others may use those below

Tensors = list[tf.Tensor]  # of each worker of this process
Lanes = list[list[tf.IndexedSlices]]  # of each worker of this process, one a lane
Keys = Callable[[str], int]  # the key of each collective that a method takes, by name

# What `recorded()` takes down in this thread, the innermost last: (transport, its list).
_records: contextvars.ContextVar[tuple] = contextvars.ContextVar("records", default=())


@dataclasses.dataclass(frozen=True)
class CollectiveRecord:
    """One buffer that one worker handed to a collective: what a link should see.

    Where every step hands over another number of elements, a variable holds the last one.
    """

    kind: str
    dtype: str
    elements: int | tf.Variable

    @property
    def nbytes(self) -> int:
        elements = self.elements if isinstance(self.elements, int) else self.elements.numpy()
        return int(elements) * tf.as_dtype(self.dtype).size

    def sent(self, size: int) -> float:
        """Bytes that each of `size` workers sends for this buffer, if the collective is a ring."""
        times = {"sum": 2, "max": 2, "gather": size, "all_to_all": 1}[self.kind]
        return self.nbytes * times * (size - 1) / size


class Transport(abc.ABC):
    """Carries flat buffers between `size` workers, of which `workers` live in this process (graph).

    Every collective takes one rank-1 tensor per worker of this process, in the order of `workers`,
    and returns one result per such worker.  The results are the same bits on every worker.  Shapes
    and dtypes are static and equal on all workers.  It works eagerly and inside tf.function, and
    there also in loops and conditions that all workers enter alike.

    `key` names a collective: a positive 31-bit integer, equal on all workers and on every step.
    What travels under one key always has one kind, dtype and shape.

    Collectives of different keys may be under way together.  What makes that safe:

      * All workers run the same set of collectives in a step, none of them under a condition that
        they have not agreed on.  No worker then waits for one that another never starts.
      * Two collectives that may be under way together have different keys, so none takes another's
        data.  One key used twice in a step runs in the order of the program, alike on all workers.
      * Waiting holds no thread that another collective needs, so the order in which the workers
        start a set of collectives is free: each starts all of them before it waits for the first.

    The engines keep the last rule in different ways.  `ProcessGroup`: TensorFlow starts collectives
    of different keys as their inputs come, each on threads of its own.  `ReplicaContext`:
    TensorFlow itself puts the collectives of a strategy in the order of the program, which is the
    same on all workers.  `Loopback` and `Replicas`: all workers are in one graph, so nothing waits
    for another process.  Eagerly, collectives run one after the other, as the program calls them.

    A subclass sets the attributes and writes `_sum`, `_max`, `_gather`, `_all_to_all`, `_rows` and
    `_messages`.  Each takes the arguments of the public method of its name, and returns what that
    returns; `size` may be 1.  The public methods check the number of buffers and keep the book of
    what was handed over, see `recorded`.  What carries between processes is a `Group`, which has
    more to write.

    Attributes:
      size: the number of all workers.
      workers: the numbers of those in this process; results and random streams are found by them.
      inside: carries between the processes of this worker, where a worker is a host with several,
        see hosts.py; None where each process is a worker or several.
    """

    size: int
    workers: tuple[int, ...]
    inside: Transport | None = None

    @property
    def gradients(self) -> int:
        """How many gradients a step takes the mean of: one a worker, of hosts one a process."""
        return self.size

    def sum(self, buffers: Sequence[tf.Tensor], key: int) -> Tensors:
        """The elementwise sum over all workers.

        Args:
          buffers: `[n]` of each worker of this process; float16, bfloat16, float32, float64, int32
            or int64.
          key: the name of this collective.

        Returns:
          `[n]` for each worker of this process, all the same bits.  The order of additions is the
          engine's own, but one for all workers.

        Raises ValueError for another number of buffers.
        """
        self._note("sum", buffers)
        return self._sum(list(buffers), key)

    def max(self, buffers: Sequence[tf.Tensor], key: int) -> Tensors:
        """The elementwise maximum over all workers; arguments, results and errors as of `sum`."""
        self._note("max", buffers)
        return self._max(list(buffers), key)

    def gather(self, buffers: Sequence[tf.Tensor], key: int) -> Tensors:
        """Everyone's buffer, bit for bit.

        Args:
          buffers: `[n]` of each worker of this process, of a dtype of two, four or eight bytes.
          key: the name of this collective.

        Returns:
          `[size, n]` for each worker of this process: row w is worker w's buffer.

        Raises ValueError for another number of buffers.
        """
        self._note("gather", buffers)
        return self._gather(list(buffers), key)

    def all_to_all(self, buffers: Sequence[tf.Tensor], key: int) -> Tensors:
        """One row from every worker to every worker, bit for bit.

        Args:
          buffers: `[size, n]` of each worker of this process; row j is for worker j.
          key: the name of this collective.

        Returns:
          `[size, n]` for each worker of this process: row w is what worker w had for it.

        Raises ValueError for another number of buffers or rows.
        """
        self._note("all_to_all", buffers)
        if buffers[0].shape[0] != self.size:
            raise ValueError(
                f"all_to_all needs one row per worker, {self.size} rows, but got the shape "
                f"{buffers[0].shape}."
            )
        return self._all_to_all(list(buffers), key)

    def rows(self, slices: Sequence[Sequence[tf.IndexedSlices]], key: Keys) -> Lanes:
        """The sums of sparse tensors: all workers' rows in worker order, none added to another.

        Args:
          slices: `slices[i]` are the lanes of this process's i-th worker.  Their number of rows may
            differ between workers and steps; all else is static and equal on all workers.
          key: `key(name)` gives a key for each collective that this takes; the names are those of
            `grace_tf.transports.rows.NAMES`.

        Returns:
          The summed lanes for each worker of this process.
        """
        slices = [list(mine) for mine in slices]
        return slices if self.size == 1 else self._rows(slices, key)

    def messages(self, messages: Sequence[tf.Tensor], longest: tf.Tensor, key: Keys) -> Tensors:
        """Everyone's message, whose length differs between workers and steps.

        Args:
          messages: int32 `[any n]` of each worker of this process.
          longest: the length of the longest of all workers' messages, a scalar that all workers
            know alike.
          key: as in `rows`, with the names of `grace_tf.transports.rows.MESSAGES`.

        Returns:
          `[size, m]` for each worker of this process, m ≥ `longest`: row w begins with worker w's
          message, and zeros follow.
        """
        messages = list(messages)
        if self.size == 1:
            return [messages[0][None]]
        return self._messages(messages, longest, key)

    def explain(self, error: Exception) -> str:
        """The sentence for an error that a lost worker has caused.

        Raises `error` itself where no lost worker explains it, so that in

            except tf.errors.OpError as error:
                raise RuntimeError(transport.explain(error)) from error

        every other error keeps its own kind and message.
        """
        told = self._explain(error)
        if told is None:
            raise error
        return told

    def device(self, position: int):
        """A context for ops of the worker at this position of `workers`."""
        return tf.device(None)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[CollectiveRecord]]:
        """Within it, the list that it gives takes down what one worker hands to collectives.

        It takes down the calls of this thread only.  One within another counts in both.
        """
        record: list[CollectiveRecord] = []
        before = _records.get()
        _records.set((*before, (self, record)))
        try:
            yield record
        finally:
            _records.set(before)

    def take_down(self, kind: str, dtype: str, elements: int) -> None:
        """Takes down for `recorded` what a worker alone would hand to a collective."""
        self._take_down([CollectiveRecord(kind, dtype, elements)])

    @property
    def _recording(self) -> bool:
        """Whether this thread takes down what is handed to this transport."""
        return any(transport is self for transport, _ in _records.get())

    def _take_down(self, handed: Sequence[CollectiveRecord]) -> None:
        for transport, record in _records.get():
            if transport is self:
                record += handed

    def _note(self, kind: str, buffers: Sequence[tf.Tensor]) -> None:
        if len(buffers) != len(self.workers):
            raise ValueError(
                f"{type(self).__name__} carries {len(self.workers)} buffers, one per worker of "
                f"this process, but got {len(buffers)}."
            )
        if self._recording:  # alone too: what one of several would hand over
            elements = int(buffers[0].shape.num_elements())
            self._take_down([CollectiveRecord(kind, buffers[0].dtype.name, elements)])

    def _explain(self, error: Exception) -> str | None:
        """The sentence for an error that a lost worker has caused, or None; within a process there
        are none to lose."""
        return None

    @abc.abstractmethod
    def _sum(self, buffers: Tensors, key: int) -> Tensors: ...

    @abc.abstractmethod
    def _max(self, buffers: Tensors, key: int) -> Tensors: ...

    @abc.abstractmethod
    def _gather(self, buffers: Tensors, key: int) -> Tensors: ...

    @abc.abstractmethod
    def _rows(self, slices: Lanes, key: Keys) -> Lanes: ...

    @abc.abstractmethod
    def _messages(self, messages: Tensors, longest: tf.Tensor, key: Keys) -> Tensors: ...

    @abc.abstractmethod
    def _all_to_all(self, buffers: Tensors, key: int) -> Tensors: ...
