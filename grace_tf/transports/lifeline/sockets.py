"""Opens the server sockets at which workers listen for each other."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence


def listen(port: int, host: str = "", here: bool = False) -> socket.socket:
    """A server at this port (0: any free one) of the address that `host` means here.

    `host` is the name or address under which the others reach this worker, and `here` says that all
    of them are on this machine.  The server listens at all addresses where `host` is "", or no
    single address of this machine, as behind NAT.  It does so too where `host` is a loopback
    address and others may be elsewhere: a worker that is told "localhost" has other names there.
    """
    address = _own(host.strip("[]"), here) if host else None
    if address is not None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            return socket.create_server((address, port), family=family)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def hold() -> socket.socket:
    """A free port of all addresses, which no other process gets; nobody can connect to it."""
    both = socket.has_dualstack_ipv6()
    held = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    if both:
        held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    held.bind(("", 0))
    return held


def on_one_machine(hosts: Sequence[str]) -> bool:
    """Whether these hosts of all workers mean this machine, or one machine by one name."""
    return len(set(hosts)) == 1 or all(map(_is_loopback, hosts))


def _own(host: str, here: bool) -> str | None:
    """The single address that a host means; None where it has several, or may mean others."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return None
    loopback = sorted(address for address in found if _is_loopback(address))
    if loopback:
        return loopback[0] if here else None
    return found.pop() if len(found) == 1 else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
