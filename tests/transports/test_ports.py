"""At which addresses workers listen, and from where they have the secret of the job."""

import os
import socket
from unittest import mock

import pytest

from grace_tf.transports import reception
from grace_tf.transports.lifeline import lifeline, secret, sockets
from grace_tf.transports.world import meeting

ALL = {"::", "0.0.0.0"}


def meaning(**names):
    """Replaces the resolver: each name has the given addresses, and no other name exists."""

    def found(host, *_, **__):
        if host not in names:
            raise socket.gaierror("no such name")
        return [(0, 0, 0, "", (address, 0)) for address in names[host]]

    return mock.patch.object(sockets.socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    ("host", "here", "at"),
    [
        ("127.0.0.1", True, {"127.0.0.1"}),
        ("localhost", True, {"127.0.0.1"}),
        ("own", True, {"127.0.0.2"}),  # on Debian a host's own name means a loopback address
        ("::1", True, {"::1", *ALL}),  # where there is IPv6
        # Others may have a name for this host that means another address of it.
        ("localhost", False, ALL),
        ("own", False, ALL),
        ("nat", False, ALL),
        ("two", False, ALL),
        ("unknown", False, ALL),
        ("", False, ALL),
    ],
)
def test_a_worker_listens_where_the_others_reach_it(host, here, at):
    names = {"127.0.0.1": ["127.0.0.1"], "localhost": ["::1", "127.0.0.1"], "::1": ["::1"]}
    names.update(own=["127.0.0.2"], nat=["203.0.113.7"], two=["203.0.113.7", "203.0.113.8"])
    with meaning(**names), sockets.listen(0, host, here) as server:
        assert server.getsockname()[0] in at


def test_an_address_of_this_machine_is_the_only_one():
    """127.0.0.2 stands for an address in a network, which a test cannot count on."""
    with mock.patch.object(sockets, "_is_loopback", lambda host: False):
        with sockets.listen(0, "127.0.0.2") as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.2", port), 20).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 20)
            with pytest.raises(OSError, match="in use"):  # no other address instead
                sockets.listen(port, "127.0.0.2")


def test_which_hosts_are_one_machine():
    assert sockets.on_one_machine(["node", "node"])
    assert sockets.on_one_machine(["127.0.0.1", "localhost", "[::1]"])
    assert not sockets.on_one_machine(["localhost", "node"])


def test_all_ports_are_those_of_the_group(monkeypatch):
    asked = []

    def listen(*where):
        asked.append(where[1:])
        raise OSError("it is enough")

    monkeypatch.setattr(reception, "listen", listen)
    monkeypatch.setattr(lifeline, "listen", listen)
    for master in ("127.0.0.1:1", "localhost:1", "node:1"):
        with pytest.raises(RuntimeError, match="cannot listen at"):
            meeting.addresses_of_all(master, 0, 2, 1.0)
    with pytest.raises(OSError):
        lifeline.offer("node", True)
    assert asked == [("127.0.0.1", True), ("localhost", False), ("node", False), ("node", True)]


def test_a_port_that_is_held_lets_nobody_in():
    with sockets.hold() as held:
        port = held.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 20)
        with pytest.raises(OSError, match="in use"):
            sockets.listen(port)
    sockets.listen(port).close()


@pytest.mark.parametrize(
    ("given", "variables", "found"),
    [
        (None, {}, ""),
        ("mine", {"GRACE_TF_SECRET": "the launcher's"}, "mine"),
        ("", {"GRACE_TF_SECRET": "the launcher's"}, ""),
        (None, {"GRACE_TF_SECRET": "the launcher's"}, "the launcher's"),
        (None, {"OMPI_COMM_WORLD_RANK": "0", secret._OF_MPIRUN: "5fbd-80f9"}, "5fbd-80f9"),
        # Not started by mpirun, but from a shell that was.
        (None, {secret._OF_MPIRUN: "5fbd-80f9"}, ""),
        # The number of SLURM's job is no secret.
        (
            None,
            {"OMPI_COMM_WORLD_RANK": "0", secret._OF_MPIRUN: "017569a900000000-017569a900000000"},
            "",
        ),
        (None, {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, ""),
    ],
)
def test_where_the_secret_comes_from(given, variables, found):
    with mock.patch.dict(os.environ, variables, clear=True):
        assert secret.of_job(given) == found
