"""One plain process per worker, over TensorFlow's own collectives (gRPC ring between CPUs)."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from grace_tf.transports import collectives, lifeline, rendezvous
from grace_tf.transports.group import Group
from grace_tf.transports.waits import Waits

_GROUP_KEY = 0x67726163  # "grac": no tf.distribute strategy of this process counts this far
_HANDSHAKE_KEY = 1
_BROADCAST_KEYS = 1 << 18  # plus the number of units in the piece, at most 2**16
_BROADCAST_UNIT = 256  # bytes
_JOB = "worker"
_SUMMED = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


class ProcessGroup(Group):
    """Collectives between `len(addresses)` processes, this one being worker `rank` of them.

    The processes meet when the group is made: it returns when all have come and raises RuntimeError
    when one has not within `timeout` seconds.  Every collective later on gives up after `timeout`
    seconds too, and at once when a peer's process is gone; TensorFlow then refuses all further
    collectives, so the process has to be started again.  Inside a `tf.function` (so in `fit`) the
    error that surfaces is TensorFlow's own, `explain(error)` says it in a sentence; `handshake` and
    what `grace_tf` offers eagerly raise RuntimeError with that sentence.

    Collectives of different keys run beside each other in a `tf.function`, each started as its
    input comes; those of one key run in program order.  (TensorFlow runs each on threads of its
    own, so that none waits for a thread that another holds: seen with 40 collectives started in
    opposite orders by two workers with two threads each, on 2.15 and 2.21.)

    Bytes a worker sends for n bytes handed over, N workers: sum, max 2 n (N - 1) / N;
    gather n (N - 1); all_to_all n (N - 1) / N.  Buffers on a GPU pass through the host's memory.

    Attributes: rank; size; local_rank (position among the workers of the same host); workers, which
    is (rank,); timeout in seconds; addresses.
    """

    def __init__(self, addresses: Sequence[str], rank: int, timeout: float = 120.0):
        self.addresses = tuple(addresses)
        self.size = len(self.addresses)
        self.rank = rank
        self.workers = (rank,)
        self.timeout = float(timeout)
        self.local_rank = local_rank(self.addresses, rank)
        self._signatures: dict[int, tuple] = {}
        self._marks = collectives.Marks()
        self._members: list[int] | None = None
        self._waits: Waits | None = None  # without it TensorFlow's timeouts serve
        if self.size == 1:
            return
        rendezvous.meet(self.addresses, rank, self.timeout)
        try:
            # Held, because it owns the server; never entered.
            self._server = _start_server(self.addresses, rank, self.timeout)
            self._start()
        except tf.errors.OpError as error:
            raise RuntimeError(self._told(error)) from error

    def _start(self) -> None:
        if threading.current_thread() is threading.main_thread():
            # TensorFlow's server has put a handler there after which the process lives on.
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
        server, port, token = lifeline.offer() if self.rank == 0 else (None, 0, 0)
        told = self.handshake([self.rank, port, token], "init()")
        # TensorFlow orders tasks by name, so that task 10 comes before task 2.
        members = told[:, 0].tolist()
        self._members = None if members == sorted(members) else members
        host = self.addresses[0].rpartition(":")[0].strip("[]")
        first = (host, *told[members.index(0), 1:].tolist())
        self.lifeline = lifeline.begin(
            self.rank, self.size, self.timeout, token=token, server=server, find=lambda: first
        )
        lifeline.join(self.lifeline)
        if not self.lifeline.warned:
            self._waits = Waits(self.lifeline, self.timeout)

    # Transport

    def _sum(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]:
        return [self._reduce(buffers[0], key, "Add")]

    def _max(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]:
        return [self._reduce(buffers[0], key, "Max")]

    def _gather(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]:
        if self.size == 1 or buffers[0].shape.num_elements() == 0:
            return [tf.tile(buffers[0][None], [self.size, 1])]
        self._check(key, "gather", buffers[0])
        moved = self._move(tf.raw_ops.CollectiveGatherV2, buffers[0], key)
        return [self._by_rank(tf.reshape(moved, [self.size, buffers[0].shape[0]]))]

    def _all_to_all(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]:
        if buffers[0].shape[0] != self.size:
            raise ValueError(
                f"all_to_all needs one row per worker, {self.size} rows, but got the shape "
                f"{buffers[0].shape}."
            )
        if self.size == 1 or buffers[0].shape.num_elements() == 0:
            return [tf.identity(buffers[0])]
        self._check(key, "all_to_all", buffers[0])
        sent = buffers[0] if self._members is None else tf.gather(buffers[0], self._members)
        return [self._by_rank(self._move(tf.raw_ops.CollectiveAllToAllV2, sent, key))]

    def _reduce(self, buffer: tf.Tensor, key: int, operation: str) -> tf.Tensor:
        if buffer.dtype.name not in _SUMMED:
            raise TypeError(
                f"{buffer.dtype.name} cannot be reduced; there are {', '.join(_SUMMED)}."
            )
        if self.size == 1 or buffer.shape.num_elements() == 0:
            return tf.identity(buffer)
        self._check(key, operation, buffer)
        collective = tf.raw_ops.CollectiveReduceV2
        return self._run(collective, buffer, key, merge_op=operation, final_op="Id")

    def _move(self, op, buffer: tf.Tensor, key: int) -> tf.Tensor:
        return collectives.moved(buffer, lambda carried: self._run(op, carried, key))

    def _run(self, op, buffer: tf.Tensor, key: int, **attributes) -> tf.Tensor:
        with tf.device("/CPU:0"):
            attributes.update(self._arguments(key))
            if self._waits is None:
                return op(input=buffer, **attributes)
            mark = self._marks[key]
            return self._waits.around(mark, buffer, lambda: op(input=buffer, **attributes))

    def _by_rank(self, rows: tf.Tensor) -> tf.Tensor:
        return rows if self._members is None else tf.gather(rows, np.argsort(self._members))

    def _check(self, key: int, kind: str, buffer: tf.Tensor) -> None:
        # TensorFlow ties a key to what it first carried, and aborts the whole process otherwise.
        new = (kind, buffer.dtype.name, tuple(buffer.shape))
        old = self._signatures.setdefault(key, new)
        if old != new:
            raise ValueError(f"The key {key} belongs to {old} and cannot carry {new}.")

    def _arguments(self, key: int) -> dict:
        collectives.refuse_xla()
        return dict(
            group_size=self.size,
            group_key=_GROUP_KEY,
            instance_key=key,
            # TensorFlow runs collectives that read the same handle one after the other, in the
            # order of the program.  All collectives that read no handle it orders in the same way.
            ordering_token=[self._marks[key].handle],
            communication_hint="ring",
            timeout_seconds=0 if self._waits else self.timeout,
        )

    # Group

    def _handshake(self, words: np.ndarray) -> np.ndarray:
        return self._gather([tf.constant(words)], _HANDSHAKE_KEY)[0].numpy()

    def _broadcast(self, piece: np.ndarray, root: int) -> np.ndarray:
        # TensorFlow ties a key to one size; each worker sends 2 n (N - 1) / N bytes.
        units = -(-piece.size // _BROADCAST_UNIT)
        padded = np.pad(piece, [0, units * _BROADCAST_UNIT - piece.size])
        # Adding the others' zeros to integers changes no bit of them.
        words = tf.constant(padded.view(np.int32))
        summed = self._reduce(words, _BROADCAST_KEYS + units, "Add")
        return summed.numpy().view(np.uint8)[: piece.size]

    def _explain(self, error: Exception) -> str | None:
        """One sentence for an error of a collective: who is gone or late, and why, if known."""
        known = self.lifeline and self.lifeline.why(error)
        if known:
            return known
        if not collectives.lost_a_peer(error):
            return None
        return self._told(error)

    def _told(self, error: Exception) -> str:
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
    """How many workers before `rank` have its host."""
    hosts = [address.rpartition(":")[0] for address in addresses]
    return hosts[:rank].count(hosts[rank])


def runtime_started() -> bool:
    """Whether TensorFlow's runtime runs already, so that nothing can be configured any more."""
    return context.context()._initialized


def _start_server(addresses: Sequence[str], rank: int, timeout: float):
    milliseconds = max(1, round(1000 * timeout))
    # An empty ConfigProto gives the message type: its Python module moved between TF's versions.
    jobs = tf.compat.v1.ConfigProto().experimental.coordination_config.coordinated_job_list
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{_JOB}/replica:0/task:0",
        cluster_register_timeout_in_ms=milliseconds,
        # TensorFlow's own ten seconds are too few for a process that traces a large model.
        heartbeat_timeout_in_ms=max(10_000, milliseconds),
        coordinated_jobs=[jobs.add(name=_JOB, num_tasks=len(addresses))],
    )
    return tf.distribute.MultiWorkerMirroredStrategy(
        cluster_resolver=tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({_JOB: list(addresses)}),
            task_type=_JOB,
            task_id=rank,
            rpc_layer="grpc",
        ),
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING,
            timeout_seconds=timeout,
        ),
    )
