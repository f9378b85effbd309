"""How the processes of a host come to share memory, and agree that all of them do.

The first process of a host makes a file in memory that has no name, so that nothing is left of it
when the last process has ended, however that was.  It tells the others its process number, the
number of the file and a random number through the group.  They open the file in /proc, where the
kernel asks that both belong to one user, and check that it is such a file, of the agreed size, that
nobody can shorten.  On its first page each process proves that it knows the secret of the job.

Where one process of the group cannot do so, none of them shares memory, and worker 0 says why.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import logging
import os
import secrets
import stat
import weakref
from collections.abc import Sequence

import numpy as np

from grace_tf.core.version import __version__
from grace_tf.ops.backend import host_memory
from grace_tf.ops.backend.host_memory import Segment
from grace_tf.transports.group import Group

_NAME = "grace_tf"  # of the file, as /proc/PID/maps shows it
_PROOF = 64  # bytes
_LONGEST_PROBLEM = 320  # bytes
_SEALS = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, _SHRINK, _GROW: fcntl has no names before 3.11's
_ADD_SEALS, _GET_SEALS = 1033, 1034

# By group: a program may have several optimizers, and each asks.
_shared: weakref.WeakKeyDictionary[Group, Segment | None] = weakref.WeakKeyDictionary()


class _Unable(Exception):
    """Why some process cannot share memory; all processes raise it together."""


def shared(group: Group, here: Sequence[int]) -> Segment | None:
    """The memory of the processes `here`, the ranks of this process's host; all processes call it.

    None where they cannot share memory: on all hosts of the group.  Raises RuntimeError where a
    process is lost or late.
    """
    if group.lifeline is None or len(here) == 1:
        return None
    if group not in _shared:
        try:
            segment = _meet(group, here)
        except _Unable as problem:
            segment = None
            if group.rank == 0:
                logging.getLogger("grace_tf").warning(
                    "hierarchical adds up the gradients of a host through sockets, which is "
                    "slower than through shared memory: %s.",
                    problem,
                )
        else:
            group.lifeline.at_the_break(segment.stop)
            segment.serve()
        _shared[group] = segment
    return _shared[group]


def _meet(group: Group, here: Sequence[int]) -> Segment:
    places, place = len(here), here.index(group.rank)
    with contextlib.ExitStack() as files:
        with _attempt(group, "shared memory: the offer") as said:
            size = host_memory.size(places)
            if place == 0:
                file = _made(size)
                files.callback(os.close, file)
                said.words = os.getpid(), file, secrets.randbits(62)
                _write_proof(group, file, _words(places, size, said.words[2]), 0)
            _prove(group, {})
        process, number, nonce = said.everyones[here[0]]
        words = _words(places, size, int(nonce))
        with _attempt(group, "shared memory: the others"):
            if place > 0:
                file = _opened(process, number, size)
                files.callback(os.close, file)
                _check_proof(group, file, words, 0)
                _write_proof(group, file, words, place)
        with _attempt(group, "shared memory: the end"):
            for other in range(1, places) if place == 0 else ():
                _check_proof(group, file, words, other)
            segment = Segment(file, place, places)
    return segment


def _words(places: int, size: int, nonce: int) -> dict:
    return {"version": __version__, "places": places, "size": size, "nonce": nonce}


class _Said:
    words: Sequence[int] = (0, 0, 0)
    everyones: np.ndarray  # [processes, 3]


@contextlib.contextmanager
def _attempt(group: Group, purpose: str):
    """A part of the meeting, after which all processes know what the others have said.

    Raises _Unable on all of them where one could not do its part.
    """
    said, problem = _Said(), ""
    try:
        yield said
    except (OSError, RuntimeError) as error:
        problem = f"cannot open it ({error})" if isinstance(error, OSError) else str(error)
    text = problem.encode()[:_LONGEST_PROBLEM].ljust(_LONGEST_PROBLEM, b"\0")
    table = group.handshake([*said.words, *np.frombuffer(text, np.int64).tolist()], purpose)
    for rank, row in enumerate(table):
        found = row[3:].tobytes().rstrip(b"\0").decode(errors="replace")
        if found:
            raise _Unable(f"worker {rank} {found}")
    said.everyones = table[:, :3]


def _made(size: int) -> int:
    file = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, size)  # fails here, not at the first write, without memory
        fcntl.fcntl(file, _ADD_SEALS, _SEALS)
    except OSError:
        os.close(file)
        raise
    return file


def _opened(process: int, number: int, size: int) -> int:
    file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(file)
        own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_nlink
        if not own or found.st_size != size or fcntl.fcntl(file, _GET_SEALS) != _SEALS:
            raise RuntimeError("finds another file than the memory of its host's first worker")
    except BaseException:
        os.close(file)
        raise
    return file


def _write_proof(group: Group, file: int, words: dict, place: int) -> None:
    os.pwrite(file, _prove(group, {**words, "place": place}), place * _PROOF)


def _check_proof(group: Group, file: int, words: dict, place: int) -> None:
    found = os.pread(file, _PROOF, place * _PROOF)
    if not hmac.compare_digest(found, _prove(group, {**words, "place": place})):
        raise RuntimeError("finds in it no proof that it is of this job")


def _prove(group: Group, words: dict) -> bytes:
    proof = group.lifeline.proof(words, "shared memory")
    if proof is None:
        raise RuntimeError("has no lifeline")
    return proof.encode()
