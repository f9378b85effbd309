"""Horovod's workers as a `Group`: one process a worker, and Horovod's own collectives.

In comes this process's buffer and a key; out goes what Horovod's collective of that name gives.
The user's program starts Horovod (`hvd.init()`); this module looks whether it has, and never
imports Horovod by itself.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
from types import ModuleType
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from grace_tf.transports import collectives, lifeline
from grace_tf.transports.group import HANDSHAKE_WORDS, Group
from grace_tf.transports.lifeline import first_line
from grace_tf.transports.waits import Waits

TIMEOUT = 120.0
_LAST = 5.0  # seconds for Horovod to let go of what a lost worker keeps waiting
# The dtypes in which Horovod reduces buffers; it cannot reduce bfloat16.
_REDUCED = {n: n for n in "float16 float32 float64 int32 int64".split()} | {"bfloat16": "float32"}

_current: HorovodGroup | None = None


def running() -> HorovodGroup | None:
    """The group of Horovod's workers, or None where Horovod does not run or has one worker.

    Raises RuntimeError under `hvd.elastic`, and where Horovod was started again with others.
    """
    global _current
    hvd = sys.modules.get("horovod.tensorflow")
    started = getattr(hvd, "is_initialized", None)
    if started is None or not started():
        # Once there were others, a worker must not go on alone: Horovod refuses what it asks.
        return _current
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        raise RuntimeError(
            "hvd.elastic changes the number of workers while they train, and grace_tf's state is "
            "made for one number: start horovodrun without --min-np and --host-discovery-script."
        )
    if _current is None and hvd.size() == 1:
        return None
    if _current is None:
        _current = HorovodGroup(hvd)
    elif (_current.rank, _current.size) != (hvd.rank(), hvd.size()):
        raise RuntimeError(
            f"Horovod was started anew: this process was worker {_current.rank} of "
            f"{_current.size} and is {hvd.rank()} of {hvd.size()} now; start all processes again."
        )
    return _current


class HorovodGroup(Group):
    """The workers that Horovod runs, this one being number `hvd.rank()` of `hvd.size()`.

    It stands without asking the others; the first handshake connects the lifeline, too.  Waiting
    for another worker ends after `timeout` seconds, and for a stopped one also after the 30 seconds
    of Horovod's own HOROVOD_GLOO_TIMEOUT_SECONDS.  Horovod is then shut down, and where it does not
    let go of this process, the process ends with the sentence.

    Collectives are named by their keys, so several are under way together and each waits for its
    namesakes alone.  Horovod may join small ones on the way; among three workers and more, sums may
    then differ in last bits from run to run, though never between workers.

    Bytes a worker sends for n bytes handed over, N workers, over Gloo: sum, max 2 n (N - 1) / N;
    gather n (N - 1); all_to_all n (N - 1) / N.  bfloat16 is summed as float32, twice the bytes:
    Horovod does not reduce it.  Buffers pass through the host's memory.
    """

    def __init__(self, hvd: ModuleType, timeout: float = TIMEOUT) -> None:
        self._hvd = hvd
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
        self.workers, self.timeout = (self.rank,), float(timeout)
        self._marks, self._met = collectives.Marks(), False
        self._missed: str | None = None  # why the workers did not meet
        self._engine = _Engine(hvd)
        self._waits: Waits | None = None

    def begin(self, timeout: float | None) -> None:
        """Waits for the others once, as `init` does; from then on so many seconds at most."""
        if self._met:
            if timeout in (None, self.timeout):
                return
            raise RuntimeError(
                f"The workers have met with timeout={self.timeout:g} already, so it cannot become "
                f"{timeout:g}: call grace_tf.init() right after hvd.init()."
            )
        self.timeout = self.timeout if timeout is None else float(timeout)
        self.handshake([], "init()")

    # Transport

    def _sum(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]:
        return [self._reduce(buffers[0], key, self._hvd.Sum, "sum")]

    def _max(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]:
        return [self._reduce(buffers[0], key, self._hvd.Max, "max")]

    def _gather(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]:
        if buffers[0].shape.num_elements() == 0:
            return [tf.tile(buffers[0][None], [self.size, 1])]

        def gather(row: tf.Tensor) -> tf.Tensor:
            return self._run(self._hvd.allgather, row[None], key, "gather")

        rows = collectives.moved(buffers[0], gather)
        return [tf.ensure_shape(rows, [self.size, buffers[0].shape[0]])]

    def _all_to_all(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]:
        if buffers[0].shape[0] != self.size:
            raise ValueError(
                f"all_to_all needs one row per worker, {self.size} rows, but got the shape "
                f"{buffers[0].shape}."
            )
        if buffers[0].shape.num_elements() == 0:
            return [tf.identity(buffers[0])]

        def swap(rows: tf.Tensor) -> tf.Tensor:
            return self._run(self._hvd.alltoall, rows, key, "all_to_all")

        return [tf.ensure_shape(collectives.moved(buffers[0], swap), buffers[0].shape)]

    def _reduce(self, buffer: tf.Tensor, key: int, operation: Any, kind: str) -> tf.Tensor:
        if buffer.dtype.name not in _REDUCED:
            raise TypeError(
                f"{buffer.dtype.name} cannot be reduced; there are {', '.join(_REDUCED)}."
            )
        if buffer.shape.num_elements() == 0:
            return tf.identity(buffer)
        with tf.device("/CPU:0"):
            carried = tf.cast(buffer, _REDUCED[buffer.dtype.name])
            reduced = self._run(self._hvd.allreduce, carried, key, kind, op=operation)
            return tf.cast(reduced, buffer.dtype)

    def _run(
        self, collective: Callable, buffer: tf.Tensor, key: int, kind: str, **options: Any
    ) -> tf.Tensor:
        collectives.refuse_xla()
        name = f"grace_tf.{key}.{kind}"

        def run() -> tf.Tensor:
            # Workers must agree on the name, and scopes may differ where one of them is inlined.
            return collective(_varying(buffer), name=name, ignore_name_scope=True, **options)

        self._meet()
        with tf.device("/CPU:0"):
            return self._waits.around(self._marks[key], buffer, run)

    # Group

    def _handshake(self, words: np.ndarray) -> np.ndarray:
        self._meet()
        return self._patiently(lambda: self._hvd.allgather(tf.constant(words[None]))).numpy()

    def _broadcast(self, piece: np.ndarray, root: int) -> np.ndarray:
        sent = tf.constant(piece)
        return self._patiently(lambda: self._hvd.broadcast(sent, root)).numpy()

    def _explain(self, error: Exception) -> str | None:
        if not self._engine.may_have_failed(error):
            return None
        known = self.lifeline and self.lifeline.why(error)
        if known or not self._engine.lost_a_peer(error):
            return known
        return self._cannot(f"another worker is gone ({first_line(error)})")

    def _cannot(self, what: str) -> str:
        return f"Worker {self.rank} of {self.size} cannot go on, {what}; start all of them again."

    def _meet(self) -> None:
        """Connects the lifeline, in the first call that all workers make together."""
        if self._met:
            return
        if self._missed is not None:
            raise RuntimeError(self._missed)
        # What is registered later runs first, so the lifeline says goodbye before Horovod ends.
        self._engine.end_with_the_process()
        server, port, token = lifeline.offer() if self.rank == 0 else (None, 0, 0)
        mine = np.zeros([HANDSHAKE_WORDS], np.int64)
        mine[:2], name = (port, token), self._host().encode()[: 8 * (HANDSHAKE_WORDS - 2)]
        mine[2:].view(np.uint8)[: len(name)] = np.frombuffer(name, np.uint8)
        try:
            with tf.init_scope():
                told = self._patiently(lambda: self._hvd.allgather(tf.constant(mine[None])))
        except RuntimeError as error:
            self._missed = str(error)
            raise
        told = told.numpy()[0]
        first = told[2:].tobytes().rstrip(b"\0").decode(), int(told[0]), int(told[1])
        self.lifeline = lifeline.begin(
            *(self.rank, self.size, self.timeout),
            **dict(token=token, server=server, find=lambda: first, engine=self._engine),
        )
        lifeline.join(self.lifeline)
        self._waits = Waits(self.lifeline, self.timeout)
        self._met = True

    def _host(self) -> str:
        """The name by which workers on other hosts find this one."""
        name = os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
        here = name == "localhost" or name.startswith("127.")
        alone = self._hvd.local_size() == self.size
        return socket.gethostname() if here and not alone else name

    def _patiently(self, collective: Callable[[], tf.Tensor]) -> tf.Tensor:
        """The result of an eager collective, which Horovod by itself would wait for without end."""
        found: list = []

        def run() -> None:
            try:
                with tf.device("/CPU:0"):
                    found.append(collective())
            except Exception as error:  # raised where it is waited for
                found.append(error)

        thread = threading.Thread(target=run, name="grace_tf handshake", daemon=True)
        thread.start()
        thread.join(self.timeout)
        if not found:
            late = f"another worker did not take part within {self.timeout:g} s"
            raise RuntimeError(self._cannot(late))
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]


def _varying(buffer: tf.Tensor) -> tf.Tensor:
    """The buffer, of which TensorFlow cannot know that it is constant; nothing is copied.

    Horovod's operations are not stateful: of a constant TensorFlow would compute the result once,
    while it optimises the graph, and the workers' graphs may differ in what is constant.
    """
    if not tf.inside_function():
        return buffer
    zero = tf.cast(tf.timestamp() < 0, tf.int32)
    return tf.slice(buffer, tf.fill([buffer.shape.rank], zero), buffer.shape)


class _Engine:
    """Tells a lifeline which errors of Horovod mean a lost worker, and ends what waits for one."""

    def __init__(self, hvd: ModuleType) -> None:
        self._hvd, self._lock = hvd, threading.Lock()
        self._closing: threading.Thread | None = None

    def may_have_failed(self, error: BaseException) -> bool:
        return self.lost_a_peer(error) or collectives.may_have_failed(error)

    @staticmethod
    def lost_a_peer(error: BaseException) -> bool:
        """Whether Horovod says so of a lost worker, or Gloo in a node of ours, named by its key."""
        kinds = (tf.errors.UnknownError, tf.errors.AbortedError, tf.errors.InternalError)
        words = "Horovod", "grace_tf.1", "grace_tf.2"
        return isinstance(error, kinds) and any(word in str(error) for word in words)

    def abort(self, sentence: str) -> None:
        """Shuts Horovod down.  Where that takes more than _LAST seconds, it ends the process."""

        def end() -> None:
            if not self._shut_down():
                print(sentence, file=sys.stderr, flush=True)
                _leave(1)

        threading.Thread(target=end, name="grace_tf abort", daemon=True).start()

    def end_with_the_process(self) -> None:
        """Horovod's own end of the process has no bound, and must not meet `abort`."""
        atexit.unregister(self._hvd.shutdown)
        atexit.register(lambda: self._shut_down() or _leave(lifeline.exit_code()))

    def _shut_down(self) -> bool:
        """Shuts Horovod down, once; False where that takes more than _LAST seconds."""
        with self._lock:
            if self._closing is None:
                self._closing = threading.Thread(target=self._hvd.shutdown, daemon=True)
                try:
                    self._closing.start()
                except RuntimeError:  # some Pythons start no thread while they end
                    self._hvd.shutdown()
                    return True
        self._closing.join(_LAST)
        return not self._closing.is_alive()


def _leave(code: int) -> None:
    """Ends the process at once, without Horovod's own end, which waits for its collectives."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
