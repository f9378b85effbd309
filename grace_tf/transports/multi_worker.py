"""The processes of a MultiWorkerMirroredStrategy as a `Group`.

They compare through the strategy's coordination service, since replicas cannot communicate eagerly
while they are traced.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from grace_tf.transports.base import Keys, Lanes, Tensors
from grace_tf.transports.group import Group
from grace_tf.transports.lifeline import lifeline
from grace_tf.transports.lifeline.connections import Lifeline
from grace_tf.transports.process_group import local_rank
from grace_tf.transports.ring import Ring
from grace_tf.transports.tf_distribute import ReplicaContext, members

TIMEOUT = 120.0


class MultiWorkerGroup(Group):
    """The processes of a strategy; made in one of its replicas, it carries that replica's step.

    A process waits for the others as long as the strategy's communication options say, or `timeout`
    seconds (120) where they say nothing.  A handshake leaves some 20 bytes a word and process in
    the coordination service's key-value store.

    The strategy itself gives variables equal values when they are made in its scope, so there is no
    `broadcast`.

    Attributes: those of a `Group`; `size` and `workers` count replicas.
    """

    broadcasts = False
    # A collective gets its name when a step is traced, and TensorFlow ties a name to one length
    # until the whole function ends.
    same_in_loops = True
    _tables = itertools.count()  # counts the handshakes; equal in all processes

    def __init__(self, strategy: tf.distribute.Strategy, timeout: float | None = None) -> None:
        extended = strategy.extended
        self._strategy, self._processes = strategy, extended._num_workers  # no public names
        self.rank, self.size = extended._id_in_cluster, strategy.num_replicas_in_sync
        self.timeout = float(extended._communication_options.timeout_seconds or timeout or TIMEOUT)
        local = len(extended.worker_devices)
        self.workers = tuple(range(self.rank * local, (self.rank + 1) * local))
        replica = tf.distribute.get_replica_context()
        self._replica: ReplicaContext | None = None
        if replica is not None and replica.strategy is strategy:
            self._replica = ReplicaContext(replica)
            self.workers = self._replica.workers

    @property
    def processes(self) -> int:
        return self._processes

    @property
    def local_rank(self) -> int:
        cluster = self._strategy.cluster_resolver.cluster_spec().as_dict()
        return local_rank([*cluster.get("chief", ()), *cluster.get("worker", ())], self.rank)

    @property
    def lifeline(self) -> Lifeline | None:
        """Begins at the first call and waits for nobody."""
        return lifeline.between_strategy_processes(self._strategy)

    def ring(self) -> Ring:
        """The collectives of TensorFlow's runtime among the processes of the strategy."""
        jobs = self._strategy.cluster_resolver.cluster_spec().as_dict()
        seconds = self._strategy.extended._communication_options.timeout_seconds
        return Ring(self.processes, self.rank, timeout=seconds or 0, members=members(jobs, 1))

    # Transport

    def _sum(self, buffers: Tensors, key: int) -> Tensors:
        return self._inside()._sum(buffers, key)

    def _max(self, buffers: Tensors, key: int) -> Tensors:
        return self._inside()._max(buffers, key)

    def _gather(self, buffers: Tensors, key: int) -> Tensors:
        return self._inside()._gather(buffers, key)

    def _all_to_all(self, buffers: Tensors, key: int) -> Tensors:
        return self._inside()._all_to_all(buffers, key)

    def _rows(self, slices: Lanes, key: Keys) -> Lanes:
        return self._inside()._rows(slices, key)

    def _messages(self, messages: Tensors, longest: tf.Tensor, key: Keys) -> Tensors:
        return self._inside()._messages(messages, longest, key)

    def _inside(self) -> ReplicaContext:
        if self._replica is None:
            raise RuntimeError(
                "A strategy carries steps between its replicas only: make this group inside "
                "strategy.run."
            )
        return self._replica

    # Group

    def _handshake(self, words: np.ndarray) -> np.ndarray:
        where, line = f"grace/{next(self._tables)}", self.lifeline
        sent = words.tolist()
        self._publish(f"{where}/{self.rank}", sent)
        table = [self._read(where, worker) for worker in range(self.processes)]
        if any(row != sent for row in table):
            self._part(where)
        elif line is not None:
            lifeline.join(line)
        return np.array(table, np.int64)

    def _broadcast(self, piece: np.ndarray, root: int) -> np.ndarray:
        raise RuntimeError(
            "The strategy gives variables equal values when they are made in its scope; "
            "grace_tf broadcasts between plain processes (grace_tf.init) only."
        )

    def _explain(self, error: Exception) -> str | None:
        line = self.lifeline
        return None if line is None else line.why(error)

    def _publish(self, key: str, words: Sequence[int]) -> None:
        try:
            lifeline.put(key, json.dumps(words), self.timeout)
        except tf.errors.OpError as error:
            raise RuntimeError(
                lifeline.sentence(error)
                or "Workers cannot be compared through the strategy's coordination service: "
                f"{_first_line(error)}."
            ) from error

    def _read(self, where: str, worker: int) -> list[int]:
        try:
            text = lifeline.value_of(f"{where}/{worker}", worker, self.timeout)
        except tf.errors.OpError as error:
            raise RuntimeError(
                lifeline.sentence(error)
                or f"Worker {worker} of {self.processes} did not come to compare its plan within "
                f"{self.timeout:g} s: compress the same model with the same keywords on every "
                "worker; if it only was late, give the strategy tf.distribute.experimental."
                f"CommunicationOptions(timeout_seconds=…) ({_first_line(error)})."
            ) from error
        return json.loads(text)

    def _part(self, where: str) -> None:
        """Waits for all: process 0 holds the store, which the others must have read first."""
        milliseconds = round(1000 * self.timeout)
        with contextlib.suppress(tf.errors.OpError):
            if self.rank:
                lifeline.put(f"{where}/{self.rank}/read", "", self.timeout)
                return
            for worker in range(1, self.processes):
                context.context().get_config_key_value(f"{where}/{worker}/read", milliseconds)


def _first_line(error: tf.errors.OpError) -> str:
    lines = error.message.strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0].rstrip('. ')}"
