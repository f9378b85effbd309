"""Sends workers what strangers may send: random and mutated frames, at every port of theirs.

    python tests/support/fuzz_frames.py [FRAMES [FIRST_SEED]]

Batch after batch: seeds from FIRST_SEED on, until so many frames were sent in all.  A batch starts
one server of worker 0, of the meeting, the rendezvous or the lifeline, as workers start it, in a
job with or without a secret.  Then it sends its frames, and lets a real worker in: the two must
meet as if nothing had been.  In other batches the frames come from one that knows the secret, or
from one in worker 0's place; there workers may refuse each other, but by one sentence.  At last two
trainings, with and without a secret, run while frames come in at their ports; both must end with
the bits of an undisturbed one.  At the first fault it tells the seed that repeats the batch.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import random
import selectors
import socket
import sys
import tempfile
import threading
import time
import types
from unittest import mock

from launch import launch
from strangers import strange

from grace_tf.transports import reception, rendezvous, starting
from grace_tf.transports.lifeline import connections, door, frames, versions
from grace_tf.transports.lifeline.connections import Lifeline
from grace_tf.transports.lifeline.peer import Peer
from grace_tf.transports.lifeline.sockets import hold, listen
from grace_tf.transports.world import meeting

SOON = 60.0  # seconds for what takes milliseconds
BATCH = 1000  # frames
TRAINED = 2000  # frames at each port of a training
TOGETHER = 16  # connections at once
NOBODY = types.SimpleNamespace(may_have_failed=lambda error: False, abort=lambda sentence: None)
MAGICS = {
    "meeting": meeting._MAGIC,
    "rendezvous": rendezvous._MAGIC,
    "lifeline": connections._MAGIC,
}
TOPICS = ("beat", "stop", "lost", "failed", "left", "doubt", "plain", "digest", "\ud800", "")
ODD = (
    None,
    True,
    0,
    -1,
    1,
    2,
    10**400,
    -(2**70),
    0.5,
    float("nan"),
    float("inf"),
    "",
    "1",
    "\ud800",
)
KEYS = ("magic", "challenge", "proof", "rank", "size", "port", "host", "job", "seconds", "versions")


class Frames:
    """Draws frames of one protocol."""

    def __init__(self, seed: int, protocol: str) -> None:
        self.draw = random.Random(seed)
        self.magic = MAGICS[protocol]

    def value(self, depth: int = 3):
        """Any value of JSON."""
        kind = self.draw.randrange(6 if depth else 4)
        if kind == 4:
            return [self.value(depth - 1) for _ in range(self.draw.randrange(4))]
        if kind == 5:
            keys = self.draw.sample(KEYS, self.draw.randrange(4))
            return {key: self.value(depth - 1) for key in keys}
        if kind == 3:
            return "".join(chr(self.draw.randrange(0xFFFF)) for _ in range(self.draw.randrange(9)))
        return self.draw.choice(ODD)

    def hello(self) -> dict:
        """A hello of a worker, of which some words may be others."""
        words = {"magic": self.magic, "rank": 1, "size": 2, "seconds": 60.0, "challenge": "c"}
        words.update(versions=versions.HERE, addresses=1, job="", port=1, host="127.0.0.1")
        for _ in range(self.draw.choice((0, 1, 1, 3))):
            words[self.draw.choice(list(words))] = self.value()
        if self.draw.random() < 0.2:
            del words[self.draw.choice(list(words))]
        return words

    def signed(self, key: str, challenge: str) -> bytes:
        """A hello with a proof, which may be another value."""
        words = frames.signed(self.hello(), key, challenge)
        if self.draw.random() < 0.1:
            words["proof"] = self.value()
        return frames.encode(words)

    def line(self) -> list:
        """A line of the lifeline, of which a part may be another."""
        data = self.draw.choice((None, "x", ["x", 1], {"worker": 1, "how": "x"}, 7))
        words = [1, self.draw.choice(TOPICS), data]
        if self.draw.random() < 0.5:
            words[self.draw.randrange(3)] = self.value()
        return words

    def said(self) -> bytes:
        """Some lines of a worker that was let in."""
        words = [self.line() for _ in range(self.draw.randrange(1, 4))]
        starts = [{"lost": self.value(), "how": self.value()}, {"started": True}, {"beat": True}]
        words.append(self.draw.choice([*starts, self.value()]))
        self.draw.shuffle(words)
        said = b"".join(map(frames.encode, words)) + self.draw.choice((b"", self.noise()))
        return self.mutated(said) if self.draw.random() < 0.3 else said

    def noise(self) -> bytes:
        """What is no frame at all."""
        kind = self.draw.randrange(5)
        if kind == 0:
            bracket = self.draw.choice((b"[", b'{"a":', b'["'))
            return bracket * self.draw.choice((3, 17, 700, 12_000)) + b"\n"
        if kind == 1:
            return b"a" * self.draw.choice((100, door.LONGEST_HELLO, 70_000))
        if kind == 2:
            return self.draw.choice(
                (b"", b"\n", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n")
            )
        return self.draw.randbytes(self.draw.randrange(200)) + self.draw.choice((b"", b"\n"))

    def mutated(self, frame: bytes) -> bytes:
        """The frame, of which some bytes are others, missing, or there twice."""
        changed = bytearray(frame)
        for _ in range(self.draw.randrange(1, 4)):
            start = self.draw.randrange(len(changed) + 1)
            end = start + self.draw.randrange(12)
            kind = self.draw.randrange(4)
            if kind == 0 and start < len(changed):
                changed[start] ^= 1 << self.draw.randrange(8)
            elif kind == 1:
                del changed[start:end]
            elif kind == 2:
                changed[start:start] = changed[start:end]
            else:
                changed[start:start] = self.draw.randbytes(end - start)
        return bytes(changed)

    def stranger(self, challenge: str) -> bytes:
        """What one sends that does not know the secret."""
        kind = self.draw.randrange(3)
        if kind == 0:
            return self.noise()
        wrong = self.draw.choice(("another", "0 ", challenge))
        words = self.signed(wrong, f"hello {challenge}")
        return words if kind == 1 else self.mutated(words)


def send(address, sent):
    """Sends each of these frames, which are made of a challenge, over a connection of its own."""
    for some in iter(lambda: list(itertools.islice(sent, TOGETHER)), []):
        with contextlib.ExitStack() as held:
            peers = []
            for frame in some:
                peer = held.enter_context(socket.create_connection(address, SOON))
                peers.append((peer, frame))
            for peer, frame in peers:
                with contextlib.suppress(OSError):
                    challenge = frames.decode(peer.recv(1000).partition(b"\n")[0])["challenge"]
                    peer.sendall(frame(challenge))
                    peer.shutdown(socket.SHUT_WR)
            for peer, _ in peers:
                with contextlib.suppress(ConnectionError):  # but no socket.timeout
                    while peer.recv(1000):
                        pass


def listening(address) -> None:
    """Returns when something listens there."""
    strange("{}:{}".format(*address), b"").close()


def in_a_thread(call):
    """Calls it in a thread.  Gives the thread and the list into which the outcome comes."""
    outcome = []

    def run():
        try:
            outcome.append(call())
        except RuntimeError as error:  # a sentence; any other error is one of the program
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def strangers(drawn: Frames, protocol: str, secret: str, count: int) -> None:
    """Frames of strangers, beside which two workers must meet as if nothing had been."""
    (beside_a_lifeline if protocol == "lifeline" else beside_a_meeting)(
        drawn, protocol, secret, count
    )


def beside_a_meeting(drawn: Frames, protocol: str, secret: str, count: int) -> None:
    with contextlib.closing(hold()) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"

    def come(rank: int):
        if protocol == "meeting":
            return meeting.addresses_of_all(address, rank, 2, SOON, secret=secret)
        return rendezvous.meet([address, "127.0.0.1:1"], rank, SOON, secret=secret).close()

    first, found = in_a_thread(lambda: come(0))
    listening(("127.0.0.1", port))
    send(("127.0.0.1", port), itertools.repeat(drawn.stranger, count))
    second, other = in_a_thread(lambda: come(1))
    for thread in (first, second):
        thread.join(SOON)
    assert len(found) == 1 and found == other, f"the workers did not meet: {found}, {other}"


def beside_a_lifeline(drawn: Frames, protocol: str, secret: str, count: int) -> None:
    server = listen(0, "127.0.0.1", here=True)
    where = (*server.getsockname(), 7)
    first = Lifeline(0, 2, SOON, token=7, server=server, secret=secret, engine=NOBODY)
    with contextlib.closing(Abandoned(first)) as lines:
        send(where[:2], itertools.repeat(drawn.stranger, count))
        second = lines.add(Lifeline(1, 2, SOON, find=lambda: where, secret=secret, engine=NOBODY))
        assert first.joined(SOON) and second.joined(SOON), "the workers did not join"
        told: list = []
        first.on("told", lambda *words: told.append(words))
        second.tell("told", "x")
        assert first.until(lambda: told == [(1, "x")], SOON), "nothing is heard any more"
        assert first.broken is None and second.broken is None, first.broken


class Abandoned:
    """Lifelines, to be abandoned at the end."""

    def __init__(self, *lines: Lifeline) -> None:
        self._lines = list(lines)

    def add(self, line: Lifeline) -> Lifeline:
        self._lines.append(line)
        return line

    def close(self) -> None:
        for line in self._lines:
            line.abandon()


def hellos(drawn: Frames, protocol: str, secret: str, count: int) -> None:
    """Hellos of one that knows the secret: let in or refused, as a worker is."""
    own = {"magic": drawn.magic, "rank": 0, "size": 2, "job": "", "host": "127.0.0.1", "port": 1}
    own.update(addresses=1, versions=versions.HERE)
    room = meeting if protocol == "meeting" else rendezvous
    for _ in range(count):
        with (
            reception.Reception("127.0.0.1:0", drawn.magic, 2, secret, here=True) as all_others,
            socket.create_connection(all_others._door.sockets[0].getsockname(), SOON) as peer,
            contextlib.suppress(RuntimeError),
        ):
            all_others._door.look(all_others._door.sockets[0])
            challenge = frames.decode(peer.recv(1000))["challenge"]
            peer.sendall(drawn.signed(secret, f"hello {challenge}"))
            all_others.gather(1.0, time.monotonic() + 0.002, lambda w: room._refusal(w, own))
            found = meeting._found(all_others.here, own) if protocol == "meeting" else None
            all_others.answer({"addresses": found})


def answers(drawn: Frames, protocol: str, secret: str, count: int) -> None:
    """What stands in worker 0's place, and may know the secret, says to a worker that comes."""
    hello = {"magic": drawn.magic, "rank": 1}
    with mock.patch.object(door.secrets, "token_hex", lambda _: "mine"):
        for _ in range(count):
            challenge = frames.encode({"magic": drawn.magic, "challenge": drawn.value()})
            key = drawn.draw.choice((secret, "another"))
            answer = drawn.signed(key, "answer mine")
            said = drawn.draw.choice((drawn.noise(), challenge, challenge + answer))
            said = drawn.mutated(said) if drawn.draw.random() < 0.5 else said
            here, there = socket.socketpair()
            with here, there:
                send_all(there, said)
                words, _, _ = door.introduce(here, hello, secret, time.monotonic() + SOON)
                assert words is None or words.get("magic") == drawn.magic


def lines(drawn: Frames, protocol: str, secret: str, count: int) -> None:
    """What a worker says that was let in: it is heard, or this worker is lost."""

    def nowhere():
        raise OSError("nobody is called")

    for i in range(count):
        rank = i % 2
        line = Lifeline(rank, 2, SOON, find=nowhere, engine=NOBODY)
        here, there = socket.socketpair()
        with here, there, line.changed:
            peer = line._peers[1 - rank] = Peer(here, 1 - rank)
            line._selector.register(here, selectors.EVENT_READ, peer)
            send_all(there, drawn.said())
            while line._peers:
                line._receive(peer)
            assert line.broken is not None or line.left, "a lost worker is not told"
        line._selector.close()


def starts(drawn: Frames, protocol: str, secret: str, count: int) -> None:
    """What a worker says while TensorFlow starts, likewise."""
    for i in range(count):
        here, there = socket.socketpair()
        with here, there, contextlib.suppress(RuntimeError):
            watch = starting.Starting(i % 2, 2, {1 - i % 2: here})
            send_all(there, drawn.said())
            while watch._hear(watch._peers[0]):
                pass


def send_all(there: socket.socket, said: bytes) -> None:
    """Sends it and ends the connection; what does not fit into the buffer is left out."""
    there.settimeout(0.0)
    with contextlib.suppress(BlockingIOError):
        there.send(said)
    there.shutdown(socket.SHUT_WR)


# Which batches there are, and how often each comes: strangers, whom no secret protects from, most.
BATCHES = (
    *[(strangers, protocol) for protocol in MAGICS] * 5,
    *((hellos, protocol) for protocol in ("meeting", "rendezvous")),
    *((answers, protocol) for protocol in MAGICS),
    *[(lines, "lifeline"), (starts, "rendezvous")],
)


def fuzz(count: int, seed: int, batch: int = BATCH) -> dict[tuple, list]:
    """Sends so many frames, batch after batch.  Gives the frames and seconds of each kind."""
    found: dict[tuple, list] = collections.defaultdict(lambda: [0, 0.0])
    for own in itertools.count(seed):
        if count <= 0:
            return found
        kind, protocol = BATCHES[own % len(BATCHES)]
        secret = ("", "of this job")[own // len(BATCHES) % 2]
        begun = time.monotonic()
        try:
            kind(Frames(own, protocol), protocol, secret, batch)
        except BaseException:
            print(f"fuzz: seed {own} fails; `fuzz_frames.py 1 {own}` runs this batch alone")
            raise
        told = found[kind.__name__, protocol, "a secret" if secret else "none"]
        told[0] += batch
        told[1] += time.monotonic() - begun
        count -= batch


def free_port() -> int:
    """A free port that no connection gets as its own: Linux takes these from 32768 on."""
    for port in random.SystemRandom().sample(range(20000, 32768), 100):
        with contextlib.suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            return port
    raise OSError("There is no free port from 20000 to 32767.")


def train(seed: int, count: int, secret: str | None = None) -> str:
    """A training of two workers, beside which so many frames come in at each door of worker 0's.

    Gives the digest of the weights, which all workers have.  `secret` is that of the job; None for
    the launcher's.
    """
    drawn, sent = {name: Frames(seed, name) for name in MAGICS}, []
    with tempfile.TemporaryDirectory() as folder:
        there, master = f"{folder}/doors", f"127.0.0.1:{free_port()}"
        with socket.create_server(there, family=socket.AF_UNIX) as doors:

            def attack() -> None:
                for _ in MAGICS:
                    waiting = doors.accept()[0]
                    with waiting, waiting.makefile() as words:
                        protocol, host, port = json.loads(words.readline())
                        if count:
                            listening((host, port))
                            send((host, port), itertools.repeat(drawn[protocol].stranger, count))
                    sent.append(protocol)

            thread, _ = in_a_thread(attack)
            run = launch("fuzzed.py", there, master, *([] if secret is None else [secret]))
    run.succeeded()
    thread.join(SOON)
    assert sent == list(MAGICS), f"frames came to {sent} alone"
    (first,), (second,) = run.answers()
    assert first == second
    return first["weights"]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"{'what':<10} {'port':<11} {'secret':<9} {'frames':>8} {'a second':>9}")
    for names, (frames_, seconds) in sorted(fuzz(count, seed).items()):
        what, port, secret = names
        print(f"{what:<10} {port:<11} {secret:<9} {frames_:>8} {frames_ / seconds:>9.0f}")
    undisturbed = train(seed, 0)
    for secret in (None, ""):
        each = min(count, TRAINED)
        assert train(seed, each, secret) == undisturbed, "the training ends with other weights"
        told = "none" if secret == "" else "a secret"
        print(f"{'training':<10} {'all':<11} {told:<9} {each * len(MAGICS):>8} the same weights")
    print("no crash, no hang, no effect")


if __name__ == "__main__":
    main()
