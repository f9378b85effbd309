"""`BackupAndRestore` that survives a kill at any moment, on every worker and from the same step.

Each process has a folder of its own, in which it keeps the last two backups, numbered and whole.
Training is synchronous, so workers are at most one backup apart: before loading they agree on the
newest number that all of them have.  A backup is deleted only when a newer one is whole on all
workers, or when all workers have ended `fit`.

Two empty files stand beside the backups between several processes.  `begun` is made before the
first step: a worker that has it and no backup was killed before its first one, and a worker without
either has lost its folder, or is new.  `ended` is made when all workers have ended `fit`, before
any of them deletes its backups: a worker without backups beside others that have `ended` has
deleted its own already.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import h5py
import keras
import tensorflow as tf

from grace_tf.keras import steps
from grace_tf.keras.own_files import LOG, compresses, in_use, move, place
from grace_tf.keras.repairs import KERAS_3
from grace_tf.transports.group import Group
from grace_tf.transports.world.find_workers import together

KEPT = 2
TIMEOUT = 120.0  # seconds for the other processes of a strategy that names no timeout of its own
_DRAFT = "draft"
_BEGUN, _ENDED = "begun", "ended"
_ASIDE = "left-"  # before the name of a backup that not all workers have
_NONE = -1  # the number of who has no backup and has not begun


def agree(model: Any, numbers: Sequence[int], folder: str) -> int:
    """The newest backup that all workers have, of the `numbers` that this one has.

    Returns 0 where training starts from the beginning: nobody has a backup, a kill came before the
    first one was whole on all workers, or all have ended `fit` and some have deleted theirs since.

    Raises RuntimeError on every worker, and leaves every backup where it is, where a worker has
    none and others do, where their backups are further apart than a kill leaves them, or where a
    worker does not come.
    """
    rank, count = place(model)
    if count == 1:
        return max(numbers, default=0)
    begun, ended = (_is_marked(folder, name) for name in (_BEGUN, _ENDED))
    newest, oldest = (max(numbers), min(numbers)) if numbers else (0 if begun else _NONE,) * 2
    if begun and newest == 1:
        oldest = 0  # it can go on from the beginning too
    others = _others(model)
    table = others.handshake([newest, oldest, ended], "BackupAndRestore").tolist()
    most = max(row[0] for row in table)
    if most <= 0:
        return 0
    lacking = [worker for worker, row in enumerate(table) if row[0] == _NONE]
    if lacking:
        if all(row[2] for row in table if row[0] != _NONE):
            return 0
        raise RuntimeError(
            f"BackupAndRestore: worker {_listed(lacking)} of {count} has no backup, but "
            f"others have (the newest is number {most}); {folder} is worker {rank}'s folder. "
            "Nothing was deleted. Give every worker the folder that it had before (is its disk "
            "mounted?) and start as many workers as before, or move the folders of all workers "
            "away to start from the beginning."
        )
    chosen = min(row[0] for row in table)
    if max(row[1] for row in table) > chosen:
        newests, oldests = (_listed(row[column] for row in table) for column in range(2))
        raise RuntimeError(
            f"The backups of the workers do not fit together (the newest are {newests}, the oldest "
            f"{oldests}); {folder} is worker {rank}'s folder. Nothing was deleted. Move the "
            "folders of all workers away to start from the beginning."
        )
    if newest > chosen:
        LOG.warning(
            "Worker %d of %d leaves its backup %d for %s, which all workers have.",
            *(rank, count, newest, f"number {chosen}" if chosen else "a start from the beginning"),
        )
    return chosen


def _others(model: Any) -> Group:
    found = together(getattr(model, "distribute_strategy", None), TIMEOUT)
    assert found is not None  # place() has said that there are several processes
    return found


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _is_marked(folder: str, name: str) -> bool:
    return tf.io.gfile.exists(os.path.join(folder, name))


def _mark(folder: str, name: str) -> None:
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(os.path.join(folder, name), "w") as file:
        file.write("")


def _begin(model: Any, folder: str) -> None:
    """Marks that training begins or goes on here; what `_end` has left is of an earlier one."""
    if place(model)[1] > 1:
        _mark(folder, _BEGUN)
        if _is_marked(folder, _ENDED):
            tf.io.gfile.remove(os.path.join(folder, _ENDED))


def _end(model: Any, folder: str, delete: Callable[[], None]) -> None:
    """Deletes this worker's backups when all workers have ended `fit`; at once if it is alone."""
    if place(model)[1] == 1:
        return delete()
    taken = steps.now()

    def ended() -> None:
        _mark(folder, _ENDED)
        # Nobody deletes before all have marked theirs: see `agree`.
        _others(model).handshake([], "the end of BackupAndRestore")
        delete()

    if taken is None:
        _others(model).handshake([], "the end of fit with BackupAndRestore")
        ended()
    else:
        taken.when_all_have_ended(ended)


def _delete_superseded(folder: str, newest: int) -> None:
    """Deletes what `agree` has left aside, when all workers have a newer backup than that.

    This worker has just saved `newest`, so all have saved the number before: between two backups
    lies a step, which no worker takes before its backup is whole.
    """
    for name in tf.io.gfile.listdir(folder):
        if (found := re.match(rf"{_ASIDE}(?:\D*-)?(\d+)", name)) and int(found[1]) < newest:
            path = os.path.join(folder, name.rstrip("/"))
            tf.io.gfile.rmtree(path) if tf.io.gfile.isdir(path) else tf.io.gfile.remove(path)


def install() -> None:
    """Puts this into Keras' BackupAndRestore."""
    cls = keras.callbacks.BackupAndRestore
    own_set = cls.set_model

    @functools.wraps(own_set)
    def set_model(self, model):
        own_set(self, model)
        move(self, "backup_dir")

    cls.set_model = set_model
    if KERAS_3:
        _install_folders(cls)
        _install_end(cls)
    else:
        _install_checkpoints()


def _install_folders(cls: type) -> None:
    """Keras 3 overwrites its one backup in place: it is kept in a folder of its own instead.

    A folder gets its number when it is whole.  (callbacks/backup_and_restore.py, checked in 3.15.)
    """
    own_load, own_save = cls._load_model, cls._save_model

    @functools.wraps(own_load)
    def _load_model(self):
        if not _ours(self.model):
            return own_load(self)
        numbers = _numbers(self.backup_dir)
        chosen = agree(self.model, _readable(numbers, self), self.backup_dir)
        for number in numbers:
            if number > chosen:
                _leave_aside(self.backup_dir, str(number))
        _begin(self.model, self.backup_dir)
        self._grace_number = chosen
        # Without a number there may be a backup that Keras made by itself.
        folder = os.path.join(self.backup_dir, str(chosen)) if chosen else self.backup_dir
        with _within(self, folder):
            return own_load(self)

    @functools.wraps(own_save)
    def _save_model(self):
        if not _ours(self.model):
            return own_save(self)
        folder, draft = self.backup_dir, os.path.join(self.backup_dir, _DRAFT)
        if tf.io.gfile.exists(draft):
            tf.io.gfile.rmtree(draft)
        with _within(self, draft):
            own_save(self)
        self._grace_number += 1
        tf.io.gfile.rename(draft, os.path.join(folder, str(self._grace_number)))
        for number in _numbers(folder)[:-KEPT]:
            tf.io.gfile.rmtree(os.path.join(folder, str(number)))
        _delete_superseded(folder, self._grace_number)

    cls._load_model, cls._save_model = _load_model, _save_model


def _install_end(cls: type) -> None:
    """Keras 3 deletes the backup where it ends the training: it stays until all workers have."""
    own_end = cls.on_train_end

    @functools.wraps(own_end)
    def on_train_end(self, logs=None):
        if self.delete_checkpoint and _ours(self.model):
            _end(self.model, self.backup_dir, lambda: delete(self, logs))
        else:
            delete(self, logs)

    def delete(self, logs):
        own_end(self, logs)
        with contextlib.suppress(OSError):  # not empty: other callbacks' files
            folder = os.path.dirname(self.backup_dir)
            if place(self.model)[0] and not in_use(folder):
                os.rmdir(folder)

    cls.on_train_end = on_train_end


def _leave_aside(folder: str, name: str) -> None:
    """Renames a backup so that it does not count any more, and is still there for people."""
    aside = os.path.join(folder, _ASIDE + name)
    if tf.io.gfile.isdir(aside):
        tf.io.gfile.rmtree(aside)  # of an attempt before this one
    tf.io.gfile.rename(os.path.join(folder, name), aside, overwrite=True)


def _ours(model: Any) -> bool:
    return compresses(model) or place(model)[1] > 1


def _numbers(folder: str) -> list[int]:
    """The backups in a folder, the newest last."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ()
    return sorted(int(name.rstrip("/")) for name in names if name.rstrip("/").isdigit())


def _readable(numbers: Sequence[int], callback: Any) -> list[int]:
    """The backups of these numbers whose file of weights can be opened; all of them if none can.

    A file may be broken though it was written to its end, say after a loss of power.
    """
    name, opened = os.path.basename(callback._weights_path), []
    for number in numbers:
        path = os.path.join(callback.backup_dir, str(number), name)
        try:
            h5py.File(path, "r").close()
        except OSError as error:
            LOG.warning("The backup %s cannot be read and is left out: %s", path, error)
        else:
            opened.append(number)
    return opened or list(numbers)


@contextlib.contextmanager
def _within(callback: Any, folder: str):
    """Lets a BackupAndRestore of Keras 3 read and write in this folder."""
    paths = {name: path for name, path in vars(callback).items() if name.endswith("_path")}
    before = {"backup_dir": callback.backup_dir, **paths}
    callback.backup_dir = folder
    for name, path in paths.items():
        setattr(callback, name, os.path.join(folder, os.path.basename(path)))
    try:
        yield
    finally:
        vars(callback).update(before)


def _install_checkpoints() -> None:
    """Keras 2 keeps one checkpoint, and under a strategy the chief's alone: now two of each worker.

    (distribute/worker_training_state.py, checked in 2.15.)
    """
    from keras.src.distribute.distributed_file_utils import remove_temp_dirpath
    from keras.src.distribute.worker_training_state import WorkerTrainingState as cls

    own_init, own_restore, own_back_up, own_delete = (
        cls.__init__,
        cls.restore,
        cls.back_up,
        cls.delete_backup,
    )

    @functools.wraps(own_init)
    def __init__(self, model, checkpoint_dir, *args, **kwargs):
        own_init(self, model, checkpoint_dir, *args, **kwargs)
        if place(model)[1] > 1 and not self._enable_save_before_preemption:
            manager = self.read_checkpoint_manager
            manager = tf.train.CheckpointManager(manager.checkpoint, manager.directory, KEPT)
            self.read_checkpoint_manager = self.write_checkpoint_manager = manager
            remove_temp_dirpath(checkpoint_dir, model.distribute_strategy)  # where it would write

    @functools.wraps(own_restore)
    def restore(self):
        if place(self._model)[1] == 1 or self._enable_save_before_preemption:
            return own_restore(self)
        manager = self.read_checkpoint_manager
        whole = [path for path in manager.checkpoints if tf.io.gfile.exists(f"{path}.index")]
        saved = {int(path.rpartition("-")[2]): path for path in whole}
        chosen = agree(self._model, sorted(saved), manager.directory)
        for number, path in saved.items():
            if number > chosen:
                for file in tf.io.gfile.glob(f"{path}.*"):
                    _leave_aside(manager.directory, os.path.basename(file))
        _begin(self._model, manager.directory)
        if chosen:
            manager.checkpoint.restore(saved[chosen])

    @functools.wraps(own_back_up)
    def back_up(self, *args, **kwargs):
        own_back_up(self, *args, **kwargs)
        manager = self.write_checkpoint_manager
        if place(self._model)[1] > 1 and manager.latest_checkpoint:
            number = int(manager.latest_checkpoint.rpartition("-")[2])
            _delete_superseded(manager.directory, number)

    @functools.wraps(own_delete)
    def delete_backup(self):
        folder = self.write_checkpoint_manager.directory
        _end(self._model, folder, lambda: own_delete(self))

    cls.__init__, cls.restore = __init__, restore
    cls.back_up, cls.delete_backup = back_up, delete_backup
