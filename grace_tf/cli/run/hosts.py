"""The hosts of a run and their slots."""

from __future__ import annotations

import socket
from collections.abc import Sequence


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """`"localhost:2,a"` -> `[("localhost", 2), ("a", 1)]`; ValueError if it is not such a list."""
    hosts = []
    for item in text.split(","):
        name, colon, slots = item.strip().rpartition(":")
        if not colon:
            name, slots = slots, "1"
        # What begins with a dash would be an option of ssh.
        wrong = not name or name[0] == "-" or any(sign.isspace() for sign in name)
        if wrong or not slots.isdecimal() or int(slots) < 1:
            raise ValueError(f"-H takes host:slots,host:slots,…, but got {item.strip()!r}.")
        hosts.append((name, int(slots)))
    return hosts


def of_workers(hosts: Sequence[tuple[str, int]] | None, workers: int) -> list[str]:
    """The host of each worker: each host's slots are filled before the next host's.

    Raises ValueError for less than one worker, for a host given twice, and for too few slots.
    """
    if workers < 1:
        raise ValueError(f"A run needs at least one worker, but got {workers}.")
    hosts = hosts or [("localhost", workers)]
    names = [name for name, _ in hosts]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"Host {name!r} is named twice: give all its slots at once.")
    local = [name for name in names if is_this_machine(name)]
    if len(local) > 1:
        both = f"{local[0]!r} and {local[1]!r}"
        raise ValueError(f"Hosts {both} are both this machine: give all its slots at once.")
    filled = [name for name, slots in hosts for _ in range(slots)]
    if len(filled) < workers:
        raise ValueError(f"The hosts have {len(filled)} slots, but {workers} workers are to run.")
    return filled[:workers]


def is_loopback(host: str) -> bool:
    """Whether a host has this name only on itself."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_this_machine(host: str) -> bool:
    """Whether a name or address is this machine's.  With a user's name (`user@host`) none is."""
    if is_loopback(host) or host == socket.gethostname():
        return True
    return any(_is_own(family, address) for family, address in _addresses(host))


def has_address(host: str) -> bool:
    """Whether a name is known here; ssh also takes names that its own configuration explains."""
    return bool(_addresses(host))


def _addresses(host: str) -> list[tuple[int, tuple]]:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [(family, address) for family, _, _, _, address in found]


def _is_own(family: int, address: tuple) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)  # no system binds an address that it does not have
            return True
    except OSError:
        return False
