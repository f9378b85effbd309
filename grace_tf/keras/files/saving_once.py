"""What several plain processes save to one path: the file is of the worker of lowest rank.

Two processes that write one file break it.  Which files two workers of a host have in common shows
only as they save them, and no worker waits for another there, since a script may save on one worker
alone.  So each worker notes its rank for the path in a file in the host's temporary folder, which
it holds locked while it saves.  A worker that finds the note of a lower rank does not write.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import sys
import tempfile
import time
from typing import Any

from grace_tf.keras.files.paths_by_worker import LOG
from grace_tf.keras.flavours import Flavour
from grace_tf.keras.replacing import in_place_of
from grace_tf.transports.world.current_workers import several

_PAUSE = 0.05  # seconds between two attempts to lock a note

_mine: set[str] = set()  # the notes of this process, which go with it
_held: set[str] = set()  # those that it holds locked
_said: set[str] = set()  # the paths of which a log line has spoken


def install(keras: Flavour) -> None:
    """Wraps the methods of a Keras' Model and the functions of its module `saving` that save."""
    for name in ("save", "save_weights"):
        in_place_of(keras.module.Model, name)(_save)
    for name in ("save_model", "save_weights"):
        function = getattr(keras.module.saving, name, None)  # some versions lack the second
        # Keras has a function in several modules, such as keras.models.
        for module in [*sys.modules.values()] if function else ():
            if getattr(module, "__dict__", {}).get(name) is function:
                in_place_of(module, name)(_save)


def _save(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Saves as `original(model, filepath, …)`, unless the path is another worker's."""
    path = args[1] if len(args) > 1 else kwargs.get("filepath")
    connected = several()
    remote = "://" in str(path)  # such a store replaces a file as a whole
    if connected is None or remote or not isinstance(path, (str, os.PathLike)):
        return original(*args, **kwargs)
    with contextlib.ExitStack() as held:
        note = _note(connected, os.path.realpath(path), held)
        if note is None:
            return original(*args, **kwargs)
        owner = _owner(note)
        if owner is not None and owner < connected.rank:
            _say(connected, path, owner)
            return None
        note.seek(0)
        note.truncate()
        json.dump([connected.rank, os.getpid(), _began(os.getpid())], note)
        note.flush()
        return original(*args, **kwargs)


def _note(connected: Any, path: str, held: contextlib.ExitStack) -> Any:
    """The file with the note for a path, locked until `held` ends.

    None where this process holds it already, as within another method that saves, and where the
    temporary folder cannot be written.

    Waits while another process holds it; raises RuntimeError where that one is lost, or does not
    end within the group's timeout.
    """
    folder = _folder()
    name = os.path.join(folder, hashlib.sha256(path.encode()).hexdigest()[:32])
    if name in _held:
        return None
    deadline = time.monotonic() + connected.timeout
    while True:
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if os.stat(folder).st_uid != os.getuid():
                return None  # another user has made it, and could make this process write anywhere
            note = open(name, "a+")
        except OSError:
            return None
        try:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(name) and os.path.samestat(os.fstat(note.fileno()), os.stat(name)):
                break
        except FileNotFoundError:
            pass  # another process has removed the note after `exists`: the loop makes it anew
        except BlockingIOError:
            if connected.lifeline is not None:
                connected.lifeline.check()
            if time.monotonic() > deadline:
                note.close()
                raise RuntimeError(
                    f"Worker {connected.rank} of {connected.size} cannot save {path}: another "
                    f"process has been saving it for {connected.timeout:g} s; give each worker a "
                    "path of its own by grace_tf.keras.own_path()."
                ) from None
            time.sleep(_PAUSE)
        note.close()
    if not _mine:
        atexit.register(_remove)
    _mine.add(name)
    _held.add(name)
    held.callback(_held.remove, name)
    return held.enter_context(note)


def _folder() -> str:
    return os.path.join(tempfile.gettempdir(), f"grace_tf-saving-{os.getuid()}")


def _owner(note: Any) -> int | None:
    """The rank in a note; None where the process that has written it runs no more."""
    note.seek(0)
    try:
        rank, process, began = json.load(note)
    except ValueError:
        return None
    return rank if began is not None and _began(process) == began else None


def _began(process: int) -> str | None:
    """When the process of this number began, in ticks; None if no process of this host has it."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _remove() -> None:
    for name in _mine:
        with contextlib.suppress(OSError, ValueError):
            with open(name) as note:
                fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if json.load(note)[1] == os.getpid():
                    os.remove(name)


def _say(connected: Any, path: Any, owner: int) -> None:
    if str(path) not in _said:
        _said.add(str(path))
        LOG.warning(
            "Worker %d of %d does not save %s, which is worker %d's; "
            "grace_tf.keras.own_path(%r) is a path of its own, which keeps its residuals too.",
            *(connected.rank, connected.size, path, owner, str(path)),
        )
