"""What tells a worker of this machine who the others are.

In comes the number of workers; out goes an environment for each: TF_CONFIG, and for Horovod the
variables by which its workers find each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def environments(workers: int, verbose: bool, horovod: bool) -> Iterator[list[dict[str, str]]]:
    """One environment per worker, with TF_CONFIG on free loopback ports.

    With `horovod` the workers meet there too, as long as the context lasts.  Raises ValueError
    where this Python has no Horovod.
    """
    own = _of_horovod(workers) if horovod else contextlib.nullcontext([{}] * workers)
    with own as of_horovod:
        of_all = _of_tensorflow(workers, verbose)
        yield [{**mine, **more} for mine, more in zip(of_all, of_horovod)]


def _of_tensorflow(workers: int, verbose: bool) -> list[dict[str, str]]:
    with contextlib.ExitStack() as held:
        # All are held until all are known, so that no two workers get the same port.
        sockets = [held.enter_context(socket.socket()) for _ in range(workers)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    found = []
    for rank in range(workers):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        quiet = {} if verbose else {"TF_CPP_MIN_LOG_LEVEL": "2"}
        found.append({**quiet, **os.environ, "TF_CONFIG": json.dumps(task)})
    return found


@contextlib.contextmanager
def _of_horovod(workers: int) -> Iterator[list[dict[str, str]]]:
    """Horovod's variables for each worker; their meeting point exists while this context lasts."""
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer
    except ImportError as error:
        raise ValueError(f"--horovod needs Horovod, which cannot be imported: {error}.") from error
    server = RendezvousServer()
    port = server.start()
    slots = get_host_assignments(parse_hosts(f"localhost:{workers}"), workers)
    server.init(slots)
    fixed = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_HOSTNAME": "localhost",
    }
    names = "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"
    try:
        yield [
            {**fixed, **{f"HOROVOD_{name.upper()}": str(getattr(slot, name)) for name in names}}
            for slot in slots
        ]
    finally:
        server.stop()
        server._httpd.server_close()  # stop() leaves its port open
