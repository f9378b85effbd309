"""How workers come together at worker 0's address before TensorFlow starts.

Worker 0 has a `Reception`, the others `call` it.  Worker 0 gives each caller a challenge, and a
worker says its hello, with a proof that it knows the secret of the job; when all have come, or one
cannot, worker 0 answers each, with a proof of its own.  All are lines of JSON.

All callers are served at once, and each has a time of its own, so that a stranger who says nothing,
or a byte a second, holds up nobody.  A stranger is sent away without a word.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from grace_tf.transports.lifeline import frames
from grace_tf.transports.lifeline.sockets import listen

Words = dict[str, Any]

_SPEAKING = 5.0  # seconds from a connection to the end of its first line
_ANSWERING = 5.0  # seconds after its own deadline that a worker waits for worker 0's answer
_SENDING = 2.0  # seconds that a peer may take to accept what is sent to it
_STRANGERS = 64  # connections that have not said their line, at most; the oldest one goes
_LONGEST_HELLO = 4096  # bytes
_IMPOSTOR = (
    "a worker with another secret of the job was sent away: all get the same from the launcher, or "
    "by init(secret=…)"
)
_HELLO, _ANSWER = "hello ", "answer "  # so that no hello can be given back as an answer
_PAUSE = 0.1  # seconds between two attempts to reach worker 0


class Reception:
    """Worker 0's side.  A context manager, which closes the server and all connections.

    Attributes: here: the worker's connection and its hello, by rank.
    """

    def __init__(self, address: str, magic: str, size: int, secret: str = "") -> None:
        """Listens at the address, `host:port`; RuntimeError where that is impossible."""
        self._address, self._magic, self._size = address, magic, size
        self._secret = secret
        self._impostors = 0  # hellos without the proof
        try:
            self._server = listen(int(address.rpartition(":")[2]))
        except (OSError, OverflowError) as error:
            raise RuntimeError(f"Worker 0 cannot listen at {address}: {error}.") from error
        self._server.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        # The deadline, the challenge, and what has come of the line.
        self._speaking: dict[socket.socket, tuple[float, str, bytes]] = {}
        self._refused: list[tuple[socket.socket, Words]] = []
        self.here: dict[int, tuple[socket.socket, Words]] = {}

    def __enter__(self) -> Reception:
        return self

    def __exit__(self, *_) -> None:
        for peer in [*self._speaking, *(p for p, _ in [*self._refused, *self.here.values()])]:
            peer.close()
        self._selector.close()
        self._server.close()

    def gather(self, timeout: float, deadline: float, fits: Callable[[Words], str | None]) -> None:
        """Returns when all other workers are `here`.

        Args:
          timeout, deadline: the seconds that workers wait, and when this worker's are over.  Those
            of a worker that has begun earlier are over earlier, which ends the wait of all.
          fits: gives the sentence that refuses a hello, None where it fits, and "" for a stranger.
        Raises: RuntimeError, with the sentence that all workers are told.
        """
        refusal = None
        while refusal is None and not self._complete():
            came = self._next(deadline)
            if came is None:
                late = [str(worker) for worker in range(1, self._size) if worker not in self.here]
                refusal = f"Worker{'s' * (len(late) > 1)} {', '.join(late)} of {self._size} did "
                refusal += f"not come to {self._address} within {timeout:g} s"
                refusal += f"; {_IMPOSTOR}." if self._impostors else "."
                break
            peer, hello = came
            refusal, rank = fits(hello), hello["rank"]
            if refusal == "":
                peer.close()
                refusal = None
                continue
            if refusal is None and (not 0 < rank < self._size or self._is_here(rank)):
                refusal = f"Two workers came with the rank {rank}: each needs one of its own."
            if refusal is not None:
                self._refused.append((peer, hello))
                continue
            self.here[rank] = peer, hello
            deadline = min(deadline, time.monotonic() + hello["seconds"])
        if refusal is not None:
            self.answer({"refused": refusal})
            raise RuntimeError(refusal)

    def answer(self, words: Words) -> None:
        """Tells all who have come, also those who were refused."""
        for peer, hello in [*self._refused, *self.here.values()]:
            words = {"magic": self._magic, **words}
            say(peer, frames.signed(words, self._secret, f"{_ANSWER}{hello.get('challenge')}"))

    def keep(self) -> dict[int, socket.socket]:
        """The connections of all workers, which outlive this context."""
        kept = {rank: peer for rank, (peer, _) in self.here.items()}
        self.here = {}
        return kept

    def _complete(self) -> bool:
        """Whether all workers are here; a worker that has disconnected again does not count."""
        if len(self.here) == self._size - 1:
            self.here = {rank: at for rank, at in self.here.items() if not gone(at[0])}
        return len(self.here) == self._size - 1

    def _is_here(self, rank: int) -> bool:
        return rank in self.here and not gone(self.here[rank][0])

    def _next(self, deadline: float) -> tuple[socket.socket, Words] | None:
        """The next worker's connection and hello; None at the deadline."""
        while time.monotonic() < deadline:
            first = min([deadline, *(until for until, _, _ in self._speaking.values())])
            for key, _ in self._selector.select(max(0.0, first - time.monotonic())):
                peer = key.fileobj
                if peer is self._server:
                    self._accept()
                elif peer in self._speaking and (hello := self._hear(peer)) is not None:
                    return peer, hello
            for peer, (until, _, _) in list(self._speaking.items()):
                if until <= time.monotonic():
                    self._send_away(peer)
        return None

    def _accept(self) -> None:
        try:
            peer = self._server.accept()[0]
        except (BlockingIOError, ConnectionError):
            return  # it has left already
        except OSError:  # this process has no file left: an older stranger makes room
            peer = None
        if self._speaking and (peer is None or len(self._speaking) >= _STRANGERS):
            self._send_away(next(iter(self._speaking)))
        if peer is not None:
            peer.setblocking(False)
            challenge = secrets.token_hex(16)
            self._speaking[peer] = time.monotonic() + _SPEAKING, challenge, b""
            self._selector.register(peer, selectors.EVENT_READ)
            with contextlib.suppress(OSError):  # its end shows when it is read
                peer.sendall(frames.encode({"magic": self._magic, "challenge": challenge}))

    def _hear(self, peer: socket.socket) -> Words | None:
        """Reads on; the hello if it is complete.  Sends a stranger away."""
        try:
            more = peer.recv(_LONGEST_HELLO)
        except BlockingIOError:
            return None
        except OSError:
            more = b""
        until, challenge, before = self._speaking[peer]
        line, end, _ = (before + more).partition(b"\n")
        self._speaking[peer] = until, challenge, line
        hello = self._known(line, challenge) if end else None
        if hello is not None:
            self._release(peer)
            peer.settimeout(_SENDING)
        elif end or not more or len(line) > _LONGEST_HELLO:
            self._send_away(peer)
        return hello

    def _known(self, line: bytes, challenge: str) -> Words | None:
        """The hello of a worker; None for what a stranger says."""
        try:
            hello = frames.decode(line)
        except ValueError:
            return None
        if not isinstance(hello, dict) or hello.get("magic") != self._magic:
            return None
        if not frames.proved(hello, self._secret, _HELLO + challenge):
            self._impostors += 1
            return None
        seconds = hello.get("seconds")
        numbers = type(hello.get("rank")) is int and type(seconds) in (int, float)
        return hello if numbers and math.isfinite(seconds) else None

    def _release(self, peer: socket.socket) -> None:
        self._selector.unregister(peer)
        del self._speaking[peer]

    def _send_away(self, peer: socket.socket) -> None:
        self._release(peer)
        peer.close()


def call(
    address: str, hello: Words, size: int, timeout: float, deadline: float, secret: str = ""
) -> tuple[socket.socket, Words]:
    """Worker 0's answer to a hello, and the connection, which stays open.

    Raises: RuntimeError with worker 0's refusal, or where it gives no answer in time.
    """
    host, _, port = address.rpartition(":")
    why = ""
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.ExitStack() as held:
            try:
                there = host.strip("[]"), int(port)
                peer = held.enter_context(socket.create_connection(there, timeout=left))
            except ConnectionRefusedError:
                pass  # nothing listens there yet, or any more
            except OSError as error:
                why = f" ({error})"
            else:
                lines = _Lines(peer, deadline + _ANSWERING)
                line = lines.next()
                answer = _answer(line, hello["magic"])
                if answer is not None:
                    mine = secrets.token_hex(16)
                    words = {**hello, "seconds": left, "challenge": mine}
                    say(peer, frames.signed(words, secret, f"{_HELLO}{answer.get('challenge')}"))
                    line = lines.next()
                    answer = _answer(line, hello["magic"])
                    if answer is not None and not frames.proved(answer, secret, _ANSWER + mine):
                        answer = None
                if answer is not None and "refused" in answer:
                    raise RuntimeError(str(answer["refused"]))
                if answer is not None:
                    held.pop_all()
                    return peer, answer
                why = f": {_foreign(line)}"
        time.sleep(min(_PAUSE, max(0.0, deadline - time.monotonic())))
    raise RuntimeError(
        f"Worker 0 of {size} did not come to {address} within {timeout:g} s{why.rstrip('.')}."
    )


def _answer(line: bytes | None, magic: str) -> Words | None:
    with contextlib.suppress(ValueError):
        answer = frames.decode(line or b"")
        if isinstance(answer, dict) and answer.get("magic") == magic:
            return answer
    return None


def _foreign(line: bytes | None) -> str:
    """What is wrong with something that listens at worker 0's address."""
    if line is None:
        return "what listens there does not answer as worker 0 does; give it another port"
    if not line:
        return (
            "what listens there ends the connection without an answer; it may be another program, "
            "or a worker 0 with another secret of the job (init(secret=…))"
        )
    return f"what listens there is no worker, it says {frames.shown(line)}; take another port"


def say(peer: socket.socket, words: Words) -> None:
    """Sends a line; a lost connection shows later, when it is read."""
    with contextlib.suppress(OSError):
        peer.settimeout(_SENDING)
        peer.sendall(frames.encode(words))


class _Lines:
    """Reads the lines that a connection gives until a deadline."""

    def __init__(self, peer: socket.socket, deadline: float) -> None:
        self._peer, self._deadline, self._said = peer, deadline, b""

    def next(self) -> bytes | None:
        """A line; what has come of it where the connection ends, None for nothing in time."""
        while b"\n" not in self._said and len(self._said) <= frames.LONGEST:
            left = self._deadline - time.monotonic()
            if left <= 0:
                return self._said or None
            try:
                self._peer.settimeout(left)
                more = self._peer.recv(65536)
            except socket.timeout:
                continue
            except OSError:
                return self._said
            if not more:
                return self._said
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return line


def gone(peer: socket.socket) -> bool:
    """Whether a worker has closed its connection."""
    try:
        peer.settimeout(1e-3)
        return peer.recv(1, socket.MSG_PEEK) == b""
    except socket.timeout:
        return False
    except OSError:
        return True
