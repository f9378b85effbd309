"""`Group`: several processes that train together; compares them, and gives them equal values."""

from __future__ import annotations

import abc
import contextlib
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from grace_tf.transports.base import Transport
from grace_tf.transports.pieces import packed
from grace_tf.transports.rows import GathersRows

if TYPE_CHECKING:
    from grace_tf.transports.lifeline.connections import Lifeline
    from grace_tf.transports.lifeline.waits import Waits

HANDSHAKE_WORDS = 64


class Group(GathersRows):
    """Several processes that train together; this one is number `rank`.

    A `Transport` carries a step; a `Group` also knows its processes, compares them before they
    train, gives them equal values, and says why one is lost.  The engines behind it are
    interchangeable: code outside `grace_tf.transports` calls a `Group`, never an engine.

    A subclass writes, beside the attributes and the collectives of `Transport`:

      * `_handshake(words)`: the int64 words of all processes, eagerly;
      * `_broadcast(piece, root)`: worker `root`'s bytes, eagerly, or `broadcasts = False`;
      * `_explain(error)`: the sentence for an error that a lost worker has caused, else None;
      * for `hierarchical=True` also `hosts` and `part(ranks)`.

    The skeleton of a new engine:

        class Example(Group):
            def __init__(self, network, timeout):
                self.rank, self.size, self.local_rank = network.rank, network.size, network.local
                self.workers, self.timeout, self._network = (self.rank,), timeout, network
                # The lifeline: worker 0 listens, and a first handshake tells the others where.
                server, port, token = lifeline.offer() if self.rank == 0 else (None, 0, 0)
                port, token = self.handshake([port, token], "init()")[0].tolist()
                self.lifeline = lifeline.begin(
                    self.rank, self.size, timeout, token=token, server=server,
                    find=lambda: (network.host_of_worker_0, port, token), engine=network,
                )
                lifeline.join(self.lifeline)

            def _sum(self, buffers, key):                  # eagerly and in tf.function
                return [self._network.allreduce(buffers[0], op="sum", name=f"grace {key}")]

            def _max(self, buffers, key): ...              # the same with op="max"
            def _gather(self, buffers, key): ...           # [n] -> [size, n]
            def _all_to_all(self, buffers, key): ...       # [size, n] -> [size, n]

            def _handshake(self, words):                   # eagerly, so it needs no key
                return self._network.allgather(words[None], name="grace handshake")

            def _broadcast(self, piece, root):
                return self._network.broadcast(piece, root, name=f"grace piece {piece.size}")

            def _explain(self, error):
                if not self._network.may_have_failed(error):  # kinds that a loss causes here
                    return None
                return self.lifeline.why(error) or f"Worker {self.rank} ... cannot go on: {error}"

    Where several replicas live in one process, `size` and `workers` count replicas and `processes`
    the processes; `rank` is always that of the process.

    Attributes:
      rank: the number of this process, 0 to processes - 1.
      local_rank: its number among the processes of the same host.
      processes: the number of processes; `size`, unless a subclass overrides it.
      timeout: seconds after which waiting for another process ends in an error.
      lifeline: the connection that reports which worker is lost, and why; None without one.
      broadcasts: whether `broadcast` can be called.
      same_in_loops: whether a collective in a traced loop must have one length in all iterations.
    """

    rank: int
    local_rank: int
    timeout: float
    lifeline: Lifeline | None = None
    broadcasts: bool = True
    same_in_loops: bool = False
    _waits: Waits | None = None  # watches the collectives; None where nothing does

    @property
    def processes(self) -> int:
        """The number of processes."""
        return self.size

    @property
    def hosts(self) -> tuple[Any, ...]:
        """The host of each process, by rank, as a name or number.

        Raises RuntimeError where the engine cannot tell.
        """
        raise RuntimeError(f"{type(self).__name__} cannot tell which workers share a host.")

    def connect(self) -> None:
        """Makes the lifeline where the processes have not met; all of them call it together.

        Raises RuntimeError where one is lost or late.
        """

    def part(self, ranks: Sequence[int]) -> Transport:
        """A transport with the same collectives among some of the processes, a part of the group.

        All processes call it equally often and in the same order, each with the ranks of its part.
        In each call every process belongs to exactly one part.

        Args:
          ranks: of the part, with this process; the results come in this order.
        Returns: a transport whose `workers` are this process's place in `ranks`.
        Raises: RuntimeError if the engine has no collectives among only some processes.
        """
        raise RuntimeError(f"{type(self).__name__} has no collectives of some workers only.")

    def handshake(self, words: Sequence[int], purpose: str = "handshake()") -> np.ndarray:
        """Gathers the words of all processes.  Eager, also while a function is traced.

        Args:
          words: at most 64 signed 64-bit integers, equally many in every process.
          purpose: the name of the call, for error messages.

        Returns:
          int64 `[processes, len(words)]`, by rank.

        Raises:
          ValueError: more words than 64.
          RuntimeError: a process is lost or late, or called with another purpose or another number
            of words.
        """
        if len(words) > HANDSHAKE_WORDS:
            raise ValueError(
                f"A handshake takes at most {HANDSHAKE_WORDS} words, not {len(words)}."
            )
        sent = np.zeros([2 + HANDSHAKE_WORDS], np.int64)
        sent[:2] = zlib.crc32(purpose.encode()), len(words)
        sent[2 : 2 + len(words)] = words
        watched = contextlib.nullcontext() if self._waits is None else self._waits.meeting(purpose)
        try:
            with tf.init_scope(), watched:
                received = self._handshake(sent)
        except tf.errors.OpError as error:
            raise RuntimeError(self.explain(error)) from error
        for process in np.flatnonzero((received[:, :2] != sent[:2]).any(axis=1)):
            raise RuntimeError(
                f"Worker {process} of {self.processes} is not where worker {self.rank} is, which "
                f"came to {purpose}: all workers must make the same calls in the same order."
            )
        return received[:, 2 : 2 + len(words)]

    def barrier(self) -> None:
        """Returns when all processes have called it.

        Raises RuntimeError where one is lost, late or has made another call.
        """
        if self.processes > 1:
            self.handshake([], "barrier()")

    def broadcast(self, variables: Iterable[Any], root: int = 0) -> None:
        """Assigns process `root`'s values to the variables of all processes, bit for bit.

        They travel in pieces of 16 MiB, and no more than a few pieces are held at a time.  Eager,
        also while a function is traced.

        Args:
          variables: TensorFlow or Keras variables of any dtype but string, with the same dtypes and
            shapes in the same order in every process.
          root: the rank of the process whose values count.

        Raises:
          TypeError: what is no variable, or has no bytes.
          ValueError: an empty list, or a root that does not exist.
          RuntimeError: on every process, if the variables or roots differ or a process is gone or
            late.
        """
        resources = [_resource(variable) for variable in variables]
        if not resources:
            raise ValueError(
                "broadcast() got no variables, as of a model that is built at its first call: call "
                "model.build(input_shape) first, or leave it to the first step, in which all "
                "workers take worker 0's values."
            )
        if not 0 <= root < self.processes:
            raise ValueError(
                f"There is no worker {root}: the {self.processes} workers are 0 to "
                f"{self.processes - 1}."
            )
        if self.processes == 1:
            return
        self._agree(resources, root)
        with tf.init_scope():
            for piece in packed(resources):
                self._exchange(piece, root)

    def _exchange(self, piece: Sequence[Any], root: int) -> None:
        """Writes process `root`'s bytes into the boxes of one piece."""
        mine = self.rank == root
        size = sum(box.nbytes for box in piece)
        data = np.concatenate([box.read() for box in piece]) if mine else np.zeros([size], np.uint8)
        try:
            received = self._broadcast(data, root) if size else data
        except tf.errors.OpError as error:
            raise RuntimeError(self.explain(error)) from error
        offset = 0
        for box in () if mine else piece:
            box.write(received[offset : offset + box.nbytes])
            offset += box.nbytes

    def _agree(self, variables: Sequence[tf.Variable], root: int) -> None:
        dtypes = [np.dtype(v.dtype.as_numpy_dtype) for v in variables]
        shapes = ";".join(f"{dtype}{tuple(v.shape)}" for dtype, v in zip(dtypes, variables))
        count = sum(v.shape.num_elements() * v.dtype.size for v in variables)
        words = [len(variables), count, root, zlib.crc32(shapes.encode())]
        received = self.handshake(words, "broadcast()")
        for worker in np.flatnonzero((received != received[0]).any(axis=1)):
            first, other = received[0].tolist(), received[worker].tolist()
            shapes = ", in other shapes" if first[:3] == other[:3] else ""
            raise RuntimeError(
                "broadcast() needs the same variables and root on every worker, but worker 0 has "
                f"{first[0]} with {first[1]} bytes and root {first[2]}, worker {worker} has "
                f"{other[0]} with {other[1]} bytes and root {other[2]}{shapes}."
            )

    @abc.abstractmethod
    def _handshake(self, words: np.ndarray) -> np.ndarray:
        """All processes' words: int64 `[n]` to int64 `[processes, n]`, n always the same; eager."""

    @abc.abstractmethod
    def _broadcast(self, piece: np.ndarray, root: int) -> np.ndarray:
        """Process `root`'s bytes: uint8 `[n]` to uint8 `[n]`, at most 16 MiB; eager.

        n is equal in all processes; the bytes of all but `root` are zeros.
        """

    @abc.abstractmethod
    def _explain(self, error: Exception) -> str | None:
        """The sentence for an error that a lost worker has caused; None for every other error."""


def _resource(variable: Any) -> tf.Variable:
    held = getattr(variable, "value", None)  # Keras 3; a method of a tf.Variable
    resource = variable if callable(held) or held is None else held
    if not isinstance(resource, tf.Variable):
        raise TypeError(
            f"broadcast() takes a list of variables, but got a {type(variable).__name__}."
        )
    if resource.dtype.name in ("string", "resource", "variant"):
        raise TypeError(
            f"broadcast() cannot send {resource.name!r}, whose dtype is {resource.dtype.name}: "
            "only numbers and booleans have bytes of a fixed size."
        )
    return resource
