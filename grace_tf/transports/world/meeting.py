"""Finds the addresses of all workers where only that of worker 0 is known.

It takes this worker's rank and the address at which worker 0 listens, and returns the addresses of
all workers, the same list on each.  A worker sends worker 0 a free port of its own, and the host
name by which it has found worker 0; worker 0 sees the address from which it connects.
`rendezvous.meet` then runs at these addresses, as where they were known from the start.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import time
from typing import Any

from grace_tf.transports.lifeline.sockets import listen

_MAGIC = "grace_tf meeting"
_LONGEST = 1 << 20  # bytes of a line
_GRACE = 10.0  # seconds beyond its own time that a worker waits for worker 0's answer


def addresses_of_all(master: str, rank: int, size: int, timeout: float, job: str = "") -> list[str]:
    """Every worker's `host:port`, in the order of ranks.

    Args:
      master: `host:port` of worker 0.  The host may have different names on different workers.
      timeout: seconds to wait for the others.
      job: a name that all workers of this job have; workers of other jobs are refused.
    Raises: RuntimeError where not all come in time, two have the same rank, or sizes differ.
    """
    host, _, port = master.rpartition(":")
    # The port stays bound until all addresses are known, so that no other worker gets it.
    with contextlib.ExitStack() as held:
        own_port = held.enter_context(listen(0)).getsockname()[1]
        hello = {"magic": _MAGIC, "job": job, "rank": rank, "size": size}
        hello.update(port=own_port, host=host)
        if rank == 0:
            return _Door(host, int(port), hello, timeout).addresses()
        return _ask(master, hello, timeout)


class _Door:
    """Worker 0's side: all others connect to it."""

    def __init__(self, host: str, port: int, hello: dict[str, Any], timeout: float) -> None:
        self._at, self._port, self._hello, self._timeout = f"{host}:{port}", port, hello, timeout
        self._here: dict[int, tuple[socket.socket, dict[str, Any]]] = {}

    def addresses(self) -> list[str]:
        size, deadline = self._hello["size"], time.monotonic() + self._timeout
        with contextlib.ExitStack() as held:
            try:
                server = held.enter_context(listen(self._port))
            except OSError as error:
                raise RuntimeError(f"Worker 0 cannot listen at {self._at}: {error}.") from error
            refusal = None
            while refusal is None and not self._complete():
                server.settimeout(max(1e-3, deadline - time.monotonic()))
                try:
                    peer = held.enter_context(server.accept()[0])
                except socket.timeout:
                    late = [str(w) for w in range(1, size) if w not in self._here]
                    who = f"Worker{'s' * (len(late) > 1)} {', '.join(late)}"
                    refusal = f"{who} of {size} did not come to {self._at} within "
                    refusal += f"{self._timeout:g} s."
                    break
                refusal = self._let_in(peer)
            answer = {"refused": refusal} if refusal else {"addresses": self._found()}
            for peer, _ in self._here.values():
                _say(peer, answer)
        if refusal is not None:
            raise RuntimeError(refusal)
        return answer["addresses"]

    def _complete(self) -> bool:
        """Whether all workers are here; a worker that has disconnected again does not count."""
        if len(self._here) == self._hello["size"] - 1:
            for rank in [rank for rank, (peer, _) in self._here.items() if _gone(peer)]:
                del self._here[rank]
        return len(self._here) == self._hello["size"] - 1

    def _let_in(self, peer: socket.socket) -> str | None:
        """Adds a worker; returns the refusal for all where it does not fit."""
        hello = _hello(peer)
        if hello is None or hello["job"] != self._hello["job"]:
            peer.close()  # a stranger
            return None
        refusal, rank, size = None, hello["rank"], self._hello["size"]
        if hello["size"] != size:
            refusal = f"Worker {rank} expects {hello['size']} workers, and worker 0 {size}."
        elif not 0 < rank < size or (rank in self._here and not _gone(self._here[rank][0])):
            refusal = f"Two workers came with the rank {rank}: each needs one of its own."
        if refusal is not None:
            _say(peer, {"refused": refusal})
            return refusal
        self._here[rank] = peer, hello
        return None

    def _found(self) -> list[str]:
        """All addresses; worker 0's host is the name by which a worker elsewhere has found it."""
        elsewhere = [hello["host"] for peer, hello in self._here.values() if not _same(peer)]
        host = elsewhere[0] if elsewhere else self._hello["host"]
        found = [f"{host}:{self._hello['port']}"]
        for rank in sorted(self._here):
            peer, hello = self._here[rank]
            found.append(f"{host if _same(peer) else _seen(peer)}:{hello['port']}")
        return found


def _hello(peer: socket.socket) -> dict[str, Any] | None:
    try:
        hello = json.loads(_line(peer, time.monotonic() + 2.0))
        numbers = all(type(hello[name]) is int for name in ("rank", "size", "port"))
        words = all(type(hello[name]) is str for name in ("job", "host"))
        return hello if hello["magic"] == _MAGIC and numbers and words else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _gone(peer: socket.socket) -> bool:
    """Whether a connected worker has closed its connection."""
    try:
        peer.settimeout(1e-3)
        return peer.recv(1, socket.MSG_PEEK) == b""
    except socket.timeout:
        return False
    except OSError:
        return True


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


def _ask(master: str, hello: dict[str, Any], timeout: float) -> list[str]:
    """Worker 0's answer."""
    host, _, port = master.rpartition(":")
    deadline, why = time.monotonic() + timeout, ""
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=left) as peer:
                _say(peer, hello)
                # Worker 0 may have started later, so its timeout ends later, and its answer counts.
                answer = json.loads(_line(peer, time.monotonic() + timeout + _GRACE))
        except (OSError, ValueError) as error:
            why = f" ({error})"
            time.sleep(min(0.1, max(0.0, left)))
            continue
        if "refused" in answer:
            raise RuntimeError(answer["refused"])
        return answer["addresses"]
    raise RuntimeError(
        f"Worker 0 of {hello['size']} did not come to {master} within {timeout:g} s{why}."
    )


def _say(peer: socket.socket, words: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        peer.settimeout(2.0)
        peer.sendall(json.dumps(words).encode() + b"\n")


def _line(peer: socket.socket, deadline: float) -> bytes:
    """Reads one line; OSError where it is not complete at the deadline."""
    data = b""
    while not data.endswith(b"\n") and len(data) < _LONGEST:
        peer.settimeout(max(1e-3, deadline - time.monotonic()))
        more = peer.recv(65536)
        if not more:
            break
        data += more
    return data
