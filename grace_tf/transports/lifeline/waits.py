"""Ends a collective that waits too long for another worker.

The collectives of this process set marks in variables as they begin and end.  Where a mark stays
unchanged for `timeout` seconds, the lifeline gets an error message and aborts the collectives.
TensorFlow's own timeout would hold two sleeping threads for each collective until it has passed,
also where the collective has ended long before.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

import tensorflow as tf

from grace_tf.transports.lifeline.connections import Lifeline

_SHARE = 20  # the number of checks of the marks within a timeout
_SHORTEST = 0.25  # seconds between two checks, at least
_TENSORFLOW = os.path.join(os.path.dirname(tf.__file__), "python")


_of: weakref.WeakKeyDictionary[Lifeline, Waits] = weakref.WeakKeyDictionary()


def under_way(lifeline: Lifeline) -> bool:
    """Whether a collective of this process is under way; False where that is not known.

    Called while the lifeline's `changed` is held.
    """
    return lifeline in _of and not lifeline.closed and _of[lifeline].under_way()


class _Wait(NamedTuple):
    """A mark that has not changed, and the calls of TensorFlow that have not returned since."""

    value: float
    since: float
    calls: list[FrameType]


class Waits:
    """The collectives in which this process waits for others, one variable for each key.

    A variable holds the time when its collective began, or 0 where none is under way.  A step that
    fails leaves its marks set, so a mark counts only while a call of TensorFlow has not returned.
    """

    def __init__(self, lifeline: Lifeline, timeout: float):
        self._lifeline, self._timeout = lifeline, timeout
        self._pause = max(_SHORTEST, timeout / _SHARE)
        self._marks: list[tf.Variable] = []
        self._waits: dict[int, _Wait] = {}  # by mark
        self._unmarked: list[float] = []  # when the collectives without a mark began
        self._others: dict[int, float] = {}  # workers that wait too, and when they said so
        _of[lifeline] = self
        lifeline.on("waits", lambda worker, _: self._others.update({worker: time.monotonic()}))
        threading.Thread(target=self._watch, name="grace_tf waits", daemon=True).start()

    def around(
        self, mark: tf.Variable, buffer: tf.Tensor, collective: Callable[[], tf.Tensor]
    ) -> tf.Tensor:
        """The result of a collective that takes `buffer`, marked as long as it is under way.

        Uses of one mark follow each other in the order of the program.
        """
        if all(mark is not known for known in self._marks):
            self._marks.append(mark)
        with tf.control_dependencies([buffer]):
            began = mark.assign(tf.timestamp(), read_value=False)
        with tf.control_dependencies([] if began is None else [began]):
            result = collective()
        with tf.control_dependencies([result]):
            mark.assign(tf.zeros([], mark.dtype), read_value=False)
        return result

    @contextlib.contextmanager
    def unmarked(self) -> Iterator[None]:
        """Counts the time in this context as a wait in one collective that has no mark."""
        began = time.monotonic()
        self._unmarked.append(began)
        try:
            yield
        finally:
            self._unmarked.remove(began)

    def under_way(self) -> bool:
        """Whether a collective is under way whose mark is set."""
        return bool(_calls()) and any(float(mark.numpy()) for mark in self._marks)

    def _watch(self) -> None:
        while True:
            self._lifeline.until(lambda: self._lifeline.closed, self._pause)
            # With the lock held the process cannot close, which would end TensorFlow's runtime.
            with self._lifeline.changed:
                if self._lifeline.closed or self._lifeline.broken is not None:
                    return
                self.look()

    def look(self) -> None:
        """Tells the others about a long wait, and ends it after the timeout."""
        longest = self._longest()
        if longest >= self._pause:
            self._lifeline.tell("waits")
        if longest >= self._timeout:
            self.end()

    def _longest(self) -> float:
        """The seconds that this process has waited in one collective, the longest of them."""
        now, calls = time.monotonic(), _calls()
        for i, mark in enumerate(self._marks):
            value = float(mark.numpy())
            last = self._waits.pop(i, _Wait(0.0, now, []))
            still = [call for call in last.calls if any(call is other for other in calls)]
            if value and value == last.value and still:
                self._waits[i] = last._replace(calls=still)
            elif value and calls:
                self._waits[i] = _Wait(value, now, calls)
        since = [*self._unmarked, *(wait.since for wait in self._waits.values())]
        return now - min(since, default=now)

    def end(self) -> None:
        """Ends the wait now; the error names the worker that most likely caused it."""
        with self._lifeline.changed:
            self._lifeline.lose_the_silent()
            lately = time.monotonic() - 3 * self._pause
            others = [
                worker for worker in range(self._lifeline.size) if worker != self._lifeline.rank
            ]
            late = [worker for worker in others if self._others.get(worker, 0.0) < lately]
            if not late:
                how = f"waits elsewhere for {self._timeout:g} s: not all workers run the same steps"
            else:
                how = f"did not take part within {self._timeout:g} s"
                how += "".join(f", nor did worker {worker}" for worker in late[1:])
            self._lifeline.lay_to((late or others)[0], how)


def _calls() -> list[FrameType]:
    """The frames of TensorFlow's calls in which threads of this process are."""
    frames = sys._current_frames().values()  # the innermost of each thread
    return [frame for frame in frames if _waits(frame)]


def _waits(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file == "<string>" and frame.f_back:  # an operation that was loaded, as Horovod's are
        return f"{os.sep}horovod{os.sep}" in frame.f_back.f_code.co_filename
    return file.startswith(_TENSORFLOW)
