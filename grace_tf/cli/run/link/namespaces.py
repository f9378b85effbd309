"""`Namespaces`: a network namespace for each worker, joined by a bridge whose links are shaped.

Each worker has a veth pair to the bridge, with a token bucket (tbf) at both ends: one limits what
the worker sends, the other what it receives.  `namespaces_program.py` makes them in a process of
its own and hands over their descriptors; they end with these and with the workers.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from grace_tf.cli.run.link import namespaces_program
from grace_tf.cli.run.link.rates import Link
from grace_tf.cli.run.remote_worker import end_with

INTERFACE = "eth0"  # of each worker
_NETWORK = ipaddress.ip_network("10.77.0.0/16")  # nothing else is in these namespaces
_SWITCH = str(_NETWORK[-2])
_QUEUE = 0.1  # seconds of the rate that wait before packets are dropped
_LEAST_QUEUE = 128_000  # bytes: two of the largest segments that TCP hands over
_PACKETS = 100_000  # that netem holds back at most
_LONGEST = 1 << 16  # bytes of a message of the program
_MAKING = 60.0  # seconds
_NEW_USER, _NEW_NETWORK, _NEW_NAME = 0x10000000, 0x40000000, 0x04000000  # linux/sched.h


class CannotMake(Exception):
    """This machine or user cannot have such namespaces; the text says why."""


def address(worker: int) -> str:
    """The address of a worker in its namespace."""
    return str(_NETWORK[1 + worker])


def commands(link: Link, workers: int) -> list[tuple[int, list[str]]]:
    """What joins the namespaces, as (namespace, words); 0 is the bridge's, then the workers'.

    `{2}` stands for the path of the second worker's namespace.
    """
    found = [
        (0, ["ip", "link", "add", "br0", "type", "bridge"]),
        (0, ["ip", "addr", "add", f"{_SWITCH}/{_NETWORK.prefixlen}", "dev", "br0"]),
        (0, ["ip", "link", "set", "br0", "up"]),
    ]
    queue = max(_LEAST_QUEUE, round(_QUEUE * link.rate / 8)) + link.burst
    shape = ["handle", "1:", "tbf", "rate", f"{round(link.rate)}bit"]
    shape += ["burst", f"{link.burst}b", "limit", f"{queue}b"]
    delay = ["netem", "delay", f"{round(1e6 * link.latency)}us", "limit", str(_PACKETS)]
    for k in range(1, workers + 1):
        port, own = f"p{k}", f"{address(k - 1)}/{_NETWORK.prefixlen}"
        ends = ["name", port, "type", "veth", "peer", "name", INTERFACE, "netns", f"{{{k}}}"]
        found += [
            (0, ["ip", "link", "add", *ends]),
            (k, ["tc", "qdisc", "add", "dev", INTERFACE, "root", *shape]),
            (0, ["tc", "qdisc", "add", "dev", port, "root", *shape]),
        ]
        if link.latency:
            found.append((k, ["tc", "qdisc", "add", "dev", INTERFACE, "parent", "1:1", *delay]))
        found += [
            (0, ["ip", "link", "set", port, "master", "br0", "up"]),
            (k, ["ip", "link", "set", "lo", "up"]),
            (k, ["ip", "addr", "add", own, "dev", INTERFACE]),
            (k, ["ip", "link", "set", INTERFACE, "up"]),
        ]
    return found


class Namespaces:
    """The namespaces of a run of two workers or more; a context, which gives them up at its end.

    Raises CannotMake where this is impossible here.

    Attributes: pair, a connection from worker 0 to worker 1, both of whose ends are here; server,
    a socket that listens at the bridge, where all workers reach it.
    """

    def __init__(self, link: Link, workers: int):
        self._held = contextlib.ExitStack()
        self._user: int | None = None
        self._networks: list[int] = []
        order = {
            "workers": workers,
            "commands": commands(link, workers),
            "pair": [1, 2, address(1)],
            "listen": [0, _SWITCH],
        }
        with self._held:
            self._make(json.dumps(order))
            self._held = self._held.pop_all()

    def __enter__(self) -> Namespaces:
        return self

    def __exit__(self, *_) -> None:
        self._held.close()

    def entering(self, worker: int) -> Callable[[], None]:
        """A function with which a child process enters the namespace of a worker before exec.

        There its user has the same number as here, and no rights over the network.  Its host's name
        is its address, since Gloo connects Horovod's workers by the addresses of their names.
        """
        user, network = self._user, self._networks[1 + worker]
        mine, group = os.getuid(), os.getgid()

        def enter() -> None:
            if user is not None:
                namespaces_program.call("setns", user, _NEW_USER)
            namespaces_program.call("setns", network, _NEW_NETWORK)
            namespaces_program.call("unshare", _NEW_NAME)
            socket.sethostname(address(worker))
            if user is not None:
                namespaces_program.enter_own(0, 0, mine, group)

        return enter

    def _make(self, order: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            words = [sys.executable, "-IS", namespaces_program.__file__, str(theirs.fileno())]
            program = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that Ctrl-C does not interrupt it
                preexec_fn=end_with(os.getpid()),
                text=True,
            )
            theirs.close()
            with program, contextlib.ExitStack() as unless_done:
                unless_done.callback(program.kill)
                with contextlib.suppress(BrokenPipeError):
                    program.stdin.write(order)
                    program.stdin.close()
                while self._take(ours):
                    continue
                unless_done.pop_all()

    def _take(self, channel: socket.socket) -> bool:
        """Takes the next message of the program; False for the last one."""
        if not select.select([channel], [], [], _MAKING)[0]:
            raise CannotMake(f"making them took more than {_MAKING:g} s")
        message, descriptors, _, _ = socket.recv_fds(channel, _LONGEST, 2)
        words = json.loads(message or '{"why": "the program that makes them was killed"}')
        for each in descriptors:
            os.set_inheritable(each, False)
        if "user" in words:
            (self._user,) = self._own(descriptors)
        elif "network" in words:
            self._networks += self._own(descriptors)
        elif "pair" in words:
            self.pair = tuple(map(self._socket, descriptors))
        elif "listening" in words:
            self.server = self._socket(descriptors[0])
        elif "why" in words:
            raise CannotMake(words["why"])
        return "done" not in words

    def _own(self, descriptors: Sequence[int]) -> Sequence[int]:
        for each in descriptors:
            self._held.callback(os.close, each)
        return descriptors

    def _socket(self, descriptor: int) -> socket.socket:
        return self._held.enter_context(socket.socket(fileno=descriptor))
