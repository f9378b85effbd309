"""The first step's comparison: silent disagreement between workers is the worst bug there is.

In come a plan and the optimizer behind it; the digests of all workers are gathered eagerly (also
while a graph is traced around), and every worker raises the same sentence where they differ.
Workers of a process group compare by a collective.  Workers of a MultiWorkerMirroredStrategy
compare through its coordination service, since replicas cannot communicate eagerly while they are
traced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from grace_tf import wire
from grace_tf.plan import Plan
from grace_tf.transports import lifeline
from grace_tf.version import __version__

TIMEOUT = 60.0
CONFIG_WORDS = 24  # settings of an optimizer that are compared one by one; the last stands for more

_WAYS_OUT = (
    ("version", "the grace_tf versions differ: install the same one everywhere"),
    ("seed", "the seeds differ: give wrap() or Aggregator() the same seed everywhere"),
    ("optimizer", "the optimizers differ: wrap the same optimizer everywhere"),
    (
        "plan",
        "the plans differ: wrap the same model with the same compressor and keywords everywhere",
    ),
    (
        "names",
        "they reduce the gradients of different variables, {variable!r} here: make and train the "
        "same models in the same order everywhere; where one worker has made a model more, Keras "
        "has counted further there, so give layers names or call keras.utils.clear_session() on "
        "all workers before",
    ),
    (
        "ordinal",
        "they have made different numbers of optimizers or Aggregators for variables such as "
        "{variable!r}: make and train the same models in the same order everywhere",
    ),
)


@dataclasses.dataclass(frozen=True)
class Owner:
    """The optimizer behind a door, as workers compare it; without arguments, that of a custom loop.

    `config` holds its settings, without `rate`, the learning rate where that is a number.
    `variables` are the optimizer's own.
    """

    optimizer: str = ""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rate: float | None = None
    variables: Sequence[Any] = ()


def described(owner: Callable[[], Owner]) -> Owner:
    """What `owner()` says, read outside of what is being traced: settings may be variables."""
    with tf.init_scope():
        return owner()


def compare(group: Any, plan: Plan, owner: Owner, reduce: str = "") -> None:
    """Raises RuntimeError, alike on every worker of the group, where plans or optimizers differ.

    `reduce` is what the door does with the gradients, "mean" or "sum".
    """
    settings = sorted(owner.config)
    with tf.init_scope():
        table = group.handshake(_words(plan, owner, reduce), "the first step's comparison")
    variable = plan.paths[0] if plan.paths else "none"
    ways_out = [way_out.format(variable=variable) for _, way_out in _WAYS_OUT]
    named = settings[: CONFIG_WORDS - 1] + ["other settings"] * (len(settings) >= CONFIG_WORDS)
    ways_out += [
        f"their {owner.optimizer} has different settings ({name}): make it alike everywhere"
        for name in named
    ]
    for column, way_out in zip(np.transpose(table), ways_out):
        odd = [worker for worker, value in enumerate(column) if value != column[0]]
        if odd:
            raise RuntimeError(
                f"Workers cannot train together, {way_out} "
                f"(worker {', '.join(map(str, odd))} of {len(table)} differs from worker 0)."
            )


def _words(plan: Plan, owner: Owner, reduce: str) -> list[int]:
    settings = sorted(owner.config.items())
    one_by_one, others = settings[: CONFIG_WORDS - 1], settings[CONFIG_WORDS - 1 :]
    config = [text_digest(f"{key}={_text(value)}") for key, value in one_by_one]
    config += [text_digest(_text(others))] * bool(others)
    return [
        text_digest(f"{__version__}/{wire.VERSION}"),
        plan.seed,
        text_digest(owner.optimizer),
        text_digest(f"{plan.layout}/{reduce}"),
        plan.digest,
        plan.ordinal,
        *config,
        *[0] * (CONFIG_WORDS - len(config)),
    ]


def _text(value: Any) -> str:
    """A setting as text that is equal where the setting is; of an object its class counts."""
    return json.dumps(_without_code(value), sort_keys=True, default=_told)


def _without_code(value: Any) -> Any:
    """The same without the bytecode of lambdas, which holds the path of their file."""
    if isinstance(value, Mapping):
        if value.get("class_name") == "__lambda__":
            return "lambda"
        return {str(key): _without_code(held) for key, held in value.items()}
    return [_without_code(held) for held in value] if isinstance(value, (list, tuple)) else value


def _told(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return getattr(value, "__qualname__", type(value).__qualname__)


class KeyValueGroup:
    """The processes of a strategy, as far as comparing goes: `size` and `handshake`.

    A process waits for the others as long as the strategy's communication options say, or `timeout`
    seconds (60) where they say nothing.  Some 20 bytes a word and worker, in the coordination
    service's key-value store.
    """

    _tables = itertools.count()  # of this process; each worker counts alike

    def __init__(self, strategy: tf.distribute.Strategy, timeout: float | None = None) -> None:
        extended = strategy.extended
        self.rank, self.size = extended._id_in_cluster, extended._num_workers  # no public names
        self._seconds = extended._communication_options.timeout_seconds or timeout or TIMEOUT
        self._line = lifeline.between_strategy_processes(strategy)

    def handshake(self, words: Sequence[int], purpose: str) -> np.ndarray:
        """Every worker's words, int64 `[size, len(words)]`; eager, also while a function is traced.

        Raises RuntimeError where a worker does not come, because it does not compress or is gone or
        late, and where it came for another `purpose`.
        """
        where = f"grace/{next(self._tables)}"
        sent = [text_digest(purpose), *map(int, words)]
        with tf.init_scope():
            self._publish(f"{where}/{self.rank}", sent)
            table = [self._read(where, worker) for worker in range(self.size)]
            if any(row != sent for row in table):
                self._part(where)
            elif self._line is not None:
                lifeline.join(self._line)
        for worker, row in enumerate(table):
            if row[0] != sent[0] or len(row) != len(sent):
                raise RuntimeError(
                    f"Worker {worker} of {self.size} is not where worker {self.rank} is, which "
                    f"came to {purpose}: all workers must make the same calls in the same order."
                )
        return np.array(table, np.int64)[:, 1:]

    def _publish(self, key: str, words: Sequence[int]) -> None:
        try:
            context.context().set_config_key_value(key, json.dumps(words))
        except tf.errors.OpError as error:
            raise RuntimeError(
                "Workers cannot be compared through the strategy's coordination service: "
                f"{_first_line(error)}."
            ) from error

    def _read(self, where: str, worker: int) -> list[int]:
        try:
            text = lifeline.value_of(f"{where}/{worker}", worker, self._seconds)
        except tf.errors.OpError as error:
            raise RuntimeError(
                f"Worker {worker} of {self.size} did not come to compare its plan within "
                f"{self._seconds:g} s: compress the same model with the same keywords on every "
                "worker; if it only was late, give the strategy tf.distribute.experimental."
                f"CommunicationOptions(timeout_seconds=…) ({_first_line(error)})."
            ) from error
        return json.loads(text)

    def _part(self, where: str) -> None:
        """Process 0 holds the store: it must not end before the others have read all of it."""
        milliseconds = round(1000 * self._seconds)
        with contextlib.suppress(tf.errors.OpError):
            if self.rank:
                context.context().set_config_key_value(f"{where}/{self.rank}/read", "")
                return
            for worker in range(1, self.size):
                context.context().get_config_key_value(f"{where}/{worker}/read", milliseconds)


def _first_line(error: tf.errors.OpError) -> str:
    lines = error.message.strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0].rstrip('. ')}"


def digest(arrays: Sequence[np.ndarray]) -> int:
    """A 56-bit digest of arrays: shapes, dtypes and bits."""
    told = hashlib.blake2b(digest_size=7)
    for array in arrays:
        array = np.ascontiguousarray(array)
        told.update(f"{array.dtype}{array.shape}".encode())
        told.update(array.view(np.uint8).data if array.ndim else array.tobytes())
    return int.from_bytes(told.digest(), "little")


def text_digest(text: str) -> int:
    """A 56-bit digest of a text."""
    return digest([np.frombuffer(text.encode(), np.uint8)])


def float_word(value: float) -> int:
    """The bits of a float64 as a signed word."""
    return struct.unpack("<q", struct.pack("<d", value))[0]
