"""Starts a worker's process on a host: `Local` on this machine, `Remote` on another.

A place is made with the name of a host.  It knows a free port there, and `start` starts the process
of one worker.  The launcher treats all places alike.

A `Remote` is a connection by ssh.  The program of the far end, the command and the environment go
over its stdin, so that no command line shows them; its stdout, stderr and exit code are the
worker's.  remote_worker.py describes the protocol.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from grace_tf.cli.run import remote_worker
from grace_tf.cli.run.remote_worker import end_with, signal_all

# ssh notices a lost host after 3 intervals, and does not ask for a password.
SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=15"
_OF_SSH = 255  # its exit code where it fails itself
_READ_THE_REST = "import json, sys; exec(json.loads(sys.stdin.buffer.readline()))"
_HELLO = re.compile(remote_worker.MARK.encode() + rb"(.*)\n")


class CannotReach(Exception):
    """No worker can be started on a host; `code` is the run's exit code."""

    def __init__(self, sentence: str, code: int):
        super().__init__(sentence)
        self.code = code


class Local:
    """A place for a worker on this machine.

    Attributes: here (True), host (its name as given), port (free here), on (for messages: ""),
    enter (what the process calls before exec, or None).
    """

    here, on = True, ""

    def __init__(self, host: str):
        self.host, self.enter = host, None
        # Bound until the worker starts, so that no other worker gets the same port.
        self._held = socket.socket()
        self._held.bind(("", 0))
        self.port = self._held.getsockname()[1]

    def start(self, words: Sequence[str], environment: dict[str, str]) -> subprocess.Popen:
        """Starts the worker; raises OSError if it cannot be."""
        self._held.close()
        also = {"enter": self.enter} if self.enter else {}
        self._process = _child(words, env=environment, stdin=subprocess.DEVNULL, **also)
        return self._process

    def signal(self, number: int) -> None:
        """Sends a signal to the worker and all that it has started."""
        signal_all(self._process.pid, number)

    def close(self) -> None:
        """Closes the reserved port.  Call it after the worker has ended, or if none was started."""
        self._held.close()


class Remote:
    """A place for a worker on another host, at the far end of a connection.

    Attributes: here (False), host (its name as given), on (for messages).  `wait_for_all` adds port
    (free there), client and server (the addresses of both ends, "" if unknown), and interface.
    """

    here = False

    def __init__(self, host: str, ssh: Sequence[str]):
        self.host, self.on = host, f" on {host}"
        stub = ["-IS", "-c", _READ_THE_REST]
        words = [*ssh, host, shlex.join([sys.executable, *stub])]
        try:
            self.process = _child(words, stdin=subprocess.PIPE)
        except OSError as error:
            reason = f"{words[0]!r}: {os.strerror(error.errno)}"
            sentence = f"cannot reach host {host}: {reason}"
            raise CannotReach(sentence, remote_worker.NOT_FOUND) from error
        self._seen, self._started = b"", False
        self._tell(json.dumps(Path(remote_worker.__file__).read_text(encoding="utf-8")))

    def look(self) -> bool:
        """Reads the output so far; True if the far end has reported, CannotReach if it ended."""
        more = os.read(self.process.stdout.fileno(), 1 << 16)
        if not more:
            raise self._failure()
        self._seen += more
        hello = _HELLO.search(self._seen)  # a login shell may print something before it
        if hello is None:
            return False
        facts = json.loads(hello[1])
        self.port, self.interface = facts["port"], facts["interface"]
        self.client, self.server = facts["client"], facts["server"]
        return True

    def start(self, words: Sequence[str], environment: dict[str, str]) -> subprocess.Popen:
        """Starts the worker in the folder of the same name; the process' output is the worker's.

        Where the worker cannot start, the last line on stderr says why.
        """
        order = {"words": list(words), "folder": os.getcwd(), "environment": environment}
        self._tell(json.dumps(order))
        self._started = True
        return self.process

    def signal(self, number: int) -> None:
        """Sends a signal to the worker and all that it has started; SIGKILL ends the connection
        too: the first one at the far end, the second one here."""
        if number != signal.SIGKILL:
            self._tell(str(int(number)))
        elif not self.process.stdin.closed:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        elif self.process.returncode is None:
            signal_all(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the connection, if it is open, and all that runs at its far end."""
        for _ in range(2):
            self.signal(signal.SIGKILL)
        self.process.wait()
        if not self._started:  # nobody reads them
            self.process.stdout.close()
            self.process.stderr.close()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it has ended; the waiting launcher sees it
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def _failure(self) -> CannotReach:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        signal_all(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        os.set_blocking(self.process.stderr.fileno(), False)  # a child may keep the pipe open
        lines = (self.process.stderr.read() or b"").decode(errors="replace").strip().splitlines()
        reason = lines[-1].strip() if lines else f"the connection ended with exit code {code}"
        what = "reach" if code == _OF_SSH else "start a worker on"
        return CannotReach(f"cannot {what} host {self.host}: {reason}", code if code > 0 else 1)


Place = Local | Remote


def wait_for_all(places: Sequence[Remote], deadline: float | None) -> None:
    """Returns when all far ends have reported.

    Raises CannotReach if one cannot; TimeoutError, which names the missing hosts, at the deadline.
    """
    with selectors.DefaultSelector() as waiting:
        for place in places:
            waiting.register(place.process.stdout, selectors.EVENT_READ, place)
        while waiting.get_map():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = waiting.select(left)
            if not ready:
                late = sorted({key.data.host for key in waiting.get_map().values()})
                raise TimeoutError(f"no answer from {', '.join(late)}")
            for key, _ in ready:
                if key.data.look():
                    waiting.unregister(key.fileobj)


def _child(words: Sequence[str], enter: Callable | None = None, **keywords) -> subprocess.Popen:
    end = end_with(os.getpid())

    def before_exec() -> None:
        if enter is not None:
            enter()
        end()  # the last, since entering a user namespace may undo it

    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A session of its own, so that one signal reaches whatever it starts.
        start_new_session=True,
        preexec_fn=before_exec,
        **keywords,
    )
