"""Workers take equally many steps in a call of `fit`, or all of them end with one sentence.

Each worker counts its steps and sends the ends of its epochs and calls of `fit` to the others over
the lifeline, so that a step costs nothing.  A worker in a step that another never takes would wait
in its collective until the timeout; it ends all of them instead.
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

# Seconds in a step that another worker does not take, before it counts as one too many: this worker
# may be about to find that its data end too.  Where their number is unknown that may take as many
# times longer, unless the step is in a collective, for which it has got its data.
_STUCK = 1.0
_LONGER_IF_UNKNOWN = 30
_LOG = logging.getLogger("grace_tf")
_STOPPED = "a callback set stop_training"
# By how a worker ended too early.
_REMEDIES = {
    "": "all workers need equally many batches (grace_tf.shard deals them out so) and must stop at "
    "the same step",
    _STOPPED: "all workers must stop at the same step: for EarlyStopping and others that look at "
    "metrics put grace_tf.keras.Callback() first, which gives all workers the same metrics",
}
_FIT = -1  # what ends, beside the epochs 0, 1, …


@dataclasses.dataclass(frozen=True)
class _End:
    """After how many steps of `fit` a worker ended it or an epoch, and how."""

    steps: int
    how: str = ""
    failed: bool = False


# By the number of the call of `fit` and what ended; of every worker.
_ends: dict[tuple[int, int], dict[int, _End]] = collections.defaultdict(dict)
_data: dict[int, dict[int, int]] = collections.defaultdict(dict)  # call, worker: digest of arrays
# By call and worker: the calls of `fit` inside it that were begun, and after how many steps.
_inside: dict[int, dict[int, tuple[int, int]]] = collections.defaultdict(dict)
_calls = itertools.count(1)
_now: Steps | None = None  # of the call of `fit` that is under way


def now() -> Steps | None:
    """The steps of the call of `fit` that is under way between several workers, or None."""
    return _now


class Steps:
    """Counts this worker's steps in one call of `fit`; use it as `with Steps(…):` around the call.

    `counted` says whether the number of batches is known before, `width` how many of them Keras
    takes in one step.
    """

    def __init__(self, line: Lifeline, counted: bool, width: int = 1) -> None:
        self._line, self._width = line, width
        self._looks = 1 if counted else _LONGER_IF_UNKNOWN
        self.call = next(_calls)
        self._epoch, self._in_epoch = 0, False
        self._begun = self._done = 0
        self._tries = 0  # to take a step, one of them for each end of the data too
        self._watched = 0  # the last try that another worker may not have made
        self._inner = 0  # trainings that this worker has begun inside the call, in callbacks
        self._ended = False
        self._at_end: list[Callable[[], None]] = []

    def __enter__(self) -> Steps:
        global _now
        _now = self
        self._line.on("steps", _hear)
        self._line.on("inside", _hear_inside)
        return self

    def __exit__(self, kind, error, trace) -> None:
        global _now
        if error is not None:
            self._line.why(error)  # another worker's end, which this one may still find
            if self._line.broken is None:
                self._tell(_FIT, first_line(error), failed=True)
        _inside.pop(self.call, None)
        _now = None

    def begin(self) -> None:
        """A step begins."""
        self._begun = self._done + 1
        self._tries += 1
        with self._line.changed:
            self._look(self._epoch)
            self._look(_FIT)
            self.look_inside()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Around a training inside the call, as in a callback: all workers must begin it."""
        self._inner += 1
        self._line.tell("inside", [self.call, self._inner, self._done])
        try:
            yield
        finally:
            self._line.tell("inside", [self.call, self._inner, None])

    def look_inside(self) -> None:
        """Ends all workers where another trains inside a callback and this one does not come."""
        # A copy, since the lifeline's thread adds to it.
        for worker, (count, done) in list(_inside[self.call].items()):
            if self._misses(count, done):
                self._later(self._looks, self._alone, worker, self._tries)

    def _misses(self, count: int, done: int) -> bool:
        # In a step that the other has not taken, this worker waits for the other, which waits too.
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
        """The step has ended."""
        self._done = self._begun

    def take_back(self) -> None:
        """There was no data for the step."""
        self._begun = self._done

    def begin_epoch(self, epoch: int) -> None:
        """An epoch of this number begins."""
        self._epoch, self._in_epoch = epoch, True

    def compare_data(self, x: np.ndarray) -> None:
        """Warns, on worker 0, if all workers train on the same rows."""
        rows = (repr(x.shape).encode(), x[:1].tobytes(), x[-1:].tobytes())
        told = [self.call, zlib.crc32(b"".join(rows))]
        self._line.on("data", lambda worker, told: self._hear_data(worker, *told))
        with self._line.changed:
            self._line.tell("data", told)
            self._hear_data(self._line.rank, *told)

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

    def end_epoch(self, stopped: bool) -> None:
        """The epoch has had its steps; RuntimeError if another worker's had another number.

        Does nothing where that has been said before, or a step is under way.
        """
        if self._in_epoch and self._begun == self._done:
            self._in_epoch = False
            self._tell(self._epoch, _STOPPED if stopped else "")
        self._line.check()

    def finish(self, stopped: bool) -> None:
        """Returns when all workers have ended `fit`, or the timeout has passed.

        Raises RuntimeError where one of them took another number of steps, or failed.  Then calls
        what `when_all_have_ended` was given, unless the timeout has passed before.
        """
        line, ends = self._line, _ends[self.call, _FIT]
        with line.changed:
            self._ended = True
            self.look_inside()
        self._tell(_FIT, _STOPPED if stopped else "")
        if line.joined(0):
            # Longer than the lifeline waits for one that is silent, so that it is named.
            patience = line.patience + SILENT
            line.until(lambda: len(ends) == line.size or bool(line.left), patience)
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
                "Worker %d of %d keeps its backups: not all workers have ended fit in time.",
                *(line.rank, line.size),
            )
        for call in self._at_end if all_ended else ():
            call()

    def when_all_have_ended(self, call: Callable[[], None]) -> None:
        """Calls `call` at the end of `finish`, when all workers have ended this call of `fit`."""
        self._at_end.append(call)

    def hear(self, what: int) -> None:
        """Ends all workers where another took fewer steps until the same end, or is about to."""
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
        """Waits, once, beside a step that another worker does not take."""
        for worker, end in _ends.get((self.call, what), {}).items():
            beyond = self._begun > max(self._done, end.steps) and what in (_FIT, self._epoch)
            if beyond and self._watched != self._tries:
                self._watched = self._tries
                self._later(self._looks, self._stuck, worker, what, end, self._tries)

    def _later(self, looks: int, function: Callable[..., None], *told: Any) -> None:
        """Calls `function(*told)` when this worker's step surely has its data."""

        def look() -> None:
            with self._line.changed:
                if looks > 1 and _now is self and not under_way(self._line):
                    self._later(looks - 1, function, *told)
                else:
                    function(*told)

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
        line.stop(
            f"Workers cannot go on: worker {worker} of {line.size} ended {ended} after "
            f"{self._count(end)}{how}, but worker {line.rank} {mine}; {_REMEDIES[end.how]}."
        )

    def _count(self, end: _End) -> str:
        return counted(end.steps * self._width)


def _hear(worker: int, told: list) -> None:
    call, what, end = told
    _ends[call, what][worker] = _End(*end)
    if _now is not None and _now.call == call:
        _now.hear(what)


def _hear_inside(worker: int, told: list) -> None:
    call, count, done = told
    if done is None:
        _inside[call].pop(worker, None)
    else:
        _inside[call][worker] = count, done
        if _now is not None and _now.call == call:
            _now.look_inside()
