"""`Forwarder`: hands the connections of one server on to another, such as from the workers'
namespaces to a server of the launcher."""

from __future__ import annotations

import contextlib
import socket
import threading

_PIECE = 1 << 16  # bytes


class Forwarder:
    """A context in which each connection to `server` goes on to `host:port`, both directions."""

    def __init__(self, server: socket.socket, host: str, port: int):
        self._server, self._to = server, (host, port)
        self._open: set[socket.socket] = set()
        self._lock, self._ended = threading.Lock(), False

    def __enter__(self) -> Forwarder:
        self._server.setblocking(True)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        with self._lock:
            self._ended = True
            for each in (self._server, *self._open):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
        self._thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the end
            while not self._ended:
                caller = self._server.accept()[0]
                threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError), caller, socket.create_connection(self._to) as called:
            if not self._begin(caller, called):
                return
            back = threading.Thread(target=_copy, args=(called, caller), daemon=True)
            back.start()
            _copy(caller, called)
            back.join()
            with self._lock:
                self._open -= {caller, called}

    def _begin(self, *ends: socket.socket) -> bool:
        """Notes the ends of a connection; False where this context has ended."""
        with self._lock:
            if not self._ended:
                self._open.update(ends)
            return not self._ended


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # an end is gone
        while piece := source.recv(_PIECE):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
