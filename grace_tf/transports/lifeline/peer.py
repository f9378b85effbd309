"""`Peer`: one connection of the lifeline.  It sends and reads lines, and times silence.

A line is a JSON list, [worker, topic, data].
"""

from __future__ import annotations

import contextlib
import socket

_SENDING = 5.0  # seconds that a peer may take to accept what is sent to it
_LONGEST = 1 << 16  # bytes of a line of the lifeline


class Peer:
    """A connection with a proven worker, and the time since something has come from there."""

    def __init__(self, connection: socket.socket, worker: int, left: bytes = b"") -> None:
        """`left` has come already."""
        with contextlib.suppress(OSError):  # it has left already, which shows when it is read
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_SENDING)
        self.connection, self.worker, self._left = connection, worker, left
        self._unsent = b""  # of lines that the other has not accepted in time
        self.silent = 0.0

    def lines(self) -> list[bytes] | None:
        """The complete lines that have come; None at the end of the connection."""
        try:
            data = self.connection.recv(_LONGEST)
        except OSError:
            return None
        if not data or len(self._left) > _LONGEST:
            return None
        self.silent = 0.0
        self._left += data
        return self.whole()

    def whole(self) -> list[bytes]:
        """The lines that have come already."""
        *whole, self._left = self._left.split(b"\n")
        return whole

    def send(self, line: bytes) -> None:
        """Sends a line.

        A paused worker may accept only a part of it in time.  The rest is sent before the next
        line.  Nothing is raised if the connection is lost: `lines` finds that out.
        """
        self._unsent += line
        with contextlib.suppress(OSError):
            while self._unsent:
                self._unsent = self._unsent[self.connection.send(self._unsent) :]

    def silence(self) -> str:
        """Words about a silent worker, which follow its name."""
        return silence(self.silent)


def silence(seconds: float) -> str:
    """Words about a worker that has been silent for so long, which follow its name."""
    return f"has not answered for {seconds:.0f} s: it is stopped, or its machine hangs"
