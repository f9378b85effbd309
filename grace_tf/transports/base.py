"""`Transport`: the collectives over flat buffers that the line needs from a network."""

from __future__ import annotations

import abc
import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

PLAN_KEYS = 1 << 20  # plans draw their keys from [PLAN_KEYS, 2**31); others may use those below

Tensors = list[tf.Tensor]  # of each worker of this process
Lanes = list[list[tf.IndexedSlices]]  # of each worker of this process, one a lane
Keys = Callable[[str], int]  # the key of each collective that a method takes, by name

# The open `recorded()` contexts of this thread, the innermost last: (transport, its list).
_records: contextvars.ContextVar[tuple] = contextvars.ContextVar("records", default=())


@dataclasses.dataclass(frozen=True)
class CollectiveRecord:
    """One buffer that one worker handed to a collective.

    Where the number of elements changes from step to step, a variable holds the last one.
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
    A key always belongs to the same kind, dtype and shape.

    Collectives of different keys may be under way together.  What makes that safe:

      * All workers run the same set of collectives in a step, and none of them under a condition
        that may differ between workers.  So no worker waits for a collective that another never
        starts.
      * Two collectives that may be under way together have different keys, so none takes another's
        data.  Two uses of a key in one step run in the order of the program, on all workers.
      * A waiting collective holds no thread that another one needs.  So workers may start a set of
        collectives in different orders: each starts all of them before it waits for the first.

    The engines keep the last rule in different ways.  `ProcessGroup`: TensorFlow starts collectives
    of different keys as their inputs come, each on threads of its own.  `ReplicaContext`:
    TensorFlow itself puts the collectives of a strategy in the order of the program, which is the
    same on all workers.  `Loopback` and `Replicas`: all workers are in one graph, so nothing waits
    for another process.  Eagerly, collectives run one after the other, as the program calls them.

    A subclass sets the attributes and writes `_sum`, `_max`, `_gather`, `_all_to_all`, `_rows` and
    `_messages`.  Each has the arguments and results of the public method of its name; `size` may be
    1.  The public methods check the number of buffers and record what is handed over, see
    `recorded`.  A transport between processes is a `Group`, which has more to write.

    Attributes:
      size: the number of all workers.
      workers: the numbers of the workers in this process; they choose results and random streams.
      inside: a transport between the processes of this worker, where a worker is a host with
        several processes, see hosts.py; else None.
      sums_in_conditions: whether `sum` works inside a tf.cond in which all workers enter alike;
        `gather` does everywhere.
    """

    size: int
    workers: tuple[int, ...]
    inside: Transport | None = None
    sums_in_conditions = True

    @property
    def gradients(self) -> int:
        """The number of gradients in the mean of a step: one a worker, with hosts one a process."""
        return self.size

    def sum(self, buffers: Sequence[tf.Tensor], key: int) -> Tensors:
        """The elementwise sum over all workers.

        Args:
          buffers: `[n]` of each worker of this process; float16, bfloat16, float32, float64, int32
            or int64.
          key: the name of this collective.

        Returns:
          `[n]` for each worker of this process, all the same bits.  The engine chooses the order of
          additions, the same for all workers.

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
          `[size, n]` for each worker of this process: row w is the row that worker w had for it.

        Raises ValueError for another number of buffers or rows.
        """
        self._note("all_to_all", buffers)
        if buffers[0].shape[0] != self.size:
            raise ValueError(
                f"all_to_all needs one row per worker, {self.size} rows, but got the shape "
                f"{buffers[0].shape}."
            )
        return self._all_to_all(list(buffers), key)

    def sum_lists(
        self, lists: Sequence[Sequence[tf.Tensor]], key: int, narrow: bool = False
    ) -> list[Tensors]:
        """The elementwise sums of lists of tensors over all workers.

        Args:
          lists: of each worker of this process; tensors of any shapes and one dtype of `sum`.
          key: as in `sum`.
          narrow: whether float32 travels and is added up as bfloat16.

        Returns:
          A list for each worker of this process, all the same bits.
        """
        if self.size == 1:
            return [list(own) for own in lists]
        return self._sum_lists([list(own) for own in lists], key, narrow)

    def join(self, pieces: Sequence[tf.Tensor], lengths: Sequence[int], key: int) -> Tensors:
        """Everyone's piece of a tensor, side by side, bit for bit.

        Args:
          pieces: `[…, lengths[w]]` of each worker w of this process, of a dtype of `gather`.
          lengths: of all workers' pieces.
          key: as in `gather`.

        Returns:
          `[…, sum(lengths)]` for each worker of this process.
        """
        if self.size == 1:
            return list(pieces)
        return self._join(list(pieces), lengths, key)

    def rows(self, slices: Sequence[Sequence[tf.IndexedSlices]], key: Keys) -> Lanes:
        """The sums of sparse tensors: all workers' rows in worker order, repeated rows included.

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
        """The messages of all workers, whose length differs between workers and steps.

        Args:
          messages: int32 `[any n]` of each worker of this process.
          longest: the length of the longest of all workers' messages, a scalar that is the same on
            all workers.
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
        sentence = self._explain(error)
        if sentence is None:
            raise error
        return sentence

    def device(self, position: int):
        """A device context for the operations of the worker at this position of `workers`."""
        return tf.device(None)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[CollectiveRecord]]:
        """A context that records in its list what one worker hands to collectives.

        It records the calls of this thread only; nested contexts record the same calls.
        """
        record: list[CollectiveRecord] = []
        before = _records.get()
        _records.set((*before, (self, record)))
        try:
            yield record
        finally:
            _records.set(before)

    def take_down(self, kind: str, dtype: str, elements: int) -> None:
        """Records for `recorded` what a single worker would hand to a collective."""
        self._take_down([CollectiveRecord(kind, dtype, elements)])

    @property
    def _recording(self) -> bool:
        """Whether this thread records what is handed to this transport."""
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
        if self._recording:  # also of a single worker: what one of several would hand over
            elements = int(buffers[0].shape.num_elements())
            self._take_down([CollectiveRecord(kind, buffers[0].dtype.name, elements)])

    def _explain(self, error: Exception) -> str | None:
        """The sentence for an error that a lost worker has caused; None for other errors, and for
        all errors within one process."""
        return None

    # By the collectives of one buffer; a subclass may do without the copies.

    def _sum_lists(self, lists: Sequence[Tensors], key: int, narrow: bool) -> list[Tensors]:
        sent = [tf.concat([tf.reshape(x, [-1]) for x in own], 0) for own in lists]
        narrow = narrow and sent[0].dtype == tf.float32
        totals = self.sum([tf.cast(x, tf.bfloat16) for x in sent] if narrow else sent, key)
        sizes = [x.shape.num_elements() for x in lists[0]]
        parts = [tf.split(tf.cast(total, lists[0][0].dtype), sizes) for total in totals]
        return [[tf.reshape(p, x.shape) for p, x in zip(own, lists[0])] for own in parts]

    def _join(self, pieces: Tensors, lengths: Sequence[int], key: int) -> Tensors:
        longest, shape = max(lengths), [self.size, *pieces[0].shape[:-1], max(lengths)]
        before = [[0, 0]] * (len(shape) - 2)
        if min(lengths) < longest:
            pieces = [tf.pad(x, [*before, [0, longest - x.shape[-1]]]) for x in pieces]
        every = self.gather([tf.reshape(x, [-1]) for x in pieces], key)
        rows = [tf.unstack(tf.reshape(each, shape)) for each in every]
        return [tf.concat([r[..., :n] for r, n in zip(each, lengths)], -1) for each in rows]

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
