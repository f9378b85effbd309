"""Strangers at the ports of workers, in threads of the test's own process."""

import contextlib
import socket
import threading
import time


def strange(address, said):
    """Waits for a server at the address, connects, sends `said`, and returns the connection."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + 20
    while True:
        try:
            stranger = socket.create_connection((host, int(port)), timeout=20)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            continue
        with contextlib.suppress(OSError):  # it may have been sent away in the midst
            stranger.sendall(said)
        return stranger


class Foreign:
    """Something that listens, and says the same to all; None for nothing.  Gives its address.

    It ends a connection on which it has said something, unless `ends` is false.
    """

    def __init__(self, says, ends=True):
        self._says, self._ends, self._came = says, ends, []
        self._server = socket.create_server(("127.0.0.1", 0))

    def __enter__(self):
        threading.Thread(target=self._serve, daemon=True).start()
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    def _serve(self):
        with contextlib.suppress(OSError):  # until the server is closed
            while True:
                peer = self._server.accept()[0]
                self._came.append(peer)
                peer.sendall(self._says or b"")
                if self._ends and self._says is not None:
                    peer.shutdown(socket.SHUT_WR)

    def __exit__(self, *_):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for peer in self._came:
            peer.close()
