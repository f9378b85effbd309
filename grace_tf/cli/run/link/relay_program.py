"""Shapes what workers send each other; `relays.py` runs this program once for each run.

It imports nothing of grace_tf.  stdin is one line, a JSON object, and its end is the program's:

    rate, latency  of every worker's link, in bits a second and seconds
    burst          the bytes that may pass at once after silence
    routes         [descriptor of a server, host, port, sender, receiver]: each connection to this
                   server comes from the first worker and goes on to this address, the second's

Each worker has two shapers, for what it sends and for what it receives, of all its connections.
Bytes arrive when both have let them pass, and the latency is over.  A connection to a worker that
does not listen is reset; an end of one direction is passed on behind its last byte.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import json
import os
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence

_PASSING = 1e-3  # seconds that a piece takes to pass, so that connections of a worker take turns
_LEAST, _MOST = 1500, 1 << 16  # bytes of a piece
_AHEAD = 4e-3  # seconds that a direction may read ahead of what has passed
_WAITING = 1 << 18  # bytes beside those under way that may wait for their receiver
_FOR_SELECT = 56  # routes, which need a few hundred descriptors, and select() serves 1024
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class Shaper:
    """Lets bytes pass at a rate, in the order of the calls; `burst` bytes at once after silence.

    So a process that wakes late, on a busy machine, makes up for it.
    """

    def __init__(self, rate: float, burst: int):
        self._rate, self._late, self._free = rate, 8 * burst / rate, 0.0

    def reserve(self, now: float, count: int) -> tuple[float, float]:
        """The times when the first and the last of `count` bytes pass."""
        begin = max(now - self._late, self._free)
        self._free = begin + 8 * count / self._rate
        return begin, self._free


class Link:
    """The shapers of all workers; units as in the order.

    Attributes: now, the clock; piece, the bytes that pass at once; waiting, the bytes of a
    direction that may be under way or wait for their receiver.
    """

    def __init__(self, rate: float, latency: float, burst: int, now: Callable[[], float]):
        self.latency, self.now = latency, now
        self.piece = min(_MOST, max(_LEAST, round(_PASSING * rate / 8)))
        self.waiting = _WAITING + round(latency * rate / 8)
        new = functools.partial(Shaper, rate, burst)
        self._sends = collections.defaultdict(new)
        self._receives = collections.defaultdict(new)

    def arrival(self, sender: int, receiver: int, count: int) -> tuple[float, float]:
        """When `count` bytes that a worker sends now have passed both shapers, and arrive."""
        now = self.now()
        begin, _ = self._sends[sender].reserve(now, count)
        # The second shaper begins with the first byte that the other lets pass.
        _, passed = self._receives[receiver].reserve(begin, count)
        return passed, max(now, passed) + self.latency


class Direction:
    """One direction of a connection, from one worker to another.

    `reads` ends when its source has ended, `writes` when all has been delivered and the target
    knows the end.  Either raises OSError where the connection is lost.
    """

    def __init__(self, link: Link, source: socket.socket, target: socket.socket, *workers: int):
        self._link, self._source, self._target, self._workers = link, source, target, workers
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._held, self._room = 0, asyncio.Event()

    async def reads(self) -> None:
        loop, data = asyncio.get_running_loop(), b"."
        while data:
            data = await loop.sock_recv(self._source, self._link.piece)
            passed, arrival = self._link.arrival(*self._workers, len(data))
            self._queue.put_nowait((arrival, data))
            self._held += len(data)
            while self._held > self._link.waiting:
                self._room.clear()
                await self._room.wait()
            await self._until(passed, _AHEAD)

    async def writes(self) -> None:
        loop, data = asyncio.get_running_loop(), b"."
        while data:
            arrival, data = await self._queue.get()
            await self._until(arrival, 0.0)
            await loop.sock_sendall(self._target, data)
            self._held -= len(data)
            self._room.set()
        self._target.shutdown(socket.SHUT_WR)

    async def _until(self, when: float, ahead: float) -> None:
        early = when - self._link.now()
        if early > ahead:
            await asyncio.sleep(early - ahead / 2)


async def connect(link: Link, caller: socket.socket, to: tuple[str, int], *workers: int) -> None:
    """Serves one connection until both directions have ended, or an end is lost."""
    loop = asyncio.get_running_loop()
    called = socket.socket()
    with caller, called:
        for end in (caller, called):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tasks: list[asyncio.Task] = []
        try:
            await loop.sock_connect(called, to)
            there = Direction(link, caller, called, *workers)
            back = Direction(link, called, caller, *reversed(workers))
            works = there.reads(), there.writes(), back.reads(), back.writes()
            tasks += [asyncio.create_task(work) for work in works]
            await asyncio.gather(*tasks)
        except OSError:
            for end in (caller, called):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def serve(link: Link, server: socket.socket, to: tuple[str, int], *workers: int) -> None:
    """Serves all connections of one route, for ever."""
    loop, served = asyncio.get_running_loop(), set()
    server.setblocking(False)
    while True:
        caller, _ = await loop.sock_accept(server)
        task = asyncio.create_task(connect(link, caller, to, *workers))
        served.add(task)  # the loop itself refers to tasks weakly
        task.add_done_callback(served.discard)


async def serve_all(rate: float, latency: float, burst: int, routes: Sequence[Sequence]) -> None:
    """Serves all routes, for ever."""
    link = Link(rate, latency, burst, asyncio.get_running_loop().time)
    works = []
    for descriptor, host, port, caller, called in routes:
        server = socket.socket(fileno=descriptor)
        works.append(serve(link, server, (host, port), caller, called))
    await asyncio.gather(*works)


def loop_for(routes: int) -> asyncio.AbstractEventLoop:
    """A loop whose timers are as exact as it can be: those of epoll count milliseconds."""
    if routes > _FOR_SELECT:
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def main() -> None:
    """Serves what the order says until stdin ends."""
    order = json.loads(sys.stdin.buffer.readline())

    def end() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    loop = loop_for(len(order["routes"]))
    loop.run_until_complete(serve_all(**order))


if __name__ == "__main__":
    main()
