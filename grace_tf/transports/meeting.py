"""From the address of worker 0 alone to the addresses of all workers.

In come this worker's rank and where worker 0 listens; out go all addresses, the same list on each.
A worker tells a free port of its own, and worker 0 sees from where it connects.  `rendezvous.meet`
then takes place at these addresses, as it does where they were known from the start.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import time

from grace_tf.transports.rendezvous import listen

_MAGIC = "grace_tf meeting"
_LONGEST = 1 << 20  # bytes of a line


def addresses_of_all(master: str, rank: int, size: int, timeout: float) -> list[str]:
    """Every worker's `host:port`, in the order of ranks; worker 0 has the host of `master`.

    Args:
      master: `host:port` of worker 0, the same on all workers.
      timeout: seconds to wait for the others.
    Raises: RuntimeError where not all come in time, two come with one rank, or they differ in size.
    """
    host, _, port = master.rpartition(":")
    deadline = time.monotonic() + timeout
    if rank == 0:
        return _collect(host, int(port), size, deadline, timeout)
    told = _tell(host.strip("[]"), int(port), rank, size, deadline)
    if told is None:
        raise RuntimeError(f"Worker 0 of {size} did not come to {master} within {timeout:g} s.")
    if "refused" in told:
        raise RuntimeError(told["refused"])
    return told["addresses"]


def _collect(host: str, port: int, size: int, deadline: float, timeout: float) -> list[str]:
    found = {0: f"{host}:{_free_port()}"}
    refusal = None
    with contextlib.ExitStack() as held:
        try:
            server = held.enter_context(listen(port))
        except OSError as error:
            raise RuntimeError(f"Worker 0 cannot listen at {host}:{port}: {error}.") from error
        peers = []
        while refusal is None and len(found) < size:
            server.settimeout(max(1e-3, deadline - time.monotonic()))
            try:
                peer = held.enter_context(server.accept()[0])
            except socket.timeout:
                late = [str(worker) for worker in range(size) if worker not in found]
                who = f"Worker{'s' * (len(late) > 1)} {', '.join(late)}"
                refusal = f"{who} of {size} did not come to {host}:{port} within {timeout:g} s."
                break
            hello = _hello(peer)
            if hello is None:
                continue  # a stranger
            peers.append(peer)
            refusal = _wrong(hello, size, found)
            if refusal is None:
                found[hello["rank"]] = _seen(peer, host, hello["port"])
        addresses = [found[worker] for worker in sorted(found)]
        answer = {"addresses": addresses} if refusal is None else {"refused": refusal}
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.sendall(json.dumps(answer).encode() + b"\n")
    if refusal is not None:
        raise RuntimeError(refusal)
    return addresses


def _hello(peer: socket.socket) -> dict | None:
    peer.settimeout(2.0)
    try:
        hello = json.loads(_line(peer))
        good = hello["magic"] == _MAGIC and all(type(hello[k]) is int for k in ("rank", "size"))
        return hello if good and type(hello["port"]) is int else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _wrong(hello: dict, size: int, found: dict[int, str]) -> str | None:
    if hello["size"] != size:
        return f"Worker {hello['rank']} expects {hello['size']} workers, and worker 0 {size}."
    if hello["rank"] in found or not 0 < hello["rank"] < size:
        return f"Two workers came with the rank {hello['rank']}: each needs one of its own."
    return None


def _seen(peer: socket.socket, host: str, port: int) -> str:
    """Where the others reach this peer: as worker 0 sees it; on its machine, by its host."""
    there, here = peer.getpeername()[0], peer.getsockname()[0]
    if there == here:
        return f"{host}:{port}"
    seen = ipaddress.ip_address(there.partition("%")[0])
    seen = getattr(seen, "ipv4_mapped", None) or seen
    return f"[{seen}]:{port}" if seen.version == 6 else f"{seen}:{port}"


def _tell(host: str, port: int, rank: int, size: int, deadline: float) -> dict | None:
    """Worker 0's answer; None if it is not there in time."""
    own = _free_port()
    hello = json.dumps({"magic": _MAGIC, "rank": rank, "size": size, "port": own}).encode()
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left) as peer:
                peer.sendall(hello + b"\n")
                # Worker 0 came later, so its time is up later; its word is what counts.
                peer.settimeout(None)
                return json.loads(_line(peer))
        except (OSError, ValueError):
            time.sleep(min(0.1, max(0.0, left)))
    return None


def _line(peer: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < _LONGEST and (more := peer.recv(65536)):
        data += more
    return data


def _free_port() -> int:
    with listen(0) as server:
        return server.getsockname()[1]
