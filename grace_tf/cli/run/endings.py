"""Puts into words how the workers of a run ended, and finds which of them failed first."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping

# As the sentences of the lifeline (transports/lifeline/connections.py) begin.
_BLAME = re.compile(r"Worker \d+ of \d+ cannot go on, worker (\d+) ")
_SIGNALS = frozenset(signal.Signals)


def ending(code: int) -> str:
    """A return code of `subprocess` in words: "ended with exit code 7", "was ended by SIGKILL".

    A program whose child was ended by a signal, such as the far end of a host, returns 128 + the
    signal's number.  Other programs may return the same number, so both meanings are named.
    """
    if code < 0:
        return f"was ended by {_signal_name(-code)}"
    meaning = f" (128 + {signal.Signals(code - 128).name})" if code - 128 in _SIGNALS else ""
    return f"ended with exit code {code}{meaning}"


def failed_first(rank: int, codes: Mapping[int, int], last: Callable[[int], str]) -> int:
    """The worker that failed first, where `rank` was the first to end with a code other than 0.

    A worker that has failed may need time to end, and others may end before it; their last lines
    name it.  `codes` are the return codes of the workers that have ended; `last(rank)` is the last
    line of a worker on stderr.
    """
    seen: set[int] = set()
    while rank not in seen:
        seen.add(rank)
        match = _BLAME.search(last(rank))
        if match and codes.get(int(match[1])):
            rank = int(match[1])
    return rank


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
