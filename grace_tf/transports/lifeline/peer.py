"""`Peer`: one connection of the lifeline.  It sends and reads lines, and times silence.

A line is a JSON list, [worker, topic, data].
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from grace_tf.transports.lifeline import frames, versions

_SENDING = 5.0  # seconds that a peer may take to accept what is sent to it
_LONGEST = 1 << 16  # bytes of a line; only a stranger sends longer ones


class Peer:
    """One connection, and the time since something came from it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_SENDING)
        self.connection = connection
        self.worker: int | None = None  # None until it has introduced itself
        self.left = b""
        self.silent = 0.0
        self.unknown = 0.0  # the seconds in which it has not introduced itself

    def lines(self) -> Iterator[bytes] | None:
        """The complete lines that have come; None at the end of the connection."""
        try:
            data = self.connection.recv(_LONGEST)
        except OSError:
            return None
        if not data or len(self.left) > _LONGEST:
            return None
        self.silent = 0.0
        *whole, self.left = (self.left + data).split(b"\n")
        return iter(whole)

    def send(self, line: bytes) -> None:
        """Sends a line; a lost connection shows later, when it is read."""
        with contextlib.suppress(OSError):
            self.connection.sendall(line)

    def introduce(self, rank: int, token: int) -> None:
        """Introduces this worker to worker 0, with the token that all workers have."""
        self.send(frames.encode([rank, "hello", [token, versions.HERE]]))

    def introduced(self, topic: Any, data: Any, token: int) -> str | None:
        """The versions in a worker's first line; None for a stranger."""
        known = topic == "hello" and isinstance(data, list) and len(data) == 2 and data[0] == token
        return str(data[1]) if known else None

    def silence(self) -> str:
        """Words about a silent worker, which follow its name."""
        return f"has not answered for {self.silent:.0f} s: it is stopped, or its machine hangs"
