"""Starts one worker on another host: the launcher runs this program there.

`local_and_ssh.py` sends the text of this file, so it imports nothing of grace_tf, and no
TensorFlow.  The connection carries:

    stdout, out   one line: MARK and, as JSON, {"port": a port that is free here, "client",
                  "server": the addresses between which the connection runs, "interface": the
                  network interface of this one}; after it what the worker prints
    stdin, in     one line: {"words": the command, "folder": where it runs, "environment": …}; then
                  the number of a signal for the worker and all that it has started, one a line
    exit code     the worker's; 128 + n where signal n ended it

Where stdin ends, because the launcher or the connection is gone, the worker and its children get
SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

MARK = "grace_tf is here: "
CANNOT_START = 126  # as sh(1)
NOT_FOUND = 127
# Of these variables, the launcher's value is put before this host's value.
_LISTS = "PATH", "PYTHONPATH", "LD_LIBRARY_PATH"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SIOCGIFADDR = 0x8915  # linux/sockios.h


def main() -> int:
    """Reports this host, waits for the command, and returns the worker's exit code."""
    with socket.socket() as held:  # until the command comes, so that no other worker gets the port
        held.bind(("", 0))
        client, server = _connection()
        facts = {"port": held.getsockname()[1], "client": client, "server": server}
        print(MARK + json.dumps({**facts, "interface": interface(server)}), flush=True)
        line = sys.stdin.buffer.readline()
    if not line:
        return 1
    order = json.loads(line)
    words, folder = order["words"], order["folder"]
    if not os.path.isdir(folder):
        return _refuse(f"there is no folder {folder!r} on this host.", CANNOT_START)
    try:
        worker = subprocess.Popen(
            words,
            cwd=folder,
            env=_environment(order["environment"]),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with(os.getpid()),
        )
    except FileNotFoundError:
        return _refuse(f"there is no command {words[0]!r} on this host.", NOT_FOUND)
    except PermissionError:
        return _refuse(f"{words[0]!r} cannot be executed on this host.", CANNOT_START)
    threading.Thread(target=_obey, args=(worker.pid,), daemon=True).start()
    # It is never reaped, so it keeps its number, and no other process gets the signal.
    ended = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    signal_all(worker.pid, signal.SIGKILL)
    return ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status


def end_with(parent: int):
    """A function that a child runs before its program: the kernel kills it when its parent dies."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def before_exec() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # the parent died before the line above
                os._exit(1)

    return before_exec


def interface(address: str) -> str:
    """The name of this host's network interface with this IPv4 address; "" if there is none."""
    try:
        import fcntl

        wanted = socket.inet_aton(address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):  # it has no IPv4 address
                    request = struct.pack("256s", name.encode())
                    if fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24] == wanted:
                        return name
    except (ImportError, OSError):
        pass
    return ""


def _connection() -> tuple[str, str]:
    """The addresses of both ends, from sshd; "" where the connection is not TCP."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return tuple("" if word == "UNKNOWN" else word for word in words[:4:2]) or ("", "")


def _environment(given: dict[str, str]) -> dict[str, str]:
    """This host's environment with the launcher's variables."""
    found = {**os.environ, **given}
    for name in set(_LISTS) & set(given):
        parts = given[name], os.environ.get(name)
        found[name] = os.pathsep.join(part for part in parts if part)
    return found


def _obey(worker: int) -> None:
    for line in sys.stdin.buffer:
        signal_all(worker, int(line))
    signal_all(worker, signal.SIGKILL)


def signal_all(group: int, number: int) -> None:
    """Sends a signal to a process and all that it has started, where they still run."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _refuse(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    # Not sys.exit, which would wait for the thread that reads stdin.
    os._exit(main())
