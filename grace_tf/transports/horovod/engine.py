"""Shuts Horovod down where a worker is lost, and at the end of the process, in a bounded time.

It also knows which errors of `horovod.tensorflow` mean a lost worker.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from types import ModuleType

import tensorflow as tf

from grace_tf.transports.lifeline import lifeline, tensorflow_engine

# Seconds for Horovod's shutdown:
_LAST = 5.0  # at the end of a process without an error
_LOSS = 3.0  # after a worker was lost; of a stopped worker Horovod never lets go
_QUIET = 2.0  # in a process that fails, before its last message
_NO_MORE = 0.5  # in a process that fails, after its last message


class Engine:
    """Tells a lifeline which errors of Horovod mean a lost worker, and ends waiting collectives."""

    def __init__(self, hvd: ModuleType) -> None:
        self._hvd, self._lock = hvd, threading.Lock()
        self._closing: threading.Thread | None = None

    def may_have_failed(self, error: BaseException) -> bool:
        # Horovod refuses all collectives after `abort`.
        ended = isinstance(error, tf.errors.FailedPreconditionError) and "Horovod" in str(error)
        return ended or self.lost_a_peer(error) or tensorflow_engine.may_have_failed(error)

    @staticmethod
    def lost_a_peer(error: BaseException) -> bool:
        """Whether Horovod raised this error for a lost worker, or Gloo in one of our operations."""
        gone = "Process set provided does not exist"  # said of a set once Horovod was shut down
        if isinstance(error, tf.errors.InvalidArgumentError) and gone in str(error):
            return True
        kinds = (tf.errors.UnknownError, tf.errors.AbortedError, tf.errors.InternalError)
        words = "Horovod", "grace_tf.1", "grace_tf.2"
        return isinstance(error, kinds) and any(word in str(error) for word in words)

    def abort(self, sentence: str) -> None:
        """Shuts Horovod down.  Where that takes more than _LOSS seconds, it ends the process."""

        def end() -> None:
            # A main thread that ends with an error prints the sentence by itself.
            if not self._shut_down(_LOSS) and not lifeline.exit_code():
                print(sentence, file=sys.stderr, flush=True)
                _leave(1)

        threading.Thread(target=end, name="grace_tf abort", daemon=True).start()

    def quiet(self) -> None:
        """Ends Horovod in a process that fails, so that no thread writes after its last message."""
        self._shut_down(_QUIET)

    def end_with_the_process(self, after_all: bool = False) -> None:
        """Replaces Horovod's shutdown at exit, which may wait forever and must not meet `abort`.

        Horovod ends in all its processes when it ends in one.  So with `after_all` it goes on here
        until each of them has reached its end, or one has failed.
        """

        def end() -> None:
            if after_all and not lifeline.exit_code():
                self._wait_for_all()
            failing = lifeline.exit_code()
            self._shut_down(_NO_MORE if failing else _LAST) or _leave(failing)

        atexit.unregister(self._hvd.shutdown)
        atexit.register(end)

    def _wait_for_all(self) -> None:
        with contextlib.suppress(tf.errors.OpError, ValueError), tf.device("/CPU:0"):
            if self._hvd.is_initialized():
                self._hvd.allgather(tf.zeros([1]), name="grace_tf.end", ignore_name_scope=True)

    def _shut_down(self, seconds: float) -> bool:
        """Shuts Horovod down, once; False where that takes more than `seconds`."""
        with self._lock:
            if self._closing is None:
                self._closing = threading.Thread(target=self._hvd.shutdown, daemon=True)
                try:
                    self._closing.start()
                except RuntimeError:  # some versions of Python start no thread at exit
                    self._hvd.shutdown()
                    return True
        self._closing.join(seconds)
        return not self._closing.is_alive()


def _leave(code: int) -> None:
    """Ends the process at once, without Horovod's own end, which waits for its collectives."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
