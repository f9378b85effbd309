"""Turns SIGINT and SIGTERM to the launcher into the exception `Stopped` in the main thread."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class Stopped(Exception):
    """A signal asked the launcher itself to end."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Signals:
    """A context, for the main thread, in which the first SIGINT or SIGTERM raises Stopped.

    Within `hold` a signal waits until `hold` ends, so none interrupts the start of a worker.  After
    `ignore` signals do nothing, so that none interrupts the clean-up, which ends in limited time.
    """

    def __enter__(self) -> Signals:
        self._held, self._pending, self._before = False, None, {}
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM):
                self._before[each] = signal.signal(each, self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._before:
            signal.signal(each, self._before[each])

    def _stop(self, number: int, frame: object) -> None:
        self.ignore()
        if not self._held:
            raise Stopped(number)
        self._pending = number

    def ignore(self) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        self._held = True
        yield  # where a start fails, the run ends anyway, without the signal
        self._held = False
        if self._pending is not None:
            raise Stopped(self._pending)
