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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.transports.lifeline import frames, tensorflow_engine, versions
from grace_tf.transports.lifeline.door import Door, introduce
from grace_tf.transports.lifeline.farewells import GONE, RUBBISH, failed, left
from grace_tf.transports.lifeline.peer import Peer, silence

BEAT = 1.0  # seconds between two signs of life
SILENT = 3.0  # seconds without one, after which a worker is blamed for a failed collective
LAST = 10.0  # seconds that worker 0 waits at its end for the others' end; SILENT where it fails

_MAGIC = "grace_tf lifeline"
_PAUSES = 0.1, 2.0  # seconds between two attempts to reach worker 0: the first, and at most
_FORMS: dict[str, Callable[[Any], bool]] = {  # what workers say on the topics of this module
    "stop": lambda data: isinstance(data, str),
    "lost": lambda data: type(data["worker"]) is int and isinstance(data["how"], str),
    "failed": lambda data: isinstance(data[0], str) and _is_steps(*data[1:]),
    "left": lambda data: _is_steps(data),
}

Handler = Callable[[int, Any], None]


class Lifeline:
    """The lifeline of worker `rank` of `size`.

    A worker that gives no sign of life for `patience` seconds counts as lost.  Worker 0 owns
    `server`; the others find it by `find()`, which returns (host, port, token) and may wait.  A
    worker must prove that it knows both the job's `secret` and the `token`, a number that worker 0
    has dealt out.
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
        secret: str = "",
        engine: Any = tensorflow_engine,
    ) -> None:
        self.rank, self.size, self.patience = rank, size, patience
        self.broken: str | None = None
        self.busy = 0  # the number of open `together` contexts, in which no worker may leave
        self._secret, self._find, self.engine = secret, find, engine
        self._token: int | None = token if server is not None else None  # once it is known
        self._endings: list[Callable[[], None]] = []
        self.changed = threading.Condition(threading.RLock())
        self._peers: dict[int, Peer] = {}
        self._complete = size == 1  # whether all workers are connected, or have been
        self._calling: socket.socket | None = None  # at worker 0's door
        self.left: dict[int, str] = {}  # workers that said goodbye, and how
        # Functions that get an error which another worker may have caused.  One that knows the
        # cause calls `stop`.
        self.looks: list[Callable[[BaseException], None]] = []
        self._handlers: dict[str, Handler] = {
            "doubt": lambda *_: self.lose_the_silent(),
            "complete": lambda worker, _: self._complete_by(worker),
        }
        self._unread: dict[str, list] = collections.defaultdict(list)  # came before a handler
        self._waiting: list[bytes] | None = []  # sent before all connections existed
        self._selector = selectors.DefaultSelector()
        self._door: Door | None = None
        if server is not None:
            self._door = Door(server, self._selector, _MAGIC, self._key(token))
        self.closed, self.warned, self._read = False, False, True
        self._thread = threading.Thread(target=self._run, name="grace_tf lifeline", daemon=True)
        self._thread.start()

    def joined(self, seconds: float) -> bool:
        """Waits at most `seconds` for the connections of all workers; False if some are missing."""
        return self.until(lambda: self._complete, seconds)

    def _complete_by(self, worker: int) -> None:
        self._complete = self._complete or worker == 0  # to which all workers connect

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

    def at_the_break(self, end: Callable[[], None]) -> None:
        """Calls `end` when this worker cannot go on, to end waits that the engine cannot end."""
        with self.changed:
            self._endings.append(end)
            if self.broken is not None:
                end()

    def proof(self, words: dict[str, Any], purpose: str) -> str | None:
        """64 letters by which a worker proves that it says these words; None without a connection.

        Only this job's workers can make it.
        """
        with self.changed:
            if self._token is None:
                return None
            return frames.signed(words, self._key(self._token), purpose)["proof"]

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
        for look in self.looks:
            look(error)
        # TensorFlow may report the loss some moments before the lifeline does.
        self.tell("doubt")
        self.until(lambda: bool(self.left), SILENT)
        with self.changed:
            for worker in self.left:
                self.lay_to(worker)
            self.lose_the_silent()
            return self.broken

    def lose(self, worker: int, how: str) -> None:
        """Ends this worker, and the others with the same cause: this worker is lost, and how."""
        if self.broken is None and not self.closed:
            self.tell("lost", {"worker": worker, "how": how})
            self.lay_to(worker, how)

    def lose_the_silent(self) -> None:
        """Blames the worker without a sign of life for the longest time, if there is one."""
        worker, peer = max(self._peers.items(), key=lambda item: item[1].silent, default=(0, None))
        if peer is not None and peer.silent >= SILENT:
            self.lose(worker, peer.silence())

    def lose_the_absent(self, worker: int | None, how: str) -> None:
        """Blames the worker that the engine reports as lost.

        Where the engine gives no number, worker 0 is blamed if this worker is not connected to it.
        """
        with self.changed:
            if worker is None and self.rank and 0 not in self._peers:
                worker = 0
            if worker not in (None, self.rank):
                self.lose(worker, how)

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
        held = [peer.connection for peer in self._peers.values()]
        held += [] if self._calling is None else [self._calling]
        for each in [*held, *(self._door.sockets if self._door else ())]:
            each.close()

    def _run(self) -> None:
        if self._door is None and not self._connect():
            return
        last, beat = time.monotonic(), 0.0
        while self._read:
            for key, _ in self._selector.select(BEAT / 2):
                with self.changed:
                    if key.data is self._door:
                        self._let_in(key.fileobj)
                    else:
                        self._receive(key.data)
                    self.changed.notify_all()
            now = time.monotonic()
            # Where this thread itself was stopped, the others' silence means nothing.
            passed, last = min(now - last, 2 * BEAT), now
            with self.changed:
                for worker, peer in list(self._peers.items()):
                    peer.silent += passed
                    if peer.silent > self.patience:
                        self.lose(worker, peer.silence())
                if self._door is not None:
                    self._door.expire()
                beat += passed
                self.changed.notify_all()  # a longer silence may end a wait
                if beat >= BEAT:
                    beat = 0.0
                    for peer in self._peers.values():
                        peer.send(frames.encode([self.rank, "beat", None]))

    def _key(self, token: int) -> str:
        return f"{token} {self._secret}"

    def _connect(self) -> bool:
        """Comes in at worker 0's door; it may take several attempts where strangers crowd there."""
        try:
            host, port, token = self._find()
            begun, pause = time.monotonic(), _PAUSES[0]
            until = begun + self.patience
            answer, heard = None, False
            while answer is None:
                self._calling = socket.create_connection((host, port), timeout=self.patience)
                hello = {"magic": _MAGIC, "rank": self.rank, "versions": versions.HERE}
                answer, line, rest = introduce(self._calling, hello, self._key(token), until)
                if answer is None:
                    self._calling.close()
                    heard = heard or line is not None
                    if not heard:
                        self.lose(0, silence(time.monotonic() - begun))
                    if self.broken or not self._read or time.monotonic() >= until:
                        return False
                    time.sleep(pause)
                    pause = min(2 * pause, _PAUSES[1])
        except (OSError, tf.errors.OpError):
            return False
        peer = Peer(self._calling, 0, rest)
        with self.changed:
            self._peers[0], self._calling, self._token = peer, None, token
            self._selector.register(peer.connection, selectors.EVENT_READ, peer)
            self._catch_up(peer)
            self._take_all(peer, peer.whole())
            self.changed.notify_all()
        return True

    def _let_in(self, ready: socket.socket) -> None:
        """Serves worker 0's door."""
        connection, hello = self._door.look(ready) or (None, {})
        if connection is None:
            return
        worker, theirs = hello.get("rank"), hello.get("versions")
        if type(worker) is not int or not 0 < worker < self.size or worker in self._peers:
            connection.close()
            return
        self._door.answer(connection, hello, {"welcome": worker})
        peer = self._peers[worker] = Peer(connection, worker)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        self._catch_up(peer)
        if refused := versions.refusal(worker, self.size, str(theirs)[: versions.LONGEST]):
            self.stop(refused)

    def _receive(self, peer: Peer) -> None:
        lines = peer.lines()
        if lines is not None:
            return self._take_all(peer, lines)
        self._part(peer, GONE)

    def _take_all(self, peer: Peer, lines: Sequence[bytes]) -> None:
        try:
            for line in lines:
                self._take(peer, line)
        except (ValueError, TypeError, LookupError):
            self._part(peer, RUBBISH)

    def _take(self, peer: Peer, line: bytes) -> None:
        """Hears and forwards a line.  Raises what comes of a line that no worker says."""
        worker, topic, data = frames.decode(line)
        known = type(worker) is int and isinstance(topic, str) and 0 <= worker < self.size
        if not known or (self.rank == 0 and worker != peer.worker):
            raise ValueError("no line of this worker")
        if topic in _FORMS and not _FORMS[topic](data):
            raise ValueError("not what a worker says of this topic")
        if topic != "beat":
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

    def _part(self, peer: Peer, why: str) -> None:
        """Ends a connection; its worker is lost, unless it has said goodbye."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.connection)
        peer.connection.close()
        self._peers.pop(peer.worker, None)
        if peer.worker not in self.left:
            self.lose(peer.worker, why)

    def _catch_up(self, peer: Peer) -> None:
        """Sends a new peer the earlier messages."""
        for line in self._waiting or ():
            peer.send(line)
        if self.rank or len(self._peers) == self.size - 1:
            self._waiting = None
            if self._door is not None:
                self._door.close()  # none connects again
                self._complete = True
                self.tell("complete")

    def _send(self, line: bytes, but: Peer | None = None) -> None:
        if self._waiting is not None:
            self._waiting.append(line)
        for peer in self._peers.values():
            if peer is not but:
                peer.send(line)

    # What ends this worker

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
            for end in self._endings:
                end()
        self.engine.abort(sentence)


def _is_steps(data: Any) -> bool:
    return data is None or type(data) is int
