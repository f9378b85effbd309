"""Ends a collective that waits too long for another worker.

The collectives of this process set marks in variables as they begin and end.  Where a mark stays
unchanged for `timeout` seconds, the lifeline gets an error message and aborts the collectives.
TensorFlow's own timeout would hold two sleeping threads for each collective until it has passed,
also where the collective has ended long before.

A meeting is an eager call in which all workers compare something, as before a first step.  Where
one worker waits in a meeting and another one in a collective, and each would come to the other's
place only afterwards, both would wait for ever: that is found in seconds, see `_crossing`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import tensorflow as tf

from grace_tf.transports.lifeline.connections import Lifeline

_SHARE = 20  # a worker that has not said for so much of a timeout that it waits is late, thrice
_SHORTEST, _LONGEST = 0.25, 1.0  # seconds between two checks of the marks
_UNDER_WAY = 0.5  # what a mark holds beyond the number of its uses, until the last has ended
KEY = "grace_tf_key"  # attribute of a mark, the key of a collective of all workers
# Seconds of a wait until it counts as one for each other.  A check that knows more of the cause,
# such as that of the numbers of steps, ends it sooner.
_CROSSED = 3.0
_OURS = os.path.join("backend", "host_memory.py")  # calls those of our operations that wait
_TENSORFLOW = os.path.join(os.path.dirname(tf.__file__), "python")
_LOG = logging.getLogger("grace_tf")

_of: weakref.WeakKeyDictionary[Lifeline, Waits] = weakref.WeakKeyDictionary()


def under_way(lifeline: Lifeline) -> bool:
    """Whether a collective of this process is under way; False where that is not known.

    Called while the lifeline's `changed` is held.
    """
    return lifeline in _of and not lifeline.closed and _of[lifeline].under_way()


class _Wait(NamedTuple):
    """A mark that has not changed since a look, and calls of TensorFlow that have not returned.

    `calls` are those of the second look: a frame keeps all variables of its function and of those
    that called it, such as a batch, so a short wait must keep none.  The wait `counts` from the
    third look on, which has found one of these calls again.
    """

    value: float
    since: float
    calls: Sequence[FrameType] = ()
    counts: bool = False


class _Place(NamedTuple):
    """Where another worker waits: in the `use`-th use of the mark of this key, after so many
    meetings; without a key where it does not tell."""

    meetings: int
    key: int | None = None
    use: int = 0


class Waits:
    """The collectives in which this process waits for others, one variable for each key.

    A variable counts the collectives of its key that have begun, and holds a half more while the
    last one is under way.  A step that fails leaves that half, so a mark is set only while a call
    of TensorFlow has not returned.
    """

    def __init__(self, lifeline: Lifeline, timeout: float):
        self._lifeline, self._timeout = lifeline, timeout
        self._share = max(_SHORTEST, timeout / _SHARE)
        self._pause = min(self._share, _LONGEST)
        self._marks: list[tf.Variable] = []
        self._waits: dict[int, _Wait] = {}  # by mark
        self._dropped: list[Any] = []  # frames of the looks before this one
        self._unmarked: list[float] = []  # when the collectives without a mark began
        self._others: dict[int, float] = {}  # workers that wait too, and when they said so
        self._places: dict[int, _Place] = {}  # where they wait
        self._meetings = 0  # the number of meetings that have ended
        self._purpose: str | None = None  # of the meeting in which this process is
        self._threads: set[int] = set()  # those that meet, and trace or run collectives
        _of[lifeline] = self
        lifeline.on("waits", self._hear)
        threading.Thread(target=self._watch, name="grace_tf waits", daemon=True).start()

    def around(
        self, mark: tf.Variable, buffers: Sequence[tf.Tensor], collective: Callable[[], Any]
    ) -> Any:
        """Calls `collective`, which reads `buffers`, and returns its result.

        While the collective runs, the variable `mark` says so.  Collectives with the same mark run
        one after the other, in the order of the program.
        """
        if all(mark is not known for known in self._marks):
            self._marks.append(mark)
        self._threads.add(threading.get_ident())
        ready = buffers if len(buffers) < 2 or tf.executing_eagerly() else [tf.group(*buffers)]
        with tf.control_dependencies(ready):
            # Rounding removes the half that a failed step leaves.
            uses = tf.floor(mark.read_value()) + 1.0
            began = mark.assign(uses + _UNDER_WAY, read_value=False)
        with tf.control_dependencies([] if began is None else [began]):
            result = collective()
        with tf.control_dependencies(result if isinstance(result, list) else [result]):
            mark.assign(uses, read_value=False)
        return result

    @contextlib.contextmanager
    def meeting(self, purpose: str) -> Iterator[None]:
        """A context around a meeting.  All workers take part, each with a single thread."""
        self._threads.add(threading.get_ident())
        self._purpose = purpose
        try:
            yield
            self._meetings += 1
        finally:
            self._purpose = None

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
        return any(_is_set(float(mark.numpy())) for mark in self._marks) and bool(_calls())

    def _watch(self) -> None:
        while True:
            self._lifeline.until(lambda: self._lifeline.closed, self._pause)
            # With the lock held the process cannot close, which would end TensorFlow's runtime.
            with self._lifeline.changed:
                if self._lifeline.closed or self._lifeline.broken is not None:
                    return
                try:
                    self.look()
                except Exception:  # without this thread no collective would have a timeout
                    _LOG.exception("A look at the collectives has failed; the next one follows.")
            # Not with the lock held: a frame may be the last to refer to a tf.data iterator, whose
            # end may take a minute.
            self._dropped.clear()

    def look(self) -> None:
        """Tells the others about a long wait; ends it at the timeout, or if it cannot succeed."""
        longest = self._longest()
        if longest >= self._pause:
            self._lifeline.tell("waits", self._place())
        if longest >= min(_CROSSED, self._timeout / 2):
            if crossing := self._crossing():
                self._lifeline.stop(crossing)
        if longest >= self._timeout:
            self.end()

    def _longest(self) -> float:
        """The seconds that this process has waited in one collective, the longest of them."""
        now, before, self._waits = time.monotonic(), self._waits, {}
        values = {i: float(mark.numpy()) for i, mark in enumerate(self._marks)}
        standing = {i: value for i, value in values.items() if _is_set(value)}
        calls = _calls() if standing else []
        for i, value in standing.items() if calls else ():
            last = before.get(i, _Wait(0.0, now))
            still = [call for call in last.calls if any(call is other for other in calls)]
            if value != last.value or (last.calls and not still):
                self._waits[i] = _Wait(value, now)
            else:
                self._waits[i] = _Wait(value, last.since, still or calls, counts=bool(still))
        self._dropped += [before, calls]
        since = [*self._unmarked, *(wait.since for wait in self._waits.values() if wait.counts)]
        return now - min(since, default=now)

    def _place(self) -> _Place:
        """Where this process waits, in a collective of all workers that its only thread runs."""
        since = {i: wait.since for i, wait in self._waits.items() if wait.counts}
        mark = min(since, key=since.__getitem__, default=None)
        key = None if mark is None else getattr(self._marks[mark], KEY, None)
        (thread, *others) = list(self._threads) or [0]
        frame = _frames().get(thread)
        known = key is not None and self._purpose is None and not others
        if not known or frame is None or not _waits(frame):
            return _Place(self._meetings)
        return _Place(self._meetings, key, int(self._waits[mark].value))

    def _hear(self, worker: int, place: list[Any]) -> None:
        self._others[worker] = time.monotonic()
        self._places[worker] = _Place(*place)

    def _crossing(self) -> str | None:
        """The error message where another worker waits for this one and this one for it.

        This process is in a meeting.  The other has come to a collective that this process has not
        begun, and before it came to as many meetings.  Both run their program by one thread, so
        neither comes to the other's place before its own wait has ended.
        """
        rank, size = self._lifeline.rank, self._lifeline.size
        if self._purpose is None or len(self._threads) > 1:
            return None
        begun = {getattr(mark, KEY, None): int(mark.numpy()) for mark in self._marks}
        for worker, place in self._places.items():
            if place.key is None or place.meetings != self._meetings:
                continue
            if begun.get(place.key, 0) < place.use:
                return crossed(size, rank, self._purpose, worker)
        return None

    def end(self) -> None:
        """Ends the wait now; the error of all workers names the one that most likely caused it."""
        with self._lifeline.changed:
            self._lifeline.lose_the_silent()
            lately = time.monotonic() - 3 * self._share
            others = [
                worker for worker in range(self._lifeline.size) if worker != self._lifeline.rank
            ]
            late = [worker for worker in others if self._others.get(worker, 0.0) < lately]
            if not late:
                how = f"waits elsewhere for {self._timeout:g} s: not all workers run the same steps"
            else:
                how = f"did not take part within {self._timeout:g} s"
                how += "".join(f", nor did worker {worker}" for worker in late[1:])
            self._lifeline.lose((late or others)[0], how)


def crossed(size: int, meeting: int, purpose: str, stepping: int) -> str:
    """The error message where one worker waits in `purpose` and another one in a training step."""
    return (
        f"Workers cannot go on: worker {meeting} of {size} waits in {purpose}, but worker "
        f"{stepping} waits in a step; all workers must make, compile and train the same models in "
        "the same order, and compile or change one again on all of them."
    )


def _is_set(value: float) -> bool:
    return value % 1.0 != 0.0


def _calls() -> list[FrameType]:
    """The frames of TensorFlow's calls in which threads of this process are."""
    # The dictionary must have no name here: it holds the frame that asks for it, which would hold
    # the dictionary, and all frames would stay until the garbage collector runs.
    return [frame for frame in _frames().values() if _waits(frame)]


def _frames() -> dict[int, FrameType]:
    """The innermost frame of each thread.

    CPython 3.11 creates these frames under a lock of the interpreter.  If the garbage collector ran
    there, it could wait for a thread that waits for this lock (python/cpython#106883).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if enabled:
            gc.enable()


def _waits(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file == "<string>" and frame.f_back:  # an operation that was loaded, as Horovod's are
        caller = frame.f_back.f_code.co_filename
        return f"{os.sep}horovod{os.sep}" in caller or caller.endswith(_OURS)
    return file.startswith(_TENSORFLOW)
