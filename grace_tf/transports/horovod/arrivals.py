"""Who of Horovod's processes has come to its first call of this package.

Until then there is no lifeline, and Horovod does not tell which process it has lost.  So each
process notes its arrival in the store through which Gloo's processes have found each other, and
where they do not meet, the one without a note is named.  The store is the launcher's; under MPI
there is none, and its host and port are empty.
"""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Sequence

_SCOPE = "grace_tf"
_ONCE = 2.0  # seconds for one request
_PAUSE = 0.2  # seconds between two looks


def note(store: tuple[str, str], rank: int) -> None:
    """Notes that the process of this number among all of Horovod's is here."""
    _ask(store, "PUT", rank, b"here")


def missing(store: tuple[str, str], ranks: Sequence[int], patience: float) -> list[int]:
    """Those of these processes that have not come; empty where all have, or nothing tells.

    Some may be alive and come later, as with more data to load.  So where more than one is missing,
    they have `patience` seconds.
    """
    deadline, left = time.monotonic() + patience, [*ranks]
    while True:
        asked, left = left, []
        for rank in asked:
            answer = _ask(store, "GET", rank)
            if answer is None:
                return []
            if answer != 200:
                left.append(rank)
        if len(left) < 2 or time.monotonic() > deadline:
            return left
        time.sleep(_PAUSE)


def _ask(store: tuple[str, str], method: str, rank: int, body: bytes | None = None) -> int | None:
    """The status of the store's answer; None without a store."""
    host, port = store
    if not host or not port:
        return None
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        with contextlib.closing(http.client.HTTPConnection(host, int(port), _ONCE)) as there:
            there.request(method, f"/{_SCOPE}/{rank}", body)
            return there.getresponse().status
    return None
