"""Every worker process writes files of its own, where Keras' callbacks would write the same ones.

Worker 0 writes at the path that the script names, worker 1 in the folder `rank1` beside it.  A file
that two processes write is broken, and each worker's residuals are its own.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import keras
import tensorflow as tf

from grace_tf.keras.callback import averaged
from grace_tf.keras.classes import Wrapped
from grace_tf.keras.replacing import in_place_of
from grace_tf.transports.world.find_workers import several, together

LOG = logging.getLogger("grace_tf")


_given: set[tuple[int, str]] = set()  # by rank, the folders of paths that were given
_made: set[str] = set()  # those that a script has asked for, which are there


def own_path(path: Any, rank: int | None = None) -> str:
    """Where this process' callbacks write what the script calls `path`.

    Worker 0 keeps the path; worker r > 0 writes `folder/name` as `folder/rank<r>/name`, and the
    folder is made, unless its name is a pattern.  A path that lies in a folder which this function
    has given before stays as it is.  Use it for a worker's own `model.save` and to load what
    `ModelCheckpoint` has written.

    Args:
      path: of a file, a folder, or a pattern of ModelCheckpoint.
      rank: of this process; left out, that in the process group of `grace_tf.init()`, 0 alone.
    Returns: the path as a string.
    """
    path = os.fspath(path)
    if rank is None:
        connected = several()
        rank = 0 if connected is None else connected.rank
    if rank == 0:
        return path
    path = _own(path, rank)
    folder = os.path.dirname(path)
    if "{" not in folder:
        tf.io.gfile.makedirs(folder)
        _made.add(folder)
    return path


def _own(path: str, rank: int) -> str:
    folder, name = os.path.split(path.rstrip("/"))
    above = folder
    # What was given counts, not the name: a script may call a folder of all workers rank1.
    while (rank, above) not in _given:
        above, below = os.path.split(above)
        if not below:
            own = os.path.join(folder, f"rank{rank}")
            _given.add((rank, own))
            return os.path.join(own, name)
    return path


def in_use(folder: str) -> bool:
    """Whether the script may count on this folder, since `own_path` has made it."""
    return folder in _made


def compresses(model: Any) -> bool:
    """Whether the model's optimizer is a wrapped one."""
    optimizer = getattr(model, "optimizer", None)
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return isinstance(optimizer, Wrapped)


def place(model: Any) -> tuple[int, int]:
    """This process' rank among the processes that train the model, and their number."""
    strategy = getattr(model, "distribute_strategy", None) if compresses(model) else None
    others = together(strategy)
    return (0, 1) if others is None else (others.rank, others.processes)


def move(callback: Any, name: str) -> bool:
    """Makes the callback's path `name` this process' own, unless it is; says so once."""
    given = getattr(callback, name)
    rank, count = place(callback.model)
    moved = callback.__dict__.setdefault("_grace_moved", [])
    if rank == 0 or given in moved:
        return False
    own = _own(given, rank)  # Keras makes the folder
    moved.append(own)
    if own == given:
        return False  # the script has asked own_path itself
    setattr(callback, name, own)
    LOG.warning(
        "Worker %d of %d: %s writes %s; %s is worker 0's.",
        rank,
        count,
        type(callback).__name__,
        own,
        given,
    )
    return True


def install() -> None:
    """Gives ModelCheckpoint a path of its own in every process but the first."""
    cls = keras.callbacks.ModelCheckpoint

    @in_place_of(cls, "set_model")
    def set_model(own, self, model):
        own(self, model)
        move(self, "filepath")

    @in_place_of(cls, "_get_file_path")
    def get_file_path(own, self, epoch, batch, logs):
        path = own(self, epoch, batch, logs)
        folder, name = os.path.split(path)
        # Keras 2 sends the files of all workers but the chief to a folder that it deletes.
        if os.path.basename(folder).startswith("workertemp_") and place(self.model)[0]:
            path = self._write_filepath = os.path.join(os.path.dirname(folder), name)
        return path

    @in_place_of(cls, "_save_model")
    def save_model(own, self, epoch, batch, logs):
        if self.save_best_only and several() is not None and not averaged(logs):
            _say_who_decides(self)
        return own(self, epoch=epoch, batch=batch, logs=logs)


def _say_who_decides(callback: Any) -> None:
    if not callback.__dict__.setdefault("_grace_said", False):
        callback._grace_said = True
        warnings.warn(
            f"Each worker decides by its own {callback.monitor} whether ModelCheckpoint saves, so "
            "their files may be of different steps: put grace_tf.keras.Callback() before it, which "
            "makes the metrics at the end of an epoch the same on all workers.",
            stacklevel=3,
        )
