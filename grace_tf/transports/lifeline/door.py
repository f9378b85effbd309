"""Protects a port of a worker: a caller must prove that it knows the secret of the job.

The server gives a caller a challenge.  The caller answers with its hello, which is signed by the
secret and the challenge, and has a challenge of its own, by which the server's answer is signed.
All are lines of JSON (frames.py), and nothing else is read before.  The number of callers without
a proof, their time and the length of their line are limited.  A caller that fails is disconnected
without an answer.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import selectors
import socket
import threading
import time
from typing import Any, NamedTuple

from grace_tf.transports.lifeline import frames

Words = dict[str, Any]

SPEAKING = 5.0  # seconds from a connection to the end of its hello
SENDING = 2.0  # seconds that a peer may take to accept what is sent to it
STRANGERS = 64  # connections without a hello, at most; the oldest one goes
LONGEST_HELLO = 4096  # bytes
REPORTS = 60.0  # seconds between two lines of the log about strangers
_PAUSE = 0.05  # seconds, where this process may open no more files
_HELLO, _ANSWER = "hello ", "answer "  # so that no hello can be given back as an answer


class _Caller(NamedTuple):
    until: float  # by `time.monotonic()`
    challenge: str
    said: bytes


class Door:
    """A server, and the callers that have not proved themselves yet.

    All events of `selector` whose data is this object are for `look`.

    Attributes: impostors, the number of hellos without the proof.
    """

    def __init__(self, server: socket.socket, selector: Any, magic: str, secret: str) -> None:
        self._server, self._selector = server, selector
        self._magic, self._secret = magic, secret
        self._callers: dict[socket.socket, _Caller] = {}  # the oldest first
        self.impostors, self.closed = 0, False
        server.setblocking(False)
        selector.register(server, selectors.EVENT_READ, self)

    @property
    def sockets(self) -> list[socket.socket]:
        """All that this door holds open."""
        return [] if self.closed else [self._server, *self._callers]

    @property
    def until(self) -> float:
        """When the time of the first caller is over."""
        return min((caller.until for caller in self._callers.values()), default=float("inf"))

    def look(self, ready: socket.socket) -> tuple[socket.socket, Words] | None:
        """Reads a socket that is ready; returns the connection and hello of a proved worker."""
        if self.closed:
            return None  # since the event came
        if ready is not self._server:
            return self._hear(ready) if ready in self._callers else None
        self._accept()
        return None

    def expire(self) -> None:
        """Closes the connections of callers that have not proved themselves in time."""
        for peer, caller in list(self._callers.items()):
            if caller.until <= time.monotonic():
                self._send_away(peer)

    def answer(self, peer: socket.socket, hello: Words, words: Words) -> None:
        """Answers a hello; a lost connection shows later, when it is read."""
        signed = {"magic": self._magic, **words}
        say(peer, frames.signed(signed, self._secret, f"{_ANSWER}{hello.get('challenge')}"))

    def close(self) -> None:
        """Ends the listening, and all connections that have not proved themselves."""
        for held in self.sockets:
            self._selector.unregister(held)
            held.close()
        self._callers.clear()
        self.closed = True

    def _accept(self) -> None:
        try:
            peer = self._server.accept()[0]
        except (BlockingIOError, ConnectionError):
            return  # it has left already
        except OSError:  # this process has no file left: an older caller makes room
            peer = None
        if self._callers and (peer is None or len(self._callers) >= STRANGERS):
            self._send_away(next(iter(self._callers)))
        elif peer is None:
            time.sleep(_PAUSE)  # others of this process hold the files; the caller still waits
        if peer is not None:
            peer.setblocking(False)
            challenge = secrets.token_hex(16)
            self._callers[peer] = _Caller(time.monotonic() + SPEAKING, challenge, b"")
            self._selector.register(peer, selectors.EVENT_READ, self)
            with contextlib.suppress(OSError):  # its end shows when it is read
                peer.sendall(frames.encode({"magic": self._magic, "challenge": challenge}))

    def _hear(self, peer: socket.socket) -> tuple[socket.socket, Words] | None:
        try:
            more = peer.recv(LONGEST_HELLO)
        except BlockingIOError:
            return None
        except OSError:
            more = b""
        caller = self._callers[peer]
        said = caller.said + more
        self._callers[peer] = caller._replace(said=said)
        line, end, rest = said.partition(b"\n")
        hello = self._proved(line, caller.challenge) if end and not rest else None
        if hello is not None:
            self._selector.unregister(peer)
            del self._callers[peer]
            peer.settimeout(SENDING)
            return peer, hello
        if end or not more or len(said) > LONGEST_HELLO:
            self._send_away(peer)
        return None

    def _proved(self, line: bytes, challenge: str) -> Words | None:
        hello = _words(line, self._magic)
        if hello is None or frames.proved(hello, self._secret, _HELLO + challenge):
            return hello
        self.impostors += 1
        return None

    def _send_away(self, peer: socket.socket) -> None:
        report(peer, self._callers.pop(peer).said)
        self._selector.unregister(peer)
        peer.close()


def introduce(
    peer: socket.socket, hello: Words, secret: str, deadline: float
) -> tuple[Words | None, bytes | None, bytes]:
    """Says a hello at another worker's door.

    Returns: the answer, None where nothing there has proved that it knows the secret until the
      deadline; the last line that came, None without any; and what has come after it.
    """
    lines = _Lines(peer, deadline)
    line = lines.next()
    challenge = _words(line or b"", hello["magic"])
    if challenge is None:
        return None, line, b""
    mine = secrets.token_hex(16)
    words = {**hello, "challenge": mine}
    say(peer, frames.signed(words, secret, f"{_HELLO}{challenge.get('challenge')}"))
    line = lines.next()
    answer = _words(line or b"", hello["magic"])
    if answer is not None and not frames.proved(answer, secret, _ANSWER + mine):
        answer = None
    return answer, line, lines.rest


def say(peer: socket.socket, words: Words) -> None:
    """Sends a line; a lost connection shows later, when it is read."""
    with contextlib.suppress(OSError):
        peer.settimeout(SENDING)
        peer.sendall(frames.encode(words))


def _words(line: bytes, magic: str) -> Words | None:
    """What a line of this protocol says; None for any other line."""
    with contextlib.suppress(ValueError):
        words = frames.decode(line)
        if isinstance(words, dict) and words.get("magic") == magic:
            return words
    return None


class _Lines:
    """Reads the lines that a connection gives until a deadline."""

    def __init__(self, peer: socket.socket, deadline: float) -> None:
        self._peer, self._deadline, self.rest = peer, deadline, b""

    def next(self) -> bytes | None:
        """The next line, incomplete where connection or time ends; None if no byte came in time."""
        while b"\n" not in self.rest and len(self.rest) <= frames.LONGEST:
            left = self._deadline - time.monotonic()
            if left <= 0:
                return self.rest or None
            try:
                self._peer.settimeout(left)
                more = self._peer.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                return self.rest
            if not more:
                return self.rest
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line


_lock, _unreported, _silent_until = threading.Lock(), 0, 0.0


def report(peer: socket.socket, said: bytes) -> None:
    """Counts a stranger, and says how many there were in one line of the log a minute."""
    global _unreported, _silent_until
    with _lock:
        _unreported += 1
        if time.monotonic() < _silent_until:
            return
        count, _unreported = _unreported, 0
        _silent_until = time.monotonic() + REPORTS
    try:
        host = peer.getpeername()[0]
    except OSError:  # it is gone
        host = "an unknown address"
    logging.getLogger("grace_tf").warning(
        "Worker 0 has sent away %d connection%s that %s no worker's of this job, the last one from "
        "%s, which said %s (there is one such line a minute at most).",
        *(count, "s" * (count != 1), "are" if count != 1 else "is", host),
        frames.shown(said) if said else "nothing",
    )
