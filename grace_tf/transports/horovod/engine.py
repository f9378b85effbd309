"""What ends Horovod: for a lifeline that has lost a worker, and when the process ends.

It knows which errors of `horovod.tensorflow` mean a lost worker, and ends Horovod without waiting
for one.
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

_LAST = 5.0  # seconds that Horovod has for its end, where nothing is wrong
_LOSS = 3.0  # to let go of what a lost worker keeps waiting; it never does of a stopped one
_QUIET = 2.0  # of these, before a process that fails says its last words
_NO_MORE = 0.5  # after them


class Engine:
    """Tells a lifeline which errors of Horovod mean a lost worker, and ends what waits for one."""

    def __init__(self, hvd: ModuleType) -> None:
        self._hvd, self._lock = hvd, threading.Lock()
        self._closing: threading.Thread | None = None

    def may_have_failed(self, error: BaseException) -> bool:
        # Horovod refuses what is asked of it after `abort`.
        ended = isinstance(error, tf.errors.FailedPreconditionError) and "Horovod" in str(error)
        return ended or self.lost_a_peer(error) or tensorflow_engine.may_have_failed(error)

    @staticmethod
    def lost_a_peer(error: BaseException) -> bool:
        """Whether Horovod says so of a lost worker, or Gloo in a node of ours, named by its key."""
        gone = "Process set provided does not exist"  # said of a set once Horovod was shut down
        if isinstance(error, tf.errors.InvalidArgumentError) and gone in str(error):
            return True
        kinds = (tf.errors.UnknownError, tf.errors.AbortedError, tf.errors.InternalError)
        words = "Horovod", "grace_tf.1", "grace_tf.2"
        return isinstance(error, kinds) and any(word in str(error) for word in words)

    def abort(self, sentence: str) -> None:
        """Shuts Horovod down.  Where that takes more than _LOSS seconds, it ends the process."""

        def end() -> None:
            # A main thread that ends with an error already says the sentence below it by itself.
            if not self._shut_down(_LOSS) and not lifeline.exit_code():
                print(sentence, file=sys.stderr, flush=True)
                _leave(1)

        threading.Thread(target=end, name="grace_tf abort", daemon=True).start()

    def quiet(self) -> None:
        """Ends Horovod in a process that fails, so that no thread writes below its last words."""
        self._shut_down(_QUIET)

    def end_with_the_process(self, after_all: bool = False) -> None:
        """Horovod's own end of the process has no bound, and must not meet `abort`.

        Horovod ends in all its processes when it ends in one.  So with `after_all` it goes on here
        until each of them has come to its end, or one has failed.
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
        """Shuts Horovod down, once; False where that takes longer."""
        with self._lock:
            if self._closing is None:
                self._closing = threading.Thread(target=self._hvd.shutdown, daemon=True)
                try:
                    self._closing.start()
                except RuntimeError:  # some Pythons start no thread while they end
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
