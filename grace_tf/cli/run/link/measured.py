"""Measures the rate and the latency of a connection both of whose ends this process holds."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

from grace_tf.cli.run.link.rates import Link

_ROUNDS = 5  # of one byte there and back
_SECONDS = 0.5  # of receiving, at most; then at least these many bytes within the longest time
_LEAST, _LONGEST = 40_000, 3.0
_WAIT = 60.0  # seconds that one send or receive may take
_PIECE = 1 << 14  # bytes
_BUFFER = 1 << 16  # bytes, so that little is under way when the measurement ends
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing drops what was not sent yet


def measure(here: socket.socket, there: socket.socket, link: Link) -> tuple[float, float]:
    """(bits a second from `here` to `there`, seconds that a byte takes); closes the connection.

    The rate counts what arrives after the bursts of both token buckets have passed.
    """
    for end in (here, there):
        end.settimeout(_WAIT + 20 * link.latency)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    with here, there:
        latency = min(_there_and_back(here, there) for _ in range(_ROUNDS)) / 2
        sender = threading.Thread(target=_send, args=(here,), daemon=True)
        sender.start()
        rate = _received(there, 2 * link.burst)
        here.shutdown(socket.SHUT_RDWR)  # wakes the sender
        sender.join()
    return rate, latency


def _there_and_back(here: socket.socket, there: socket.socket) -> float:
    began = time.perf_counter()
    for end, other in ((here, there), (there, here)):
        end.sendall(b".")
        other.recv(1)
    return time.perf_counter() - began


def _send(end: socket.socket) -> None:
    piece = bytes(_PIECE)
    with contextlib.suppress(OSError):  # the other end has seen enough
        while True:
            end.sendall(piece)


def _received(end: socket.socket, skipped: int) -> float:
    """The bits a second that arrive after the first `skipped` bytes."""
    while skipped > 0:
        skipped -= _bytes(end)
    began = last = time.perf_counter()
    count = 0
    while last - began < (_SECONDS if count >= _LEAST else _LONGEST):
        count += _bytes(end)
        last = time.perf_counter()
    return 8 * count / (last - began)


def _bytes(end: socket.socket) -> int:
    count = len(end.recv(_PIECE))
    if not count:
        raise ConnectionError("The connection ended while it was measured.")
    return count
