"""Makes the network namespaces of a run; `namespaces.py` runs this program once for each.

It imports nothing of grace_tf.  The argument is the number of a descriptor, of a socket that keeps
messages apart; stdin is the order, a JSON object:

    workers    how many namespaces there are beside the switch's
    commands   [namespace, words]: what is to run in which, in this order; 0 is the switch's, and in
               a word {2} is the path of the second worker's
    pair       [namespace, namespace, address of the second]: a connection between these two
    listen     [namespace, address]: a server at any free port

It answers with messages, each a JSON object with some descriptors beside it: {"user": true} with
that of the user namespace, if there is one, {"network": k} with that of namespace k, 0 being the
switch's, {"pair": true} with both ends, {"listening": true} with the server, and at last
{"done": true}; or with one {"why": …} where something is impossible.  No namespace has a name: all
end with the last process and the last descriptor that holds them, so nothing is left behind,
however a run ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # linux/sched.h
_KINDS = "netem", "tbf", "bridge", "veth"  # what a kernel may not have
_CONNECTING = 10.0  # seconds


class Impossible(Exception):
    """This user cannot make these namespaces on this machine; the text says why."""


def call(name: str, *arguments: int) -> None:
    """Calls `unshare` or `setns` of the C library; raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, name)
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def enter_own(user: int, group: int, as_user: int, as_group: int) -> None:
    """Makes a user namespace in which this user and group have these numbers."""
    call("unshare", _NEW_USER)
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{as_user} {user} 1"),
        ("gid_map", f"{as_group} {group} 1"),
    ):
        with open(f"/proc/self/{file}", "w") as opened:
            opened.write(text)


def _namespaces(count: int) -> tuple[list[int], int | None]:
    """The descriptors of new network namespaces; that of the user namespace where one is needed."""
    user = None
    try:
        call("unshare", _NEW_NETWORK)
    except OSError:
        try:
            enter_own(os.getuid(), os.getgid(), 0, 0)
            call("unshare", _NEW_NETWORK)
        except OSError as error:
            raise Impossible(f"this user may not make them here ({error.strerror})") from error
        user = os.open("/proc/self/ns/user", os.O_RDONLY)
    made = []
    for k in range(count):
        if k:
            call("unshare", _NEW_NETWORK)
        made.append(os.open("/proc/self/ns/net", os.O_RDONLY))
    return made, user


def _run(words: list[str], paths: list[str]) -> None:
    words = [word.format(*paths) for word in words]
    try:
        ended = subprocess.run(words, capture_output=True, text=True, close_fds=False)
    except FileNotFoundError:
        raise Impossible(f"there is no command {words[0]!r}") from None
    if ended.returncode:
        what = next((word for word in words if word in _KINDS), "a link")
        said = (ended.stderr.strip().splitlines() or ["it failed"])[0]
        said = said.removeprefix("Error: ").rstrip(".")
        raise Impossible(f"{words[0]} refuses {what}: {said}")


def _server(namespace: int, address: str) -> socket.socket:
    call("setns", namespace, _NEW_NETWORK)
    return socket.create_server((address, 0))


def main() -> int:
    """Makes what the order says; 1 where it is impossible."""
    channel, order = socket.socket(fileno=int(sys.argv[1])), json.load(sys.stdin)

    def say(words: dict, *descriptors: int) -> None:
        socket.send_fds(channel, [json.dumps(words).encode()], descriptors)

    try:
        made, user = _namespaces(1 + order["workers"])
        paths = [f"/proc/{os.getpid()}/fd/{each}" for each in made]
        for k, words in order["commands"]:
            call("setns", made[k], _NEW_NETWORK)
            _run(words, paths)
        if user is not None:
            say({"user": True}, user)
        for k, each in enumerate(made):
            say({"network": k}, each)
        here, there, address = order["pair"]
        with _server(made[there], address) as server:
            call("setns", made[here], _NEW_NETWORK)
            with socket.create_connection(server.getsockname(), timeout=_CONNECTING) as first:
                with server.accept()[0] as second:
                    say({"pair": True}, first.fileno(), second.fileno())
        k, address = order["listen"]
        with _server(made[k], address) as server:
            say({"listening": True}, server.fileno())
    except (Impossible, OSError) as error:
        say({"why": str(error)})
        return 1
    say({"done": True})
    return 0


if __name__ == "__main__":
    sys.exit(main())
