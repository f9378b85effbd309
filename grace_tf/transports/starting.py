"""`Starting`: watches over the workers from the rendezvous until TensorFlow has connected them.

TensorFlow's own start waits forever for a worker that is lost in these moments.  So it runs in a
thread, and the connections of the rendezvous stay open: every worker has one to worker 0, which
forwards what it learns.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from grace_tf.transports.lifeline import frames, tensorflow_engine
from grace_tf.transports.lifeline.farewells import GONE, RUBBISH, failed
from grace_tf.transports.lifeline.lifeline import first_line

T = TypeVar("T")

_BEAT = 1.0  # seconds between two signs of life
_SILENT = 3.0  # seconds without one, after which a worker is blamed for a late start
_DOUBT = 2.0  # seconds in which the loss of another worker shows that has made TensorFlow fail
_SENDING = 2.0  # seconds that a worker may take to accept what is sent to it


class _Peer:
    def __init__(self, worker: int, connection: socket.socket, said: bytes) -> None:
        connection.settimeout(_SENDING)
        self.worker, self.connection, self.said = worker, connection, said
        self.heard, self.started = time.monotonic(), False


class Starting:
    """The connections of worker `rank` of `size`: to all workers for worker 0, else to worker 0.

    `said`: what worker 0 has said already, behind its answer.
    """

    def __init__(
        self, rank: int, size: int, connections: dict[int, socket.socket], said: bytes = b""
    ) -> None:
        self._rank, self._size = rank, size
        self._peers = [_Peer(worker, peer, said) for worker, peer in connections.items()]

    def close(self) -> None:
        for peer in self._peers:
            peer.connection.close()

    def run(self, start: Callable[[], T], timeout: float, deadline: float) -> T:
        """The result of `start()`, which runs in a thread.  It closes the connections.

        Raises: what `start` raises; RuntimeError as soon as another worker is lost, or has failed
          to start, and at the deadline, where `start` goes on in its thread.
        """
        outcome: list[tuple[Any, Exception | None]] = []
        done, end = socket.socketpair()

        def body() -> None:
            try:
                outcome.append((start(), None))
            except Exception as error:
                outcome.append((None, error))
            with contextlib.suppress(OSError):  # nobody waits for it any more
                end.send(b".")

        with contextlib.closing(self), done, selectors.DefaultSelector() as selector:
            selector.register(done, selectors.EVENT_READ)
            for peer in self._peers:
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            threading.Thread(target=body, name="grace_tf start", daemon=True).start()
            if not self._watch(selector, lambda: bool(outcome), deadline):
                self._late(timeout)
            end.close()
            selector.unregister(done)  # it stays ready
            value, error = outcome[0]
            if error is not None:
                if any(tensorflow_engine.may_have_failed(e) for e in (error, error.__cause__) if e):
                    self._watch(selector, lambda: False, time.monotonic() + _DOUBT)
                self._tell({"lost": self._rank, "how": failed(first_line(error), None)})
                raise error
            self._tell({"started": True})
            return value

    def _watch(self, selector: Any, true: Callable[[], bool], deadline: float) -> bool:
        """Waits until `true()`; False at the deadline, RuntimeError where a worker is lost."""
        beat = time.monotonic()
        for peer in self._peers:
            self._take(peer, b"")  # the lines that came with worker 0's answer
        while not true():
            now = time.monotonic()
            if now >= deadline:
                return False
            if now >= beat:
                self._tell({"beat": True})
                beat = now + _BEAT
            for key, _ in selector.select(max(0.0, min(beat, deadline) - now)):
                if key.data is None:
                    continue  # `true()` has changed
                if not self._hear(key.data):
                    selector.unregister(key.fileobj)
        return True

    def _hear(self, peer: _Peer) -> bool:
        """Reads on; False at the end of the connection."""
        try:
            more = peer.connection.recv(65536)
        except OSError:
            more = b""
        if not more or len(peer.said) > frames.LONGEST:
            if not peer.started:
                self._lose(peer.worker, GONE)
            return False
        peer.heard = time.monotonic()
        self._take(peer, more)
        return True

    def _take(self, peer: _Peer, more: bytes) -> None:
        """Takes in all lines that are whole with these bytes."""
        *lines, peer.said = (peer.said + more).split(b"\n")
        for line in lines:
            try:
                words = frames.decode(line)
                lost, how = words.get("lost"), words.get("how")
            except (ValueError, AttributeError):
                self._lose(peer.worker, RUBBISH)
            if type(lost) is int and isinstance(how, str):
                self._lose(lost, how)
            peer.started = peer.started or "started" in words

    def _late(self, timeout: float) -> NoReturn:
        silent = min((p for p in self._peers if not p.started), key=lambda p: p.heard, default=None)
        if silent is not None and (seconds := time.monotonic() - silent.heard) >= _SILENT:
            how = f"has not answered for {seconds:.0f} s: it is stopped, or its machine hangs"
            self._lose(silent.worker, how)
        self._tell({"lost": self._rank, "how": f"did not start TensorFlow within {timeout:g} s"})
        raise RuntimeError(
            f"Worker {self._rank} of {self._size} has met the others, but TensorFlow has not "
            f"connected them within {timeout:g} s: let workers reach each other at the ports of "
            "all their addresses, or give init() a larger timeout."
        )

    def _lose(self, worker: int, how: str) -> NoReturn:
        self._tell({"lost": worker, "how": how})
        who = "the others say: it" if worker == self._rank else f"worker {worker}"
        raise RuntimeError(
            f"Worker {self._rank} of {self._size} cannot go on, {who} {how}; start all of them "
            "again."
        )

    def _tell(self, words: dict[str, Any]) -> None:
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.connection.sendall(frames.encode(words))
