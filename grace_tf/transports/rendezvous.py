"""Lets all workers wait for each other, for a bounded time, before TensorFlow's server starts.

TensorFlow's first worker would wait for the others forever.  So the workers first meet over plain
TCP at the first worker's address, where its server listens afterwards.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
import zlib
from collections.abc import Sequence

from grace_tf.transports.lifeline import versions
from grace_tf.transports.lifeline.sockets import listen

_HELLO = struct.Struct(
    f"!8sIII{versions.LONGEST}s"
)  # magic, digest of the addresses, rank, size, versions
_MAGIC = b"grace_tf"
_GO = b"go"
_LONGEST = 1000  # bytes of a refusal


def meet(addresses: Sequence[str], rank: int, timeout: float) -> None:
    """Returns when all workers are here; RuntimeError if not within `timeout` seconds."""
    host, _, port = addresses[0].rpartition(":")
    deadline = time.monotonic() + timeout
    digest = zlib.crc32(",".join(addresses).encode())
    hello = _HELLO.pack(_MAGIC, digest, rank, len(addresses), versions.HERE.encode())
    if rank == 0:
        _receive(addresses, int(port), hello, deadline, timeout)
        return
    answer = _ask(host.strip("[]"), int(port), hello, deadline)
    if answer is None:
        raise RuntimeError(
            f"Worker 0 of {len(addresses)} did not come to {addresses[0]} within {timeout:g} s."
        )
    if answer != _GO:
        raise RuntimeError(
            answer.decode() or f"Worker 0 of {len(addresses)} left before all had come."
        )


def _receive(addresses, port: int, hello: bytes, deadline: float, timeout: float) -> None:
    size, refusal = len(addresses), None
    here: dict[int, socket.socket] = {}
    refused: list[socket.socket] = []
    with contextlib.ExitStack() as held:
        try:
            server = held.enter_context(listen(port))
        except OSError as error:
            raise RuntimeError(f"Worker 0 cannot listen at {addresses[0]}: {error}.") from error
        while refusal is None and len(here) < size - 1:
            server.settimeout(max(1e-3, deadline - time.monotonic()))
            try:
                peer = held.enter_context(server.accept()[0])
            except socket.timeout:
                late = [str(worker) for worker in range(1, size) if worker not in here]
                who = f"Worker{'s' * (len(late) > 1)} {', '.join(late)}"
                refusal = f"{who} of {size} did not come within {timeout:g} s."
                break
            rank, refusal = _check(peer, hello, size, here)
            if rank is None:
                peer.close()
            elif refusal is not None:
                refused.append(peer)
            else:
                here[rank] = peer
        gone = [rank for rank, peer in here.items() if not _tell(peer, refusal)]
        for peer in refused:
            _tell(peer, refusal)
    if gone and refusal is None:
        refusal = f"Worker {gone[0]} of {size} left before all had come."
    if refusal is not None:
        raise RuntimeError(refusal)


def _check(peer: socket.socket, hello: bytes, size: int, here) -> tuple[int | None, str | None]:
    """(the rank that has connected, None for a stranger; the reason to refuse it, or None)."""
    try:
        peer.settimeout(2.0)
        magic, digest, rank, theirs, installed = _HELLO.unpack(_exactly(peer, _HELLO.size))
    except (OSError, struct.error):
        return None, None
    if magic != _MAGIC:
        return None, None
    refusal = versions.refusal(rank, size, installed.rstrip(b"\0").decode(errors="replace"))
    if refusal is not None:
        return rank, refusal
    if (digest, theirs) != _HELLO.unpack(hello)[1:4:2]:
        return (
            rank,
            f"Worker {rank} has other addresses than worker 0: all need the same, in one order.",
        )
    if rank in here or not 0 < rank < size:
        return rank, f"Two workers came with the rank {rank}: each needs one of its own."
    return rank, None


def _tell(peer: socket.socket, refusal: str | None) -> bool:
    """Sends the refusal, or None to let the peer go on; False where the peer is gone."""
    try:
        peer.sendall(_GO if refusal is None else refusal.encode()[:_LONGEST])
        peer.shutdown(socket.SHUT_WR)
        peer.settimeout(2.0)
        return refusal is not None or _exactly(peer, len(_GO)) == _GO
    except OSError:
        return False


def _ask(host: str, port: int, hello: bytes, deadline: float) -> bytes | None:
    """Worker 0's answer, empty if its connection ended; None if it cannot be reached in time."""
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left) as peer:
                peer.sendall(hello)
                # Worker 0 may have started later, so its timeout ends later, and its answer counts.
                peer.settimeout(None)
                answer = _exactly(peer, _LONGEST)
                if answer == _GO:
                    peer.sendall(_GO)
                return answer
        except OSError:
            time.sleep(min(0.1, max(0.0, left)))
    return None


def _exactly(peer: socket.socket, count: int) -> bytes:
    """Up to `count` bytes, fewer only at the end of the stream."""
    data = b""
    while len(data) < count and (more := peer.recv(count - len(data))):
        data += more
    return data
