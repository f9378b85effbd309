"""Starts Python programs as forks of a process that has imported TensorFlow already.

An import of TensorFlow and Keras costs eight seconds of a processor, and the tests start hundreds
of workers.  A `ForkServer` is one warm process; `start` gives a child of it, which runs a program
as `python -u program.py ...` would: its own session, environment, folder, arguments and exit.
The child is a child of this process (see `_adopt`), so it can be waited for, stopped and killed.

A fork differs from a fresh process in two ways: TensorFlow was imported with the environment of the
server, and all forks have the same seed of Python's hashes.  Tests of these need a fresh process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LARGEST_JOB = 1 << 20
# The arguments of gc.set_threshold.  Tracing creates many objects that are not freed, and the
# garbage collector examines all of them on each full run.  With Python's default thresholds (700,
# 10, 10) this takes a sixth of the time in which a small model trains, so it runs more rarely.
RARELY = 50_000, 20, 50


class Forked:
    """A process that runs a program; the part of `subprocess.Popen` that the launcher uses.

    Attributes: pid; stdout and stderr, binary streams; returncode, None until `wait` has returned.
    """

    def __init__(self, pid: int, stdout, stderr):
        self.pid, self.stdout, self.stderr, self.returncode = pid, stdout, stderr, None

    def wait(self) -> int:
        """The exit code, or -n where signal n has ended the process."""
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class ForkServer:
    """One warm process, started at the first program."""

    def __init__(self):
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None

    def start(self, words, env, stdin=subprocess.DEVNULL) -> Forked:
        """Runs `words`, which are `[python, "-u", program, argument, ...]`, in a new process."""
        assert words[0] == sys.executable and words[1] == "-u" and stdin == subprocess.DEVNULL
        job = {"argv": list(words[2:]), "env": dict(env), "folder": os.getcwd(), "pid": os.getpid()}
        message = json.dumps(job).encode()
        assert len(message) < _LARGEST_JOB
        (out, child_out), (err, child_err) = os.pipe(), os.pipe()
        with self._lock:
            channel = self._connected()
            socket.send_fds(channel, [message], [child_out, child_err])
            pid = int(channel.recv(64))
        os.close(child_out)
        os.close(child_err)
        return Forked(pid, open(out, "rb"), open(err, "rb"))

    def _connected(self) -> socket.socket:
        if self._channel is None:
            _adopt()
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_JOB)
            # It ends with this process, which closes the other end of the channel.
            subprocess.Popen(
                [sys.executable, "-u", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            theirs.close()
        return self._channel


def _adopt() -> None:
    """Makes orphans among this process' descendants its children.

    The server forks twice, and the process in between ends, so that its child becomes ours.
    """
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("This kernel has no subreapers.")


def _serve(channel: socket.socket) -> dict | None:
    """Forks a child for every job; returns the job in the child, and None in the server's end."""
    with _without_start_up_lines():
        import h5py  # noqa: F401
        import tensorflow  # noqa: F401

        import grace_tf.keras  # noqa: F401
    gc.collect()
    gc.freeze()  # the children share these pages as long as no collector writes to them
    gc.set_threshold(*RARELY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _LARGEST_JOB, 2)
        if not message:
            return None
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                os.close(reading)
                os.close(writing)
                channel.close()
                return {**json.loads(message), "streams": descriptors}
            os.write(writing, b"%d" % child)
            os._exit(0)
        os.waitpid(between, 0)  # now the child belongs to the process of the tests
        channel.send(os.read(reading, 64))
        for descriptor in (reading, writing, *descriptors):
            os.close(descriptor)


@contextlib.contextmanager
def _without_start_up_lines():
    """Hides what TensorFlow's C++ side writes while it is imported."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _become(job: dict) -> str:
    """Makes this fork look like a process of its own; returns the program that it is to run."""
    import numpy as np

    os.setsid()
    while os.getppid() != job["pid"]:
        time.sleep(0.001)  # the process in between is ending
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, descriptor in zip((1, 2), job["streams"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    with contextlib.suppress(FileNotFoundError):
        os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["env"])
    program = job["argv"][0]
    path = [entry for entry in job["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    own = str(pathlib.Path(__file__).parent)
    sys.path[:] = [str(pathlib.Path(program).parent), *path, *(p for p in sys.path if p != own)]
    sys.argv[:] = job["argv"]
    np.random.seed()  # the server's would be the same in all workers
    return program


if __name__ == "__main__":
    job = _serve(socket.socket(fileno=int(sys.argv[1])))
    if job is not None:
        # The interpreter ends after it as after any program.
        runpy.run_path(_become(job), run_name="__main__")
