"""The turns in which the threads of one process run the eager steps of one Aggregator.

A step reads the state, computes, and stores the next state.  If two steps overlapped, both would
send the same residual and only one of their new residuals would be stored.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf


class Turns:
    """Lets one eager step of a worker run at a time; traced steps pass, since they only trace."""

    def __init__(self) -> None:
        # Replicas of a strategy that communicate by themselves wait for each other within a step,
        # so each has a lock of its own.
        self._locks = collections.defaultdict(threading.RLock)
        self._making = threading.Lock()

    @contextlib.contextmanager
    def one(self, meets: bool, position: int = 0) -> Iterator[None]:
        """Runs the step inside as the only one of the worker at this position.

        Another thread waits.  Where the step `meets` other processes it is refused by RuntimeError:
        there the threads may get their turns in another order, and processes would wait for each
        other or add up the gradients of different steps.
        """
        if not tf.executing_eagerly():
            yield
            return
        with self._making:
            lock = self._locks[position]
        if not lock.acquire(blocking=not meets):
            raise RuntimeError(
                "Two threads of this process run a step of one Aggregator at once, but all workers "
                "must run its steps in the same order: call it from one thread, or give each "
                "thread an Aggregator and variables of its own."
            )
        try:
            yield
        finally:
            lock.release()
