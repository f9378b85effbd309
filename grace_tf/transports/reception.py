"""How workers come together at worker 0's address before TensorFlow starts.

Worker 0 has a `Reception`, the others `call` it.  Each says a hello at worker 0's door (door.py),
with which both prove that they know the secret of the job.  When all have come, or one cannot,
worker 0 answers each.

All callers are served at once, and each has a time of its own, so that a stranger who says nothing,
or a byte a second, holds up nobody.  A stranger is sent away without a word.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable

from grace_tf.transports.lifeline import frames
from grace_tf.transports.lifeline.door import Door, Words, introduce, report
from grace_tf.transports.lifeline.sockets import listen

_ANSWERING = 5.0  # seconds after its own deadline that a worker waits for worker 0's answer
LONGEST_WAIT = 1e9  # seconds
_IMPOSTOR = (
    "a worker with another secret of the job was sent away: all get the same from the launcher, or "
    "by init(secret=…)"
)
_PAUSE = 0.1  # seconds between two attempts to reach worker 0


class Reception:
    """Worker 0's side.  A context manager, which closes the server and all connections.

    Attributes: here: the worker's connection and its hello, by rank.
    """

    def __init__(
        self, address: str, magic: str, size: int, secret: str = "", here: bool = False
    ) -> None:
        """Listens at the address, `host:port`; RuntimeError where that is impossible.

        `here` says that all workers are on this machine; see `sockets.listen`.
        """
        self._address, self._size = address, size
        host, _, port = address.rpartition(":")
        try:
            server = listen(int(port), host, here)
        except (OSError, OverflowError) as error:
            raise RuntimeError(f"Worker 0 cannot listen at {address}: {error}.") from error
        self._at = server.getsockname()[0]
        self._selector = selectors.DefaultSelector()
        self._door = Door(server, self._selector, magic, secret)
        self._refused: list[tuple[socket.socket, Words]] = []
        self.here: dict[int, tuple[socket.socket, Words]] = {}

    def __enter__(self) -> Reception:
        return self

    def __exit__(self, *_) -> None:
        for peer, _ in [*self._refused, *self.here.values()]:
            peer.close()
        self._door.close()
        self._selector.close()

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
                refusal += f"not come to {self._where()} within {timeout:g} s"
                refusal += f"; {_IMPOSTOR}." if self._door.impostors else "."
                break
            peer, hello = came
            refusal, rank = fits(hello), hello["rank"]
            if refusal == "":
                self._send_away(peer, hello)
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
            self._door.answer(peer, hello, words)

    def keep(self) -> dict[int, socket.socket]:
        """The connections of all workers, which outlive this context."""
        kept = {rank: peer for rank, (peer, _) in self.here.items()}
        self.here = {}
        return kept

    def _where(self) -> str:
        """The address, and what its name means here: on another host it may mean another one."""
        host = self._address.rpartition(":")[0].strip("[]")
        meant = "" if self._at in (host, "::", "0.0.0.0") else f" ({self._at})"
        return self._address + meant

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
            first = min(deadline, self._door.until)
            for key, _ in self._selector.select(max(0.0, first - time.monotonic())):
                came = self._door.look(key.fileobj)
                if came is not None and self._is_worker(came[1]):
                    return came
                if came is not None:
                    self._send_away(*came)
            self._door.expire()
        return None

    @staticmethod
    def _send_away(peer: socket.socket, hello: Words) -> None:
        report(peer, frames.encode(hello))
        peer.close()

    @staticmethod
    def _is_worker(hello: Words) -> bool:
        seconds = hello.get("seconds")
        numbers = type(hello.get("rank")) is int and type(seconds) in (int, float)
        return numbers and 0 < seconds < LONGEST_WAIT


def call(
    address: str, hello: Words, size: int, timeout: float, deadline: float, secret: str = ""
) -> tuple[socket.socket, Words, bytes]:
    """The connection to worker 0, which stays open, its answer to a hello, and what came after it.

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
                words = {**hello, "seconds": left}
                answer, line, rest = introduce(peer, words, secret, deadline + _ANSWERING)
                if answer is not None and "refused" in answer:
                    raise RuntimeError(str(answer["refused"]))
                if answer is not None:
                    held.pop_all()
                    return peer, answer, rest
                why = f": {_foreign(line)}"
        time.sleep(min(_PAUSE, max(0.0, deadline - time.monotonic())))
    raise RuntimeError(
        f"Worker 0 of {size} did not come to {address} within {timeout:g} s{why.rstrip('.')}."
    )


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


def gone(peer: socket.socket) -> bool:
    """Whether a worker has closed its connection."""
    try:
        peer.settimeout(1e-3)
        return peer.recv(1, socket.MSG_PEEK) == b""
    except TimeoutError:
        return False
    except OSError:
        return True
