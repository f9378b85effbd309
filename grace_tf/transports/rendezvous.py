"""Lets all workers wait for each other, for a bounded time, before TensorFlow's server starts.

TensorFlow's first worker would wait for the others forever.  So the workers first meet over plain
TCP at the first worker's address, where its server listens afterwards.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any

from grace_tf.transports import reception
from grace_tf.transports.lifeline import versions
from grace_tf.transports.lifeline.sockets import on_one_machine
from grace_tf.transports.starting import Starting

_MAGIC = "grace_tf rendezvous"


def meet(
    addresses: Sequence[str],
    rank: int,
    timeout: float,
    deadline: float | None = None,
    secret: str = "",
    alike: Sequence[str] | None = None,
) -> Starting:
    """Returns when all workers are here, with the connections that watch over what follows.

    Args:
      timeout: seconds to wait for the others.
      deadline: when they are over, by `time.monotonic()`; after all of them unless given.
      secret: what only the workers of this job know; without the same they do not meet.
      alike: what all must have alike, where it is not the addresses.
    Raises: RuntimeError where a worker does not come in time, or does not fit to worker 0.
    """
    size = len(addresses)
    deadline = time.monotonic() + timeout if deadline is None else deadline
    digest = zlib.crc32(",".join(alike or addresses).encode())
    hello = {"magic": _MAGIC, "rank": rank, "size": size, "addresses": digest}
    hello["versions"] = versions.HERE
    if rank > 0:
        peer, _, rest = reception.call(addresses[0], hello, size, timeout, deadline, secret)
        return Starting(rank, size, {0: peer}, rest)
    here = on_one_machine([address.rpartition(":")[0] for address in addresses])
    with reception.Reception(addresses[0], _MAGIC, size, secret, here) as all_others:
        all_others.gather(timeout, deadline, lambda theirs: _refusal(theirs, hello))
        all_others.answer({"go": True})
        return Starting(rank, size, all_others.keep())


def _refusal(theirs: dict[str, Any], here: dict[str, Any]) -> str | None:
    """The reason why another worker is refused; None if it fits, "" if it is no worker."""
    installed, rank = theirs.get("versions"), theirs["rank"]
    if not isinstance(installed, str) or not (installed.isascii() and installed.isprintable()):
        return ""
    refusal = versions.refusal(rank, here["size"], installed[: versions.LONGEST])
    if refusal is None and any(theirs.get(key) != here[key] for key in ("addresses", "size")):
        return f"Worker {rank} has other addresses than worker 0: all need the same, in one order."
    return refusal
