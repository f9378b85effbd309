"""Opens the server sockets at which workers listen for each other."""

from __future__ import annotations

import socket


def listen(port: int) -> socket.socket:
    """A server at this port (0: any free one) of all addresses of this machine."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
