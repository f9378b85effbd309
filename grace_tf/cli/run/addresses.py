"""Makes the environment variables by which a worker finds the others.

From the places of all workers (local_and_ssh.py) it makes an environment for each: TF_CONFIG, the
user's exports, and for Horovod the variables by which its workers find each other.  With emulated
links the addresses are those of the workers' network (link/network.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from grace_tf.cli.run.hosts import has_address, is_loopback
from grace_tf.cli.run.link.gpus import one_gpu
from grace_tf.cli.run.link.network import Network
from grace_tf.cli.run.local_and_ssh import Place, Remote
from grace_tf.cli.run.remote_worker import interface

# The variables that workers on other hosts get from here; workers on this machine get all of them.
_SENT = "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "TF_CPP_MIN_LOG_LEVEL"
_SECRET = "GRACE_TF_SECRET"  # as transports/lifeline/secret.py reads it
_THIS_MACHINE, _LOOPBACK = "127.0.0.1", "lo"


def exported(wanted: Sequence[str]) -> dict[str, str]:
    """The variables that `-x NAME` (its value here) and `-x NAME=VALUE` set for every worker.

    Raises ValueError for a variable that is not set here.
    """
    found = {}
    for each in wanted:
        name, given, value = each.partition("=")
        if not name or not (given or name in os.environ):
            raise ValueError(f"-x takes NAME=VALUE or a NAME that is set here, but got {each!r}.")
        found[name] = value if given else os.environ[name]
    return found


@contextlib.contextmanager
def environments(
    places: Sequence[Place],
    verbose: bool,
    horovod: bool,
    exports: Mapping[str, str] | None = None,
    network: Network | None = None,
) -> Iterator[list[dict[str, str]]]:
    """One environment for each worker.

    A worker on this machine gets exactly this environment; on another host the variables are added
    to the host's own.

    With `horovod` the workers meet at this launcher, as long as the context lasts.  Raises
    ValueError where this Python has no Horovod.
    """
    hosts, launcher = _hosts(places)
    addresses = [f"{_bracketed(host)}:{place.port}" for host, place in zip(hosts, places)]
    interfaces, reachable = _interfaces(places), None
    if network is not None:
        addresses = network.true
        hosts = [address.rpartition(":")[0] for address in addresses]
        interfaces, reachable = [network.interface] * len(places), network.reachable
    meeting = contextlib.nullcontext([{}] * len(places))
    if horovod:
        meeting = _of_horovod(hosts, launcher, interfaces, reachable)
    unless_set = {} if verbose else {"TF_CPP_MIN_LOG_LEVEL": "2"}
    sent = {name: os.environ[name] for name in _SENT if name in os.environ}
    secret = {_SECRET: secrets.token_hex(32)}  # of this run; to other hosts it goes through ssh
    with meeting as of_horovod:
        found = []
        for rank, (place, more) in enumerate(zip(places, of_horovod)):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            if network is not None and (seen := network.seen_by(rank)) != addresses:
                # TensorFlow connects to the addresses in "cluster", which differ between workers.
                # The workers compare those in "grace_tf", which are the same for all of them.
                task.update({"cluster": {"worker": seen}, "grace_tf": {"addresses": addresses}})
            mine = {**unless_set, **(os.environ if place.here else sent), **(exports or {})}
            if network is not None:
                mine.update(one_gpu(rank, mine))
            found.append({**mine, "TF_CONFIG": json.dumps(task), **secret, **more})
        yield found


def _hosts(places: Sequence[Place]) -> tuple[list[str], str]:
    """(each worker's host, this machine), by names or addresses that all workers can use."""
    far = [place for place in places if not place.here]
    if not far:
        return [_THIS_MACHINE] * len(places), _THIS_MACHINE
    named = [place.host for place in places if place.here and not is_loopback(place.host)]
    # The others cannot use a name that only this machine knows; they get its address.
    launcher = (named or [far[0].client] or [])[0] or socket.gethostname()
    return [launcher if place.here else _of_other(place) for place in places], launcher


def _interfaces(places: Sequence[Place]) -> list[str]:
    """The network interface by which each worker is reached; "" where that is not known."""
    far = [place for place in places if not place.here]
    here = interface(far[0].client) if far else _LOOPBACK
    return [here if place.here else place.interface for place in places]


def _of_other(place: Remote) -> str:
    name = place.host.rpartition("@")[2]
    return name if has_address(name) else place.server or name


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def _of_horovod(
    hosts: Sequence[str],
    launcher: str,
    interfaces: Sequence[str],
    reachable: Callable[[int], AbstractContextManager[tuple[str, int]]] | None,
) -> Iterator[list[dict[str, str]]]:
    """Horovod's variables for each worker; their meeting point exists while this context lasts.

    `reachable` gives the address and port by which workers reach a port of the launcher, where it
    is not `launcher` and the same port.
    """
    try:
        from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
        from horovod.runner.http.http_server import RendezvousServer
    except ImportError as error:
        raise ValueError(f"--horovod needs Horovod, which cannot be imported: {error}.") from error
    server = RendezvousServer()
    port = server.start()
    infos = [HostInfo(host, hosts.count(host)) for host in dict.fromkeys(hosts)]
    slots = get_host_assignments(infos, len(hosts))
    server.init(slots)
    names = "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"
    found = []
    with contextlib.ExitStack() as held:
        held.callback(server._httpd.server_close)  # stop() leaves its port open
        held.callback(server.stop)
        at = held.enter_context(reachable(port)) if reachable else (launcher, port)
        fixed = {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": at[0],
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(at[1]),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }
        for slot, interface in zip(slots, interfaces):
            mine = {f"HOROVOD_{name.upper()}": str(getattr(slot, name)) for name in names}
            mine["HOROVOD_HOSTNAME"] = slot.hostname
            if interface:  # else Gloo takes the interface of the host's name
                mine["HOROVOD_GLOO_IFACE"] = interface
            found.append({**fixed, **mine})
        yield found
