"""Lets one worker write the logs of these callbacks, where several have one path.

These callbacks write files: CSVLogger, TensorBoard and Monitor.

A CSV file that two processes write has torn lines, and TensorBoard draws the curves of two
processes in one folder over each other.  All workers tell their paths at the beginning of `fit`.  A
worker whose path a worker of a lower rank has too writes into nothing during this `fit`.
"""

from __future__ import annotations

import collections
import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from grace_tf.keras.files.paths_by_worker import LOG, place
from grace_tf.keras.flavours import is_a
from grace_tf.keras.monitor import Monitor
from grace_tf.transports.lifeline.connections import Lifeline

_CSV = "callbacks.CSVLogger"
_PATHS = {_CSV: "filename", "callbacks.TensorBoard": "log_dir"}

# By the number of the call of `fit`, then by worker.
_paths_of: dict[int, dict[int, list[str]]] = collections.defaultdict(dict)


@contextlib.contextmanager
def one_writer(line: Lifeline, call: int, model: Any, callbacks: Iterable[Any]) -> Iterator[None]:
    """A context around a call of `fit`, whose number on all workers is `call`.

    Only a worker with such callbacks waits, until those of lower ranks have come to this `fit`.
    Raises RuntimeError where one of them is lost.
    """
    rank, count = place(model)
    if count == 1:
        yield
        return
    found = [(each, _PATHS[cls]) for each in callbacks for cls in _PATHS if is_a(each, cls)]
    found += [(each, "log_dir") for each in callbacks if isinstance(each, Monitor)]
    found = [(each, name) for each, name in found if getattr(each, name) is not None]
    line.on("logs", lambda worker, message: _paths_of[message[0]].__setitem__(worker, message[1]))
    line.tell("logs", [call, [_absolute(getattr(each, name)) for each, name in found]])
    if found:
        line.until(lambda: all(w in _paths_of[call] for w in range(rank)), line.patience)
        line.check()
    with line.changed:
        paths = dict(_paths_of.pop(call, {}))
        for past in [each for each in _paths_of if each < call]:
            del _paths_of[past]
    with contextlib.ExitStack() as nothing:
        for each, name in found:
            given = getattr(each, name)
            owners = [
                w for w in range(rank) if _absolute(given) in paths.get(w, [_absolute(given)])
            ]
            if owners:
                _say(rank, count, each, given, owners[0])
                unread = os.devnull if is_a(each, _CSV) else nothing.enter_context(_folder())
                setattr(each, name, unread)
                nothing.callback(setattr, each, name, given)
        yield


def _folder() -> contextlib.AbstractContextManager[str]:
    """A folder that goes with the context."""
    return tempfile.TemporaryDirectory(prefix="grace_tf-", ignore_cleanup_errors=True)


def _absolute(path: Any) -> str:
    path = os.fspath(path)
    return path if "://" in path else os.path.abspath(path)


def _say(rank: int, count: int, callback: Any, path: str, owner: int) -> None:
    LOG.warning(
        "Worker %d of %d: %s writes nothing here, since worker %d writes %s too; give it "
        "grace_tf.keras.own_path(%r) for a log of this worker's own.",
        *(rank, count, type(callback).__name__, owner, path, path),
    )
