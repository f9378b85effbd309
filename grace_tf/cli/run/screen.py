"""Merges the output of the workers of a run.

It reads the pipes of all workers, and writes whole lines to the launcher's stdout and stderr.  A
line that a program redraws with \\r (a progress bar) has states: on a terminal worker 0's are drawn
in place and those of the others dropped; elsewhere one state a second becomes a line.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from grace_tf.cli.run.start_up import is_start_up_line

PREFIXES = ("always", "auto", "never")
_REDRAW_SECONDS = 1.0
_CODES = re.compile(rb"\x1b\[[\d;?]*[A-HJKSTfhlsu]")  # moves, erases, the cursor; colours stay
_UP = re.compile(rb"\x1b\[\d*A")
_CUT = re.compile(rb"(.*?)(\x1b(?:\[[\d;?]*)?)?", re.S)  # text with an incomplete code at its end
_ERASE = "\r\x1b[K"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"  # a state wider than the terminal is cut, not folded


class Screen:
    """The launcher's stdout and stderr, written to by one thread per pipe.

    `prefix` says which lines begin with the rank: "always" all; "auto" all but worker 0's; "never"
    none.  Unless `verbose`, TensorFlow's start-up lines on stderr are left out.

    Attributes: last, the last line of each worker on stderr, without the rank.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO, prefix: str, verbose: bool) -> None:
        if prefix not in PREFIXES:
            raise ValueError(f"prefix is one of {', '.join(PREFIXES)}, not {prefix!r}.")
        self._stdout, self._stderr = stdout, stderr
        self._prefix = prefix
        self._verbose = verbose
        self.last: dict[int, str] = {}
        self._lock = threading.Lock()
        self._drawn: tuple[str, TextIO] | None = None  # the state that the cursor stands behind

    def environment(self, rank: int) -> dict[str, str]:
        """Variables that tell worker 0 that a terminal shows its output, and how large it is."""
        if rank != 0 or not (self._stdout.isatty() and self._stderr.isatty()):
            return {}
        size = os.get_terminal_size(self._stdout.fileno())
        columns = max(1, size.columns - len(self._label(rank)))
        # rich needs the first; tqdm and Keras draw without it.
        return {"TTY_COMPATIBLE": "1", "COLUMNS": str(columns), "LINES": str(size.lines)}

    def follow(self, rank: int, pipe, errors: bool) -> None:
        """Shows what a worker writes into its pipe for stdout (or `errors`), until it is closed."""
        stream = self._stderr if errors else self._stdout
        label = self._label(rank)
        hides = errors and not self._verbose
        shown, shown_at = None, 0.0
        with pipe:
            for text, kind in _states(pipe):
                if kind == "line":
                    if text != shown and not (hides and is_start_up_line(text)):
                        self._line(label + text, stream, ends=rank == 0)
                        if errors and text.strip():
                            self.last[rank] = text.strip()
                    shown = None
                elif kind == "state" and stream.isatty():
                    if rank == 0:
                        self._draw(label + text, stream)
                elif time.monotonic() - shown_at >= _REDRAW_SECONDS:
                    shown, shown_at = text, time.monotonic()
                    self._line(label + text, stream)

    def say(self, sentence: str) -> None:
        """Prints a line of the launcher itself on stderr."""
        self._line(f"[grace_tf] {sentence}", self._stderr)

    def _label(self, rank: int) -> str:
        unnamed = self._prefix == "never" or (self._prefix == "auto" and rank == 0)
        return "" if unnamed else f"[{rank}] "

    def _line(self, text: str, stream: TextIO, ends: bool = False) -> None:
        """Prints a line above the drawn state; with `ends` in its place, if of the same stream."""
        with self._lock:
            drawn = self._drawn if stream.isatty() else None
            if drawn:
                _write(_ERASE, drawn[1])
                if ends and drawn[1] is stream:
                    self._drawn = drawn = None
            _write(text + "\n", stream)
            if drawn:
                _write(_NO_WRAP + drawn[0] + _WRAP, drawn[1])

    def _draw(self, text: str, stream: TextIO) -> None:
        with self._lock:
            self._drawn = text, stream
            _write(_ERASE + _NO_WRAP + text + _WRAP, stream)


def _write(text: str, stream: TextIO) -> None:
    stream.write(text)
    stream.flush()


def _states(pipe) -> Iterator[tuple[str, str]]:
    """(text, kind): a "line"; of one redrawn with \\r the "state" whenever some of it has come; a
    line that goes up to redraw one above it (displays of several lines) is a "frame"."""
    left = b""
    while chunk := pipe.read1(1 << 16):
        *whole, left = (left + chunk).replace(b"\r\n", b"\n").split(b"\n")
        for line in whole:
            kind = "frame" if _UP.search(line) else "line"
            yield _state(line).decode(errors="replace"), kind
        seen, part = _CUT.fullmatch(left).groups(b"")
        if b"\r" in seen and (state := _state(seen)):
            up = _UP.search(seen)
            returned = _CODES.sub(b"", seen).endswith(b"\r")
            left = state + b"\r" if returned else b"\r" + state  # drops the earlier states
            left = (up.group() if up else b"") + left + part
            yield state.decode(errors="replace"), "state"
    if state := _state(left):
        yield state.decode(errors="replace"), "line"


def _state(line: bytes) -> bytes:
    """What a terminal shows of a line with carriage returns: the last state not empty.

    It leaves out what shows nothing: Keras' backspaces before its carriage return, and rich's codes
    that erase the line (with the rank in it), move the cursor and hide it.
    """
    states = (state.rstrip(b"\b") for state in reversed(_CODES.sub(b"", line).split(b"\r")))
    return next((state for state in states if state), b"")
