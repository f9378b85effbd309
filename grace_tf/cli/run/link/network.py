"""The network between the workers of a run with `--link`: chosen, made, measured and described."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from grace_tf.cli.run.link import namespaces, relays
from grace_tf.cli.run.link.forwarder import Forwarder
from grace_tf.cli.run.link.measured import measure
from grace_tf.cli.run.link.namespaces import CannotMake, Namespaces
from grace_tf.cli.run.link.rates import NAMESPACES, RELAY, Link, bits, milliseconds, parse_link
from grace_tf.cli.run.link.relays import Relays
from grace_tf.cli.run.local_and_ssh import Local

_SHORT = 0.8  # of the wanted rate; a measured one below it is said to be too low


class CannotEmulate(Exception):
    """The links cannot be emulated here; the text is a sentence without its stop."""


def wanted_link(text: str | None, workers: int, hosts: object) -> Link | None:
    """What `--link` says, None without it; raises ValueError where it does not fit the run."""
    if text is None:
        return None
    if hosts is not None:
        raise ValueError("--link emulates links between workers of this machine: leave out -H.")
    if workers < 2:
        raise ValueError("--link needs at least two workers, since one exchanges nothing.")
    return parse_link(text)


class InNamespaces:
    """The workers' network where each worker has a network namespace.

    Attributes: interface, the name of each worker's network interface; true, the addresses at which
    the workers listen.
    """

    interface = namespaces.INTERFACE

    def __init__(self, made: Namespaces, ports: Sequence[int]):
        self._made = made
        self.true = [f"{namespaces.address(i)}:{port}" for i, port in enumerate(ports)]

    def seen_by(self, worker: int) -> list[str]:
        """The addresses at which a worker reaches all workers."""
        return self.true

    @contextlib.contextmanager
    def reachable(self, port: int) -> Iterator[tuple[str, int]]:
        """The address and port by which workers reach this port of the launcher's 127.0.0.1."""
        with Forwarder(self._made.server, "127.0.0.1", port):
            yield self._made.server.getsockname()[:2]


class ThroughRelays:
    """The workers' network where a relay is between their ports; see `InNamespaces`."""

    interface = relays.INTERFACE

    def __init__(self, made: Relays):
        self.true, self.seen_by = made.true, made.seen_by

    @contextlib.contextmanager
    def reachable(self, port: int) -> Iterator[tuple[str, int]]:
        """The launcher's own address, which is that of all workers too."""
        yield "127.0.0.1", port


Network = InNamespaces | ThroughRelays


@contextlib.contextmanager
def network(
    link: Link, places: Sequence[Local], horovod: bool, say: Callable[[str], None]
) -> Iterator[Network]:
    """Makes the workers' network, prints its kind and measured rate, and removes it at the end.

    Raises CannotEmulate where this machine cannot do it.
    """
    ports = [place.port for place in places]
    try:
        if link.way == RELAY:
            raise CannotMake("not wanted")
        made = Namespaces(link, len(places))
    except CannotMake as why:
        _refuse_relay(link, horovod, why)
        with Relays(link, ports) as made:
            how = f"a TCP relay between the workers' ports (network namespaces: {why})"
            _tell(say, made, link, how)
            yield ThroughRelays(made)
        return
    with made:
        _tell(say, made, link, "network namespaces, in which workers reach only each other")
        for worker, place in enumerate(places):
            place.enter = made.entering(worker)
        yield InNamespaces(made, ports)


def _refuse_relay(link: Link, horovod: bool, why: CannotMake) -> None:
    if link.way == NAMESPACES:
        raise CannotEmulate(f"cannot emulate links by network namespaces: {why}") from why
    if horovod:
        raise CannotEmulate(
            "cannot emulate links for Horovod, whose workers listen at ports of which no relay "
            f"knows, without network namespaces: {why}"
        ) from why


def _tell(say: Callable[[str], None], made: Namespaces | Relays, link: Link, how: str) -> None:
    rate, latency = measure(*made.pair, link)
    short = ", all that this machine gives now" if rate < _SHORT * link.rate else ""
    say(
        f"every worker has a link of {link}, by {how}; measured from worker 0 to 1: {bits(rate)} "
        f"and {milliseconds(latency)}{short}."
    )
