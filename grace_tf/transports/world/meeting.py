"""Finds the addresses of all workers where only that of worker 0 is known.

It takes this worker's rank and the address at which worker 0 listens, and returns the addresses of
all workers, the same list on each.  A worker sends worker 0 a free port of its own, and the host
name by which it has found worker 0; worker 0 sees the address from which it connects.
`rendezvous.meet` then runs at these addresses, as where they were known from the start.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from typing import Any

from grace_tf.transports import reception
from grace_tf.transports.lifeline.sockets import hold

_MAGIC = "grace_tf meeting"


def addresses_of_all(
    master: str,
    rank: int,
    size: int,
    timeout: float,
    job: str = "",
    deadline: float | None = None,
    secret: str = "",
) -> list[str]:
    """Every worker's `host:port`, in the order of ranks.

    Args:
      master: `host:port` of worker 0.  The host may have different names on different workers.
      timeout: seconds to wait for the others.
      job: a name that all workers of this job have; workers of other jobs are refused.
      deadline: when these seconds are over, by `time.monotonic()`; after all of them unless given.
      secret: what only the workers of this job know; without the same they do not meet.
    Raises: RuntimeError where not all come in time, two have the same rank, or sizes differ.
    """
    deadline = time.monotonic() + timeout if deadline is None else deadline
    # The port stays bound until all addresses are known, so that no other worker gets it.
    with contextlib.closing(hold()) as held:
        hello = {"magic": _MAGIC, "job": job, "rank": rank, "size": size}
        hello.update(port=held.getsockname()[1], host=master.rpartition(":")[0])
        if rank > 0:
            peer, answer, _ = reception.call(master, hello, size, timeout, deadline, secret)
            peer.close()
            found = answer.get("addresses")
            if not isinstance(found, list):
                raise RuntimeError(f"What listens at {master} is no worker 0 of this version.")
            return found
        # Worker 0 may be told "localhost" where the others are told its name.
        here = hello["host"].strip("[]") in ("127.0.0.1", "::1")
        with reception.Reception(master, _MAGIC, size, secret, here) as all_others:
            all_others.gather(timeout, deadline, lambda theirs: _refusal(theirs, hello))
            found = _found(all_others.here, hello)
            all_others.answer({"addresses": found})
            return found


def _refusal(theirs: dict[str, Any], here: dict[str, Any]) -> str | None:
    """Why another worker does not belong to this one; None if it does, "" for a stranger."""
    size, port, host = (theirs.get(name) for name in ("size", "port", "host"))
    numbers = type(size) is int and type(port) is int and 0 < port < 2**16
    named = isinstance(host, str) and host.isprintable()
    if not numbers or not named or theirs.get("job") != here["job"]:
        return ""
    if theirs["size"] != here["size"]:
        return (
            f"Worker {theirs['rank']} expects {theirs['size']} workers, and worker 0 "
            f"{here['size']}."
        )
    return None


def _found(here: dict[int, tuple[socket.socket, dict[str, Any]]], own: dict[str, Any]) -> list[str]:
    """All addresses; worker 0's host is the name by which a worker elsewhere has found it."""
    elsewhere = [hello["host"] for peer, hello in here.values() if not _same(peer)]
    host = elsewhere[0] if elsewhere else own["host"]
    found = [f"{host}:{own['port']}"]
    for rank in sorted(here):
        peer, hello = here[rank]
        found.append(f"{host if _same(peer) else _seen(peer)}:{hello['port']}")
    return found


def _same(peer: socket.socket) -> bool:
    """Whether the peer is on this machine."""
    there, here = _ip(peer.getpeername()[0]), _ip(peer.getsockname()[0])
    return there == here or (there.is_loopback and here.is_loopback)


def _seen(peer: socket.socket) -> str:
    seen = _ip(peer.getpeername()[0])
    return f"[{seen}]" if seen.version == 6 else str(seen)


def _ip(text: str):
    found = ipaddress.ip_address(text.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found
