"""Gives every worker process its own files, where Keras' callbacks would all write the same one.

Worker 0 writes at the path that the script names, worker 1 in the folder `rank1` beside it.  A file
that two processes write would be broken, and each worker has its own residuals to save.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import tensorflow as tf

from grace_tf.keras.classes import Wrapped
from grace_tf.keras.fit.epoch_means import averaged
from grace_tf.keras.flavours import Flavour
from grace_tf.keras.optimizers import innermost
from grace_tf.keras.replacing import in_place_of
from grace_tf.transports.world.current_workers import several, together

LOG = logging.getLogger("grace_tf")


_given: set[tuple[int, str]] = set()  # (rank, folder) of the paths that were returned
_made: set[str] = set()  # the folders that own_path has made for a script


def own_path(path: Any, rank: int | None = None) -> str:
    """The path at which this process' callbacks write the file that the script calls `path`.

    Worker 0 keeps the path; worker r > 0 writes `folder/name` as `folder/rank<r>/name`, and the
    folder is made, unless its name is a pattern.  A path inside a folder that this function has
    returned before stays as it is.  Use it for `model.save` on every worker, and to load the files
    of `ModelCheckpoint`.

    Args:
      path: of a file, a folder, or a pattern of ModelCheckpoint.
      rank: of this process; by default its rank in the group of `grace_tf.init()`, or 0.
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
    # Returned folders count, not names: a script may have a folder rank1 for all workers.
    while (rank, above) not in _given:
        above, below = os.path.split(above)
        if not below:
            mine = os.path.join(folder, f"rank{rank}")
            _given.add((rank, mine))
            return os.path.join(mine, name)
    return path


def in_use(folder: str) -> bool:
    """Whether `own_path` has made this folder for the script, which may use it."""
    return folder in _made


def compresses(model: Any) -> bool:
    """Whether the model's optimizer is a wrapped one."""
    return isinstance(innermost(getattr(model, "optimizer", None)), Wrapped)


def place(model: Any) -> tuple[int, int]:
    """This process' rank among the processes that train the model, and their number."""
    strategy = getattr(model, "distribute_strategy", None) if compresses(model) else None
    others = together(strategy)
    return (0, 1) if others is None else (others.rank, others.processes)


def move(callback: Any, name: str) -> bool:
    """Replaces the callback's path `name` by this process' own, and logs it; True if it changed."""
    given = os.fspath(getattr(callback, name))
    rank, count = place(callback.model)
    moved = callback.__dict__.setdefault("_grace_moved", [])
    if rank == 0 or given in moved:
        return False
    mine = _own(given, rank)  # Keras makes the folder
    moved.append(mine)
    if mine == given:
        return False  # the script has called own_path itself
    setattr(callback, name, mine)
    LOG.warning(
        "Worker %d of %d: %s writes %s; %s is worker 0's.",
        rank,
        count,
        type(callback).__name__,
        mine,
        given,
    )
    return True


def install(keras: Flavour) -> None:
    """Gives ModelCheckpoint a path of its own in every process but the first."""
    cls = keras.module.callbacks.ModelCheckpoint

    @in_place_of(cls, "set_model")
    def set_model(original, self, model):
        original(self, model)
        move(self, "filepath")

    @in_place_of(cls, "_get_file_path")
    def get_file_path(original, self, epoch, batch, logs):
        path = original(self, epoch, batch, logs)
        folder, name = os.path.split(path)
        # Keras 2 sends the files of all workers but the chief to a folder that it deletes.
        if os.path.basename(folder).startswith("workertemp_") and place(self.model)[0]:
            path = self._write_filepath = os.path.join(os.path.dirname(folder), name)
        return path

    @in_place_of(cls, "_save_model")
    def save_model(original, self, epoch, batch, logs):
        if self.save_best_only and several() is not None and not averaged(logs):
            _say_who_decides(self)
        return original(self, epoch=epoch, batch=batch, logs=logs)


def _say_who_decides(callback: Any) -> None:
    if not callback.__dict__.setdefault("_grace_said", False):
        callback._grace_said = True
        warnings.warn(
            f"Each worker decides by its own {callback.monitor} whether ModelCheckpoint saves, so "
            "their files may be of different steps: let it save at the end of an epoch, where fit "
            "gives all workers the same metrics unless average_logs=False.",
            stacklevel=3,
        )
