"""`Relays`: TCP relays between the workers' ports, in one process, which shapes what passes.

No privilege is needed.  Each worker has an address of its own in 127.0.0.0/8 and sees every other
one at a port of the relay that is for these two only, so that the relay knows who sends what to
whom.  `relay_program.py` runs in a process of its own, which ends with this one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from grace_tf.cli.run.link import relay_program
from grace_tf.cli.run.link.rates import Link
from grace_tf.cli.run.remote_worker import end_with

INTERFACE = "lo"
_FIRST = ipaddress.ip_address("127.0.0.2")  # of worker 0
_CONNECTING = 10.0  # seconds


class Relays:
    """The relays of a run whose workers listen at these ports; a context, which ends them.

    Attributes: pair, a connection from worker 0 to worker 1, both of whose ends are here.
    """

    def __init__(self, link: Link, ports: Sequence[int]):
        self._held = contextlib.ExitStack()
        self._ports = ports
        self._seen = [[address(i, port) for i, port in enumerate(ports)] for _ in ports]
        with self._held:
            self._start(link)
            self._held = self._held.pop_all()

    def __enter__(self) -> Relays:
        return self

    def __exit__(self, *_) -> None:
        self._held.close()

    @property
    def true(self) -> list[str]:
        """The addresses at which the workers listen."""
        return [address(i, port) for i, port in enumerate(self._ports)]

    def seen_by(self, worker: int) -> list[str]:
        """The addresses that a worker uses: its own, and the relay's ports for the others."""
        return self._seen[worker]

    def _start(self, link: Link) -> None:
        routes: list[list] = []
        with contextlib.ExitStack() as servers:

            def listen(worker: int) -> socket.socket:
                return servers.enter_context(socket.create_server((_host(worker), 0)))

            for caller, seen in enumerate(self._seen):
                for called, port in enumerate(self._ports):
                    if caller != called:
                        server = listen(called)
                        seen[called] = address(called, server.getsockname()[1])
                        routes.append([server.fileno(), _host(called), port, caller, called])
            measured, server = listen(1), listen(1)
            routes.append([server.fileno(), *measured.getsockname(), 0, 1])
            order = {"rate": link.rate, "latency": link.latency, "burst": link.burst}
            self._run({**order, "routes": routes})
            here = socket.create_connection(server.getsockname(), timeout=_CONNECTING)
            self._held.enter_context(here)
            measured.settimeout(_CONNECTING)
            self.pair = here, self._held.enter_context(measured.accept()[0])

    def _run(self, order: dict) -> None:
        program = subprocess.Popen(
            [sys.executable, "-IS", relay_program.__file__],
            stdin=subprocess.PIPE,
            pass_fds=[route[0] for route in order["routes"]],
            start_new_session=True,  # Ctrl-C ends the workers first
            preexec_fn=end_with(os.getpid()),
        )
        self._held.enter_context(program)  # closes its stdin, which ends it, and waits for it
        self._held.callback(program.kill)
        program.stdin.write(json.dumps(order).encode() + b"\n")
        program.stdin.flush()


def address(worker: int, port: int) -> str:
    """host:port of a worker, or of a port that stands for it."""
    return f"{_host(worker)}:{port}"


def _host(worker: int) -> str:
    return str(_FIRST + worker)
