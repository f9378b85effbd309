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
        if not name or not slots.isdigit() or int(slots) < 1:
            raise ValueError(f"-H takes host:slots,host:slots,…, but got {item.strip()!r}.")
        hosts.append((name, int(slots)))
    return hosts


def check_hosts(hosts: Sequence[tuple[str, int]] | None, workers: int) -> None:
    """Raises ValueError for less than one worker, for another host, or for too few slots."""
    if workers < 1:
        raise ValueError(f"A run needs at least one worker, but got {workers}.")
    for name, _ in hosts or ():
        if name not in ("localhost", "::1", socket.gethostname()) and not name.startswith("127."):
            raise ValueError(
                f"{name!r} is another host: this launcher starts workers on this machine only; on "
                "several, start one process on each with TF_CONFIG set, remote hosts come later."
            )
    if hosts and sum(slots for _, slots in hosts) < workers:
        slots = sum(slots for _, slots in hosts)
        raise ValueError(f"The hosts have {slots} slots, but {workers} workers were asked for.")
