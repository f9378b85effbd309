"""`Lifeline`: messages between all workers beside the collectives; reports which worker is lost.

Every worker has one TCP connection to worker 0, which forwards each message to all others.  A
daemon thread reads the connection, sends a beat each second, and aborts pending collectives when a
worker is lost.  All other workers then end with one sentence that names it.
"""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from grace_tf.transports.lifeline import frames, tensorflow_engine
from grace_tf.transports.lifeline.farewells import GONE, failed, left
from grace_tf.transports.lifeline.peer import Peer
from grace_tf.transports.lifeline.versions import refusal

BEAT = 1.0  # seconds between two signs of life
SILENT = 3.0  # seconds without one, after which a worker is blamed for a failed collective
INTRODUCTION = 10.0  # seconds from a connection to the end of a worker's first line
STRANGERS = 64  # connections without that line, at most; the oldest one goes
LAST = 10.0  # seconds that worker 0 waits at its end for the others' end; SILENT where it fails

Handler = Callable[[int, Any], None]


class Lifeline:
    """The lifeline of worker `rank` of `size`.

    A worker that gives no sign of life for `patience` seconds counts as lost.  Worker 0 owns
    `server`; the others find it by `find()`, which returns (host, port, token) and may wait.
    `engine.may_have_failed` tells whether a lost worker may cause an error; `engine.abort` ends
    collectives.

    Attributes: rank, size, patience; broken, the sentence why this worker cannot go on, or None;
    left, the workers that said goodbye, and how; closed, whether this one did; changed, a condition
    that guards all of these.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        patience: float,
        token: int = 0,
        server: socket.socket | None = None,
        find: Callable[[], tuple[str, int, int]] | None = None,
        engine: Any = tensorflow_engine,
    ) -> None:
        self.rank, self.size, self.patience = rank, size, patience
        self.broken: str | None = None
        self.busy = 0  # the number of open `together` contexts, in which no worker may leave
        self._token, self._server, self._find, self.engine = token, server, find, engine
        self.changed = threading.Condition(threading.RLock())
        self._peers: dict[int, Peer] = {}
        self._strangers: list[Peer] = []  # not introduced yet, the oldest first
        self.left: dict[int, str] = {}  # workers that said goodbye, and how
        self._handlers: dict[str, Handler] = {"doubt": lambda *_: self.lose_the_silent()}
        self._unread: dict[str, list] = collections.defaultdict(list)  # came before a handler
        self._waiting: list[bytes] | None = []  # sent before all connections existed
        self._selector = selectors.DefaultSelector()
        self.closed, self.warned, self._read = False, False, True
        threading.Thread(target=self._run, name="grace_tf lifeline", daemon=True).start()

    def joined(self, seconds: float) -> bool:
        """Waits at most `seconds` for the connections of all workers; False if some are missing."""
        return self.until(lambda: len(self._peers) >= (1 if self.rank else self.size - 1), seconds)

    def until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Waits until `true()`, called again after every change; False after `seconds`.

        It also ends when this worker cannot go on: check `broken`.
        """
        with self.changed:
            self.changed.wait_for(lambda: true() or self.broken is not None, seconds)
            return true()

    def tell(self, topic: str, data: Any = None) -> None:
        """Sends `data`, which JSON can hold, to all other workers.  Never waits, never fails."""
        line = frames.encode([self.rank, topic, data])
        with self.changed:
            self._send(line)

    def on(self, topic: str, handler: Handler) -> None:
        """Calls `handler(worker, data)` for each message of a topic, also for earlier ones.

        The handler runs in the lifeline's thread: it must not wait nor run TensorFlow operations.
        An exception in it stops all workers, with its message.
        """
        with self.changed:
            self._handlers[topic] = handler
            for worker, data in self._unread.pop(topic, ()):
                self._handle(handler, worker, data)

    def stop(self, sentence: str) -> None:
        """Ends the collectives of this worker and of all others, with the same sentence."""
        self.tell("stop", sentence)
        self._break(sentence)

    def fail(self, cause: str, steps: int | None = None) -> None:
        """Tells the others why this worker ends; ignores the failures that this causes there."""
        with self.changed:
            if self.broken is None:
                self.broken = cause
                self.tell("failed", [cause, steps])

    def check(self) -> None:
        """Raises RuntimeError with the sentence if this worker cannot go on."""
        if self.broken is not None:
            raise RuntimeError(self.broken)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A context in which no worker may leave: if one ends its program, this one fails too."""
        with self.changed:
            self.busy += 1
            for worker in self.left:
                self.lay_to(worker)
        try:
            yield
        finally:
            self.busy -= 1

    def why(self, error: BaseException) -> str | None:
        """The sentence for an error that a lost worker has caused; None for other errors."""
        if not self.engine.may_have_failed(error):
            return None
        # TensorFlow may report the loss some moments before the lifeline does.
        self.tell("doubt")
        self.until(lambda: bool(self.left), SILENT)
        with self.changed:
            for worker in self.left:
                self.lay_to(worker)
            self.lose_the_silent()
            return self.broken

    def lose_the_silent(self) -> None:
        """Blames the worker without a sign of life for the longest time, if there is one."""
        worker, peer = max(self._peers.items(), key=lambda item: item[1].silent, default=(0, None))
        if peer is not None and peer.silent >= SILENT:
            self._lose(worker, peer.silence())

    def close(self, failing: bool = False, steps: int | None = None) -> None:
        """Says goodbye.  Worker 0 waits for the others' end first: their TensorFlow needs it."""
        with self.changed:
            if self.closed:
                return
            self.tell("left", steps)
            self.closed = True
            if self.rank == 0:
                peers, seconds = self._peers.values, SILENT if failing else LAST
                self.changed.wait_for(lambda: all(p.silent >= SILENT for p in peers()), seconds)
            # The connections close with the process, so that the others see when it has ended.
            self._read = False

    def abandon(self) -> None:
        """Drops all connections without a goodbye, as a forked child must."""
        self.closed, self._read = True, False
        peers = [*self._peers.values(), *self._strangers]
        for held in [self._server, *(peer.connection for peer in peers)]:
            if held is not None:
                held.close()

    def _run(self) -> None:
        if self._server is not None:
            self._selector.register(self._server, selectors.EVENT_READ)
        elif not self._connect():
            return
        last, beat = time.monotonic(), 0.0
        while self._read:
            for key, _ in self._selector.select(BEAT / 2):
                with self.changed:
                    self._accept() if key.data is None else self._receive(key.data)
                    self.changed.notify_all()
            now = time.monotonic()
            # Where this thread itself was stopped, the others' silence means nothing.
            passed, last = min(now - last, 2 * BEAT), now
            with self.changed:
                for worker, peer in list(self._peers.items()):
                    peer.silent += passed
                    if peer.silent > self.patience:
                        self._lose(worker, peer.silence())
                for peer in list(self._strangers):
                    peer.unknown += passed
                    if peer.unknown > INTRODUCTION:
                        self._drop(peer)
                beat += passed
                self.changed.notify_all()  # silence is a change too
                if beat >= BEAT:
                    beat = 0.0
                    for peer in self._peers.values():
                        peer.send(b'[0, "beat", null]\n')

    def _connect(self) -> bool:
        try:
            host, port, token = self._find()
            peer = Peer(socket.create_connection((host, port), timeout=self.patience))
        except (OSError, tf.errors.OpError):
            return False
        with self.changed:
            peer.worker, self._peers[0] = 0, peer
            self._selector.register(peer.connection, selectors.EVENT_READ, peer)
            peer.introduce(self.rank, token)
            self._catch_up(peer)
            self.changed.notify_all()
        return True

    def _accept(self) -> None:
        if self._server is None:
            return  # closed since the event came
        try:
            peer = Peer(self._server.accept()[0])
        except ConnectionError:
            return  # it has left already
        except OSError:  # this process has no file left: an older stranger makes room
            peer = None
        if self._strangers and (peer is None or len(self._strangers) >= STRANGERS):
            self._drop(self._strangers[0])
        if peer is not None:
            self._strangers.append(peer)
            self._selector.register(peer.connection, selectors.EVENT_READ, peer)

    def _receive(self, peer: Peer) -> None:
        lines = peer.lines()
        if lines is None:
            self._drop(peer)
            if peer.worker is not None and peer.worker not in self.left:
                self._lose(peer.worker, GONE)
            return
        for line in lines:
            try:
                worker, topic, data = frames.decode(line)
            except (ValueError, TypeError):
                return self._drop(peer)
            if peer.worker is None:
                theirs = peer.introduced(topic, data, self._token)
                if theirs is None or worker not in range(1, self.size):
                    return self._drop(peer)
                self._strangers.remove(peer)
                peer.worker, self._peers[worker] = worker, peer
                self._catch_up(peer)
                if refused := refusal(worker, self.size, theirs):
                    self.stop(refused)
            elif topic != "beat":
                self._send(line + b"\n", but=peer)
                self._hear(worker, topic, data)

    def _hear(self, worker: int, topic: str, data: Any) -> None:
        if topic == "stop":
            self._break(data)
        elif topic == "lost":
            self.lay_to(data["worker"], data["how"])
        elif topic == "failed":
            self.lay_to(worker, failed(*data))
        elif topic == "left":
            self.left[worker] = left(data)
            if self.busy:
                self.lay_to(worker)
        elif topic in self._handlers:
            self._handle(self._handlers[topic], worker, data)
        else:
            self._unread[topic].append((worker, data))

    def _handle(self, handler: Handler, worker: int, data: Any) -> None:
        try:
            handler(worker, data)
        except Exception as error:  # the thread must live on
            self.stop(str(error))

    def _drop(self, peer: Peer) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer in self._strangers:
            self._strangers.remove(peer)
        if self._peers.get(peer.worker) is peer:
            del self._peers[peer.worker]

    def _catch_up(self, peer: Peer) -> None:
        """Sends a new peer the earlier messages."""
        for line in self._waiting or ():
            peer.send(line)
        if self.rank or len(self._peers) == self.size - 1:
            self._waiting = None
            self._close_the_door()

    def _close_the_door(self) -> None:
        """Ends worker 0's listening: the others have their connections, and none comes twice."""
        if self._server is not None:
            self._selector.unregister(self._server)
            self._server.close()
            self._server = None
        for stranger in list(self._strangers):
            self._drop(stranger)

    def _send(self, line: bytes, but: Peer | None = None) -> None:
        if self._waiting is not None:
            self._waiting.append(line)
        for peer in self._peers.values():
            if peer is not but:
                peer.send(line)

    # What ends this worker

    def _lose(self, worker: int, how: str) -> None:
        if self.broken is None and not self.closed:
            self.tell("lost", {"worker": worker, "how": how})
            self.lay_to(worker, how)

    def lay_to(self, worker: int, how: str | None = None) -> None:
        """Ends this worker and names another as the cause; `how` follows its number."""
        who = "the others say: it" if worker == self.rank else f"worker {worker}"
        cause = f"{who} {how or self.left[worker]}; start all of them again."
        self._break(f"Worker {self.rank} of {self.size} cannot go on, {cause}")

    def _break(self, sentence: str) -> None:
        with self.changed:
            if self.broken is not None or self.closed:
                return
            self.broken = sentence
            self.changed.notify_all()
        self.engine.abort(sentence)
