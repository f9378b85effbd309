"""One plain process per worker, over TensorFlow's own collectives (gRPC ring between CPUs)."""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from grace_tf.transports import rendezvous, tensorflow_server
from grace_tf.transports.group import Group
from grace_tf.transports.lifeline import lifeline, tensorflow_engine
from grace_tf.transports.lifeline.sockets import listen, on_one_machine
from grace_tf.transports.lifeline.waits import Waits
from grace_tf.transports.ring import GROUP_KEY, Ring

_HANDSHAKE_KEY = 1
_BROADCAST_KEYS = 1 << 18  # plus the number of units in the piece, at most 2**16
_BROADCAST_UNIT = 256  # bytes
_STARTING = 10.0  # seconds that TensorFlow may take to connect workers that have met at the last


class ProcessGroup(Ring, Group):
    """Collectives between `len(addresses)` processes; this one is worker `rank`.

    The processes meet when the group is made: the constructor returns when all have come, and
    raises RuntimeError when one has not within `timeout` seconds, of which some may be over: they
    end at `deadline`, by `time.monotonic()`.  TensorFlow then has at least ten to connect them.
    Every later collective also ends after `timeout` seconds, and at once when another process is
    gone.  TensorFlow then refuses all further collectives, so the processes must be started again.
    Inside a `tf.function` (so in
    `fit`) the error is TensorFlow's own, and `explain(error)` returns a sentence for it;
    `handshake` and other eager calls raise RuntimeError with that sentence.

    Collectives of different keys run concurrently in a `tf.function`, each started when its input
    is ready; those of one key run in program order.  (TensorFlow runs each on threads of its own,
    so that none waits for a thread that another holds: tested with 40 collectives started in
    opposite orders by two workers with two threads each, on 2.15 and 2.21.)

    Bytes a worker sends for n bytes handed over, N workers: sum, max 2 n (N - 1) / N;
    gather n (N - 1); all_to_all n (N - 1) / N.  Buffers on a GPU pass through the host's memory.

    Only processes with the same `secret` meet.  They compare `alike`, which is `addresses` unless
    each worker reaches the others through ports of its own, as behind a relay.

    Attributes: rank; size; local_rank (position among the workers of the same host); workers, which
    is (rank,); timeout in seconds; addresses.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        rank: int,
        timeout: float = 120.0,
        deadline: float | None = None,
        secret: str = "",
        alike: Sequence[str] | None = None,
    ):
        super().__init__(len(addresses), rank, timeout=timeout)
        self.addresses = tuple(addresses)
        self.rank = rank
        self.local_rank = local_rank(self.addresses, rank)
        self._parts = 0  # calls of `part`
        if self.size == 1:
            return
        deadline = time.monotonic() + self.timeout if deadline is None else deadline
        starting = rendezvous.meet(self.addresses, rank, self.timeout, deadline, secret, alike)
        server, port, token = None, 0, 0
        if rank == 0:
            server, port, token = lifeline.offer(self.hosts[0], on_one_machine(self.hosts))
        deadline = max(deadline, time.monotonic() + _STARTING)
        try:
            table = starting.run(lambda: self._connect(port, token), self.timeout, deadline)
        except BaseException:
            if server is not None:
                server.close()
            raise
        finally:
            if threading.current_thread() is threading.main_thread():
                # TensorFlow's server has set a signal handler after which the process would go on.
                signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
        self._begin(server, secret, table)

    def _connect(self, port: int, token: int) -> np.ndarray:
        """Starts TensorFlow's server; (rank, port and token of the lifeline) of all workers."""
        address = self.addresses[self.rank]
        try:
            listen(int(address.rpartition(":")[2])).close()
        except OSError as error:
            raise RuntimeError(
                f"Worker {self.rank} cannot listen at {address}: {error}."
            ) from error
        try:
            # Referenced, because it owns the server; its scope is never entered.
            self._server = tensorflow_server.start(self.addresses, self.rank, self.timeout)
        except tf.errors.OpError as error:
            raise RuntimeError(self._sentence(error)) from error
        return self.handshake([self.rank, port, token], "init()")

    def _begin(self, server: socket.socket | None, secret: str, table: np.ndarray) -> None:
        # TensorFlow orders tasks by name, so that task 10 comes before task 2.
        members = table[:, 0].tolist()
        self._members = None if members == sorted(members) else members
        first = (self.hosts[0].strip("[]"), *table[members.index(0), 1:].tolist())
        self.lifeline = lifeline.begin(
            *(self.rank, self.size, self.timeout),
            **dict(secret=secret, token=first[2], server=server, find=lambda: first),
        )
        lifeline.join(self.lifeline)
        if not self.lifeline.warned:
            self._waits = Waits(self.lifeline, self.timeout)

    # Group

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(address.rpartition(":")[0] for address in self.addresses)

    def part(self, ranks: Sequence[int]) -> Ring:
        ranks, order = list(ranks), self._members or range(self.size)
        members = [ranks.index(rank) for rank in order if rank in ranks]
        self._parts += 1
        return Ring(
            len(ranks),
            ranks.index(self.rank),
            GROUP_KEY + self._parts * self.size + min(ranks),
            self.timeout,
            None if members == sorted(members) else members,
            self._waits,
        )

    def _handshake(self, words: np.ndarray) -> np.ndarray:
        return self._gather([tf.constant(words)], _HANDSHAKE_KEY)[0].numpy()

    def _broadcast(self, piece: np.ndarray, root: int) -> np.ndarray:
        # TensorFlow ties a key to one size; each worker sends 2 n (N - 1) / N bytes.
        units = -(-piece.size // _BROADCAST_UNIT)
        padded = np.pad(piece, [0, units * _BROADCAST_UNIT - piece.size])
        # The sum with the other workers' integer zeros changes no bit.
        words = tf.constant(padded.view(np.int32))
        summed = self._reduce(words, _BROADCAST_KEYS + units, "Add")
        return summed.numpy().view(np.uint8)[: piece.size]

    def _explain(self, error: Exception) -> str | None:
        """One sentence for an error of a collective: who is gone or late, and why, if known."""
        known = self.lifeline and self.lifeline.why(error)
        if known:
            return known
        if not tensorflow_engine.lost_a_peer(error):
            return None
        return self._sentence(error)

    def _sentence(self, error: Exception) -> str:
        peers = {int(number) for number in re.findall(r"/task:(\d+)", str(error))} - {self.rank}
        if self.size == 2:
            peers = {1 - self.rank}
        who = f"worker {min(peers)}" if len(peers) == 1 else "another worker"
        if isinstance(error, tf.errors.DeadlineExceededError):
            what = f"did not take part within {self.timeout:g} s"
        elif isinstance(error, tf.errors.UnavailableError):
            what = "is gone"
        else:
            what = f"is gone or did not take part within {self.timeout:g} s"
        noise = r"\{\{.*?\}\}|\[Op:\w+\]( name:)?|Collective ops is aborted by:"
        lines = re.sub(noise, "", str(error)).strip().splitlines() or [""]
        reason = " ".join(lines[0].split()).rstrip(". ")
        return (
            f"Worker {self.rank} of {self.size} cannot go on, {who} {what}; start all of them "
            f"again ({type(error).__name__}: {reason})."
        )


def local_rank(addresses: Sequence[str], rank: int) -> int:
    """The number of workers before `rank` on the same host."""
    hosts = [address.rpartition(":")[0] for address in addresses]
    return hosts[:rank].count(hosts[rank])


def runtime_started() -> bool:
    """Whether TensorFlow's runtime runs already, so that nothing can be configured any more."""
    return context.context()._initialized
