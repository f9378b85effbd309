"""The first step's comparison: silent disagreement between workers is the worst bug there is.

In come a plan and the variables; the digests of all workers are gathered eagerly (also while a
graph is traced around), and every worker raises the same sentence where they differ.  Workers of a
MultiWorkerMirroredStrategy compare through its coordination service, since replicas cannot
communicate eagerly while they are traced; their weights the strategy broadcasts itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from grace_tf import wire
from grace_tf.plan import Plan
from grace_tf.version import __version__

TIMEOUT = 60.0

_WAYS_OUT = (
    ("version", "the grace_tf versions differ: install the same one everywhere"),
    ("seed", "the seeds differ: give wrap() or Aggregator() the same seed everywhere"),
    (
        "plan",
        "the plans differ: wrap the same model with the same compressor and keywords everywhere",
    ),
    (
        "weights",
        "the weights differ: call grace_tf.broadcast(model.variables) before the first step, or "
        "add grace_tf.keras.Callback() to fit()",
    ),
)


_compared = itertools.count()  # plans of this process that were compared under a strategy


def compare(group: Any, plan: Plan, variables: Sequence[Any], terms: str = "") -> None:
    """Raises RuntimeError, alike on every worker of the process group, where anything differs.

    Without `variables` the weights are not compared (a second plan of a run that has begun).
    `terms` is what else the workers must agree on, beside the plan.
    """
    with tf.init_scope():
        weights = digest([v.numpy() for v in variables]) if variables else 0
        table = group.handshake((*_words(plan, terms), weights))
    _refuse_differences(table)


def compare_processes(
    strategy: tf.distribute.Strategy, plan: Plan, terms: str = "", timeout: float | None = None
) -> None:
    """As `compare`, between the processes of a strategy and without the weights.

    A process waits for the others as long as the strategy's communication options say, or `timeout`
    seconds (60) where they say nothing.  Raises RuntimeError, alike on every worker, where anything
    differs; and where a worker does not come, because it does not compress or is gone or late.
    Some 60 bytes per worker, in the coordination service's key-value store.
    """
    extended = strategy.extended
    mine, count = extended._id_in_cluster, extended._num_workers  # no public names for them
    seconds = extended._communication_options.timeout_seconds or timeout or TIMEOUT
    where = f"grace/{next(_compared)}"
    with tf.init_scope():
        _publish(f"{where}/{mine}", list(_words(plan, terms)))
        table = [_read(where, worker, count, seconds) for worker in range(count)]
        if any(row != table[0] for row in table):
            _part(where, mine, count, seconds)
    _refuse_differences(table)


def _publish(key: str, words: Sequence[int]) -> None:
    try:
        context.context().set_config_key_value(key, json.dumps(words))
    except tf.errors.OpError as error:
        raise RuntimeError(
            "Workers cannot be compared through the strategy's coordination service: "
            f"{_first_line(error)}."
        ) from error


def _read(where: str, worker: int, count: int, seconds: float) -> list[int]:
    try:
        text = context.context().get_config_key_value(f"{where}/{worker}", round(1000 * seconds))
    except tf.errors.OpError as error:
        raise RuntimeError(
            f"Worker {worker} of {count} did not come to compare its plan within {seconds:g} s: "
            "compress the same model with the same keywords on every worker; if it only was late, "
            "give the strategy tf.distribute.experimental.CommunicationOptions(timeout_seconds=…) "
            f"({_first_line(error)})."
        ) from error
    return json.loads(text)


def _part(where: str, mine: int, count: int, seconds: float) -> None:
    """Process 0 holds the store: it must not end before the others have read all of it."""
    with contextlib.suppress(tf.errors.OpError):
        if mine:
            context.context().set_config_key_value(f"{where}/{mine}/read", "")
            return
        for worker in range(1, count):
            context.context().get_config_key_value(f"{where}/{worker}/read", round(1000 * seconds))


def _first_line(error: tf.errors.OpError) -> str:
    lines = error.message.strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0].rstrip('. ')}"


def _words(plan: Plan, terms: str) -> tuple[int, int, int]:
    told = [f"{__version__}/{wire.VERSION}", f"{plan.digest}/{terms}"]
    version, agreed = (digest([np.frombuffer(text.encode(), np.uint8)]) for text in told)
    return version, plan.seed, agreed


def _refuse_differences(table: Sequence[Sequence[int]]) -> None:
    """Raises RuntimeError for the first column in which the workers' rows differ."""
    for column, (_, way_out) in zip(zip(*table), _WAYS_OUT):
        odd = [worker for worker, value in enumerate(column) if value != column[0]]
        if odd:
            raise RuntimeError(
                f"Workers cannot train together, {way_out} "
                f"(worker {', '.join(map(str, odd))} of {len(table)} differs from worker 0)."
            )


def digest(arrays: Sequence[np.ndarray]) -> int:
    """A 56-bit digest of arrays: shapes, dtypes and bits."""
    told = hashlib.blake2b(digest_size=7)
    for array in arrays:
        array = np.ascontiguousarray(array)
        told.update(f"{array.dtype}{array.shape}".encode())
        told.update(array.view(np.uint8).data if array.ndim else array.tobytes())
    return int.from_bytes(told.digest(), "little")
