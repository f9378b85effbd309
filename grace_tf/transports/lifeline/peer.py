"""One connection of the lifeline: lines come in from a peer, and how long none has come.

A line is a JSON list, [worker, topic, data].
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

from grace_tf.transports import versions

_SENDING = 5.0  # seconds that a peer may take to accept what is sent to it
_LONGEST = 1 << 16  # bytes of a line; only a stranger sends longer ones


class Peer:
    """One connection, and how long nothing has come from it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_SENDING)
        self.connection = connection
        self.worker: int | None = None  # None until it has said who it is
        self.left = b""
        self.silent = 0.0

    def lines(self) -> Iterator[bytes] | None:
        """The whole lines that have come; None at the end of the connection."""
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
        """Sends; that the connection is lost is found when it is read."""
        with contextlib.suppress(OSError):
            self.connection.sendall(line)

    def introduce(self, rank: int, token: int) -> None:
        """Says to worker 0 who this is, by the token that all workers have got."""
        self.send(json.dumps([rank, "hello", [token, versions.HERE]]).encode() + b"\n")

    def introduced(self, topic: Any, data: Any, token: int) -> str | None:
        """The versions of a worker whose first line said so; None of a stranger."""
        known = topic == "hello" and isinstance(data, list) and len(data) == 2 and data[0] == token
        return str(data[1]) if known else None

    def silence(self) -> str:
        """What is wrong with a worker that is silent, to follow its name."""
        return f"has not answered for {self.silent:.0f} s: it is stopped, or its machine hangs"
