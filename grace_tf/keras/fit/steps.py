"""Checks that all workers take equally many steps in a call of `fit`; else all end with one error.

Each worker counts its steps, and sends a message over the lifeline at the end of each epoch and
call of `fit`, so a step itself costs nothing.  Where a worker is in a step that another never
takes, it would wait in a collective until the timeout; instead it ends all workers at once.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import logging
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from grace_tf.transports.lifeline.connections import SILENT, Lifeline
from grace_tf.transports.lifeline.farewells import counted
from grace_tf.transports.lifeline.lifeline import first_line
from grace_tf.transports.lifeline.waits import under_way
from grace_tf.transports.world import data_shards

# _STUCK is the seconds between two looks at a step that another worker does not take.  After the
# first look it counts as one step too many.  In two cases it counts only after _LONGER looks, or
# when it is in a collective: the number of batches is unknown, so the step may find no data; or the
# other worker has failed, so this one may be about to raise the same error.
_STUCK = 1.0
_LONGER = 30
_LOG = logging.getLogger("grace_tf")
_STOPPED = " set stop_training"
_EQUAL_DATA = (
    "all workers need equally many batches (grace_tf.shard deals them out so) and must stop at the "
    "same step"
)
_EQUAL_STOPS = (
    "all workers must stop at the same step, for example by metrics at the end of an epoch, which "
    "fit gives all workers alike unless average_logs=False; those of a batch are each worker's own"
)
_FIT = -1  # stands for the end of `fit`, where 0, 1, … stand for epochs
_BETWEEN = -2  # stands for the time between two epochs


@dataclasses.dataclass(frozen=True)
class _End:
    """The number of steps after which a worker ended `fit` or an epoch, and how it ended."""

    steps: int
    how: str = ""
    failed: bool = False


# The ends by (number of the call of `fit`, epoch or _FIT), then by worker.
_ends: dict[tuple[int, int], dict[int, _End]] = collections.defaultdict(dict)
_data: dict[int, dict[int, int]] = collections.defaultdict(dict)  # call, worker: digest of arrays
# By call and worker: the number of trainings begun inside the call, and the steps before the last.
_inside: dict[int, dict[int, tuple[int, int]]] = collections.defaultdict(dict)
_calls = itertools.count(1)
_now: Steps | None = None  # of the current call of `fit`


def now() -> Steps | None:
    """The `Steps` of the current call of `fit` between several workers, or None."""
    return _now


class Steps:
    """Counts this worker's steps in one call of `fit`; use it as `with Steps(…):` around the call.

    `counted`: whether the number of batches is known before.  `width`: the number of batches that
    Keras takes in one step.  `planned`: the number of batches of the whole call, None if unknown.
    """

    def __init__(
        self, line: Lifeline, counted: bool, width: int = 1, planned: int | None = None
    ) -> None:
        self._line, self._width, self.planned = line, width, planned
        self._looks = 1 if counted else _LONGER
        self.call = next(_calls)
        self._epoch, self._in_epoch = 0, False
        self._begun = self._done = 0
        self._tries = 0  # attempts to take a step, also those that find the end of the data
        self._watched = 0  # the last attempt that another worker may not have made
        self._inner = 0  # trainings that this worker has begun inside the call, in callbacks
        self._ended = False
        self._at_end: list[Callable[[], None]] = []

    @property
    def done(self) -> int:
        """The number of batches in the finished steps of this worker in this call of `fit`."""
        return self._done * self._width

    def __enter__(self) -> Steps:
        global _now
        _now = self
        self._line.on("steps", _hear)
        self._line.on("inside", _hear_inside)
        return self

    def __exit__(self, kind, error, trace) -> None:
        global _now
        if error is not None:
            self._line.why(error)  # waits for the lifeline to report whether another worker ended
            if self._line.broken is None:
                self._tell(_FIT, first_line(error), failed=True)
        _inside.pop(self.call, None)
        _now = None

    def begin(self) -> None:
        """Call it where a step begins."""
        self._begun = self._done + 1
        self._tries += 1
        with self._line.changed:
            self._look(self._epoch)
            self._look(_FIT)
            self.look_inside()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A context around a training inside the call, as in a callback; all workers must enter."""
        self._inner += 1
        self._line.tell("inside", [self.call, self._inner, self._done])
        try:
            yield
        finally:
            self._line.tell("inside", [self.call, self._inner, None])

    def look_inside(self) -> None:
        """Ends all workers where another one trains inside a callback and this one does not."""
        # A copy, since the lifeline's thread adds to it.
        for worker, (count, done) in list(_inside[self.call].items()):
            if self._misses(count, done):
                self._later(self._looks, self._alone, worker, self._tries)

    def _misses(self, count: int, done: int) -> bool:
        # In a step that the other has not taken, this worker and the other wait for each other.
        return count > self._inner and (self._ended or self._begun > max(self._done, done))

    def _alone(self, worker: int, tried: int) -> None:
        line = self._line
        with line.changed:
            count, done = _inside[self.call].get(worker, (0, 0))
            if _now is self and self._tries == tried and self._misses(count, done):
                here = "has ended fit" if self._ended else f"is in step {self._next()}"
                line.stop(
                    f"Workers cannot go on: worker {worker} of {line.size} trains inside a "
                    f"callback after {done * self._width} steps, but worker {line.rank} {here}; "
                    "all workers need the same calls of fit and train_on_batch, in the same order."
                )

    def _next(self) -> int:
        return (self._begun - 1) * self._width + 1

    def end(self) -> None:
        """Call it where the step has ended."""
        self._done = self._begun
        with self._line.changed:
            for worker, end in _ends.get((self.call, self._epoch), {}).items():
                if self._in_epoch and end.steps < self._done and not end.failed:
                    self._stop(worker, self._epoch, end, f"has taken {self._count_of(self._done)}")

    def take_back(self) -> None:
        """Call it where there was no data for the step."""
        self._begun = self._done

    def begin_epoch(self, epoch: int) -> None:
        """Call it where the epoch of this number begins."""
        self._epoch, self._in_epoch = epoch, True

    @contextlib.contextmanager
    def between_epochs(self) -> Iterator[None]:
        """A context around what waits for the other workers before an epoch, and takes no step.

        Where another worker has ended `fit` instead, it ends all workers as a step does.
        """
        self._epoch, before = _BETWEEN, self._epoch
        self._begun = self._done + 1
        self._tries += 1
        with self._line.changed:
            self._look(_FIT)
        try:
            yield
        finally:
            self.take_back()
            self._epoch = before

    def compare_data(self, x: np.ndarray) -> None:
        """Warns, on worker 0, if all workers train on the same rows.

        Arrays that `grace_tf.shard` has made count as different, also where their values are equal.
        """
        rows = [repr(x.shape).encode(), x[:1].tobytes(), x[-1:].tobytes()]
        if data_shards.is_share(x):
            rows.append(b"share %d" % self._line.rank)
        message = [self.call, zlib.crc32(b"".join(rows))]
        self._line.on("data", lambda worker, message: self._hear_data(worker, *message))
        with self._line.changed:
            self._line.tell("data", message)
            self._hear_data(self._line.rank, *message)

    def _hear_data(self, worker: int, call: int, digest: int) -> None:
        _data[call][worker] = digest
        if len(_data[call]) < self._line.size:
            return
        if len({*_data.pop(call).values()}) == 1 and self._line.rank == 0:
            _LOG.warning(
                "All %d workers train on the same arrays, so an epoch goes through every row %d "
                "times: give each worker its share by x, y = grace_tf.shard((x, y)).",
                *(self._line.size, self._line.size),
            )

    def end_epoch(self, stopped_by: str = "") -> None:
        """Call it where the epoch has ended; raises RuntimeError if another worker's steps differ.

        `stopped_by`: the callback that has ended `fit` with this epoch, "" if none.
        Does nothing where it was called for this epoch before, or a step is running.
        """
        if self._in_epoch and self._begun == self._done:
            self._in_epoch = False
            self._tell(self._epoch, stopped_by and stopped_by + _STOPPED)
        self._line.check()

    def finish(self, stopped_by: str = "") -> None:
        """Returns when all workers have ended `fit`.

        There is no timeout: another worker may save a large model in a last callback, and would
        fail if this worker's program ended meanwhile.  A lost worker ends the wait.

        Raises RuntimeError where a worker took another number of steps, failed or is lost.  Then
        calls the functions given to `when_all_have_ended`, unless some workers are not connected.
        """
        line, ends = self._line, _ends[self.call, _FIT]
        with line.changed:
            self._ended = True
            self.look_inside()
        self._tell(_FIT, stopped_by and stopped_by + _STOPPED)
        if line.joined(0):
            self._wait_for_all(ends)
        with line.changed:
            for worker in line.left:
                if worker not in ends:
                    line.lay_to(worker)
            for worker, end in ends.items():
                if end.failed:
                    line.lay_to(worker, f"left fit after {self._count(end)}: {end.how}")
            all_ended = len(ends) == line.size
            for key in [key for key in _ends if key[0] <= self.call]:
                del _ends[key]
        line.check()
        if self._at_end and not all_ended:
            _LOG.warning(
                "Worker %d of %d keeps its backups: it is not connected to all workers, so it does "
                "not know whether they have ended fit.",
                *(line.rank, line.size),
            )
        for call in self._at_end if all_ended else ():
            call()

    def _wait_for_all(self, ends: dict[int, _End]) -> None:
        line = self._line

        def over() -> bool:
            return len(ends) == line.size or bool(line.left) or line.broken is not None

        # The lifeline reports a silent worker sooner, so the warning is about one that answers.
        line.until(over, line.patience + SILENT)
        if not over():
            _LOG.warning(
                "Worker %d of %d has ended fit and waits for worker %s, which has not: it still "
                "trains, validates or saves.",
                *(line.rank, line.size),
                ", ".join(str(w) for w in range(line.size) if w not in ends),
            )
            line.until(over, threading.TIMEOUT_MAX)

    def when_all_have_ended(self, call: Callable[[], None]) -> None:
        """Calls `call` at the end of `finish`, when all workers have ended this call of `fit`."""
        self._at_end.append(call)

    def hear(self, what: int) -> None:
        """Ends all workers where another took fewer steps until the same end than this one does."""
        line, ends = self._line, _ends[self.call, what]
        with line.changed:
            mine = ends.get(line.rank)
            for worker, end in ends.items():
                if mine is not None and end.steps != mine.steps and not end.failed:
                    self._stop(worker, what, end, f"ended it after {self._count(mine)}")
            if what != _FIT and len(ends) == line.size:
                del _ends[self.call, what]
            self._look(what)

    def _look(self, what: int) -> None:
        """Starts one timer beside a step that another worker does not take."""
        for worker, end in _ends.get((self.call, what), {}).items():
            beyond = self._begun > max(self._done, end.steps) and what in (_FIT, self._epoch)
            if beyond and self._watched != self._tries:
                self._watched = self._tries
                # Between two epochs a worker only waits, so it raises nothing of its own.
                failed = end.failed and self._epoch != _BETWEEN
                looks = _LONGER if failed else self._looks
                self._later(looks, self._stuck, worker, what, end, self._tries)

    def _later(self, looks: int, function: Callable[..., None], *arguments: Any) -> None:
        """Calls `function(*arguments)` after so many looks, or earlier in a collective."""

        def look() -> None:
            with self._line.changed:
                if looks > 1 and _now is self and not under_way(self._line):
                    self._later(looks - 1, function, *arguments)
                else:
                    function(*arguments)

        waits = threading.Timer(_STUCK, look)
        waits.daemon = True
        waits.start()

    def _stuck(self, worker: int, what: int, end: _End, tried: int) -> None:
        with self._line.changed:
            if _now is self and self._tries == tried and self._begun > max(self._done, end.steps):
                self._stop(worker, what, end, f"is in step {self._next()}")

    def _tell(self, what: int, how: str = "", failed: bool = False) -> None:
        end = _End(self._done, how, failed)
        with self._line.changed:
            _ends[self.call, what][self._line.rank] = end
            self._line.tell("steps", [self.call, what, dataclasses.astuple(end)])
            if not failed:
                self.hear(what)

    def _stop(self, worker: int, what: int, end: _End, mine: str) -> None:
        line = self._line
        ended = "fit" if what == _FIT else f"epoch {what + 1}"
        how = f", because {end.how}" if end.how else ""
        remedy = _EQUAL_STOPS if end.how else _EQUAL_DATA
        line.stop(
            f"Workers cannot go on: worker {worker} of {line.size} ended {ended} after "
            f"{self._count(end)}{how}, but worker {line.rank} {mine}; {remedy}."
        )

    def _count(self, end: _End) -> str:
        return self._count_of(end.steps)

    def _count_of(self, steps: int) -> str:
        return counted(steps * self._width)


def _hear(worker: int, message: list) -> None:
    call, what, end = message
    _ends[call, what][worker] = _End(*end)
    if _now is not None and _now.call == call:
        _now.hear(what)


def _hear_inside(worker: int, message: list) -> None:
    call, count, done = message
    if done is None:
        _inside[call].pop(worker, None)
    else:
        _inside[call][worker] = count, done
        if _now is not None and _now.call == call:
            _now.look_inside()
