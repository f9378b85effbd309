"""Strangers at the workers' ports, and other programs where worker 0 should be.

All connect from 127.0.0.2: a connection from a machine's own address to one of its free ports may
connect to itself, and then holds the port.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import socket
import threading
import time
from collections.abc import Iterator

from injection.runs import Run

_SOURCE = ("127.0.0.2", 0)
_EACH = 6  # connections to a port at once
_SILENT = 80  # where they say nothing
_DRIP = 0.2  # seconds between two bytes
_HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.5\r\nAccept: */*\r\n\r\n"
_SSH = b"SSH-2.0-OpenSSH_9.6p1 Debian-4\r\n"
_ANSWER = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def words(kind: str, draw: random.Random) -> bytes:
    """What a stranger of this kind says."""
    if kind == "noise":
        return draw.randbytes(draw.choice([8, 100, 5000])) + b"\n" * draw.randrange(2)
    if kind == "brackets":
        return draw.choice(["[", '{"a":']).encode() * 60_000 + b"\n"
    if kind == "HTTP":
        return _HTTP
    if kind == "ssh":
        return _SSH
    if kind == "a byte at a time":
        return b'{"magic": "grace_tf rendezvous", "rank": 1'
    if kind == "a hello without the secret":
        magic = draw.choice(["grace_tf rendezvous", "grace_tf meeting", "grace_tf lifeline"])
        hello = {"magic": magic, "rank": 1, "size": 2, "seconds": 1.0}
        return json.dumps(hello).encode() + b"\n"
    return b""


class Strangers:
    """Connect to every port at which a worker of this package's own code listens.

    With the phase "start" a worker that begins to listen goes on only when they have come, and they
    come to the workers' addresses as soon as something listens there.  With "training" worker 0
    waits before its third step until they have come to all that still listens.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._kind, self._phase = run, run.fault["kind"], run.fault["phase"]
        self._draw = random.Random(run.fault["seed"])
        self._held: list[socket.socket] = []
        self._dripped, self._said = 0.0, -1
        self._done = threading.Event()
        self._folder = pathlib.Path(run.folder)

    def attack(self) -> None:
        seen: set[int] = set()
        while not self._done.wait(0.005):
            if self._phase == "start" and not (self._folder / "training").exists():
                for port in [*self._listening(), *self._run.ports]:
                    if port not in seen and self._come(port):
                        seen.add(port)
                        (self._folder / f"attacked-{port}").touch()
            elif self._phase == "training" and (self._folder / "training").exists():
                for port in [*self._listening(), *self._run.ports]:
                    self._come(port)
                (self._folder / "attacked").touch()
                self._phase = "over"
            self._drip()

    def _listening(self) -> list[int]:
        """The ports of Python's servers in the workers, which tell of them."""
        told = self._folder.glob("ports-*")
        return [int(port) for path in told for port in path.read_text().split()]

    def _come(self, port: int) -> bool:
        """Whether something listens there, at which they then are."""
        for _ in range(_SILENT if self._kind == "silent connections" else _EACH):
            stranger = socket.socket()
            stranger.settimeout(1.0)
            try:
                stranger.bind(_SOURCE)
                stranger.connect(("127.0.0.1", port))
            except OSError:
                stranger.close()
                return False
            self._held.append(stranger)
            if not (self._folder / "fault").exists():
                (self._folder / "fault").write_text(repr(time.time()))
            if self._kind != "a byte at a time":
                with contextlib.suppress(OSError):  # it may have been sent away in the midst
                    stranger.sendall(words(self._kind, self._draw))
        return True

    def _drip(self) -> None:
        if self._kind == "a byte at a time" and time.time() > self._dripped + _DRIP:
            self._dripped = time.time()
            self._said += 1
            said = words(self._kind, self._draw)
            for stranger in self._held:
                with contextlib.suppress(OSError):  # it was sent away
                    stranger.send(said[self._said % len(said) :][:1])

    def leave(self) -> None:
        self._done.set()
        for stranger in self._held:
            stranger.close()


@contextlib.contextmanager
def strangers(run: Run) -> Iterator[None]:
    """Strangers as long as the run lasts."""
    here = Strangers(run)
    thread = threading.Thread(target=here.attack, daemon=True)
    thread.start()
    try:
        yield
    finally:
        here.leave()
        thread.join()


@contextlib.contextmanager
def taken(run: Run) -> Iterator[None]:
    """Something listens at the port of the faulty worker, and answers as the kind of fault says.

    A program that listens in place of worker 0 may send some bytes, and may then close the
    connection.
    """
    says = {"ssh": _SSH, "HTTP": _ANSWER, "noise": random.Random(run.fault["seed"]).randbytes(200)}
    said = says.get(run.fault.get("says", ""), b"")
    server = socket.create_server(("", run.ports[run.fault["worker"]]))
    held: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):  # until the server is closed
            while True:
                peer = server.accept()[0]
                held.append(peer)
                peer.sendall(said)
                if said:
                    peer.shutdown(socket.SHUT_WR)

    threading.Thread(target=serve, daemon=True).start()
    pathlib.Path(run.folder, "fault").write_text(repr(time.time()))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        for peer in held:
            peer.close()
