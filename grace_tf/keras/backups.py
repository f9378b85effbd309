"""Makes `BackupAndRestore` survive a kill at any moment; all workers go on from the same step.

Each process has its own folder, with its last two complete backups, numbered.  `backup_agreement`
decides from which number all workers go on, and when backups may be deleted.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from typing import Any

import h5py
import keras
import tensorflow as tf

from grace_tf.keras.backup_agreement import agree, begin, delete_superseded, end, leave_aside
from grace_tf.keras.own_files import LOG, compresses, in_use, move, place
from grace_tf.keras.repairs import KERAS_3

KEPT = 2
_DRAFT = "draft"


def install() -> None:
    """Installs the changes in Keras' BackupAndRestore."""
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
    """Gives each backup a folder of its own, where Keras 3 overwrites its only backup in place.

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
                leave_aside(self.backup_dir, str(number))
        begin(self.model, self.backup_dir)
        self._grace_number = chosen
        # Without a number there may be a backup that plain Keras has made.
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
        delete_superseded(folder, self._grace_number)

    cls._load_model, cls._save_model = _load_model, _save_model


def _install_end(cls: type) -> None:
    """Keeps backups until all workers have ended; Keras 3 deletes them at its own end of `fit`."""
    own_end = cls.on_train_end

    @functools.wraps(own_end)
    def on_train_end(self, logs=None):
        if self.delete_checkpoint and _ours(self.model):
            end(self.model, self.backup_dir, lambda: delete(self, logs))
        else:
            delete(self, logs)

    def delete(self, logs):
        own_end(self, logs)
        with contextlib.suppress(OSError):  # not empty: other callbacks' files
            folder = os.path.dirname(self.backup_dir)
            if place(self.model)[0] and not in_use(folder):
                os.rmdir(folder)

    cls.on_train_end = on_train_end


def _ours(model: Any) -> bool:
    return compresses(model) or place(model)[1] > 1


def _numbers(folder: str) -> list[int]:
    """The numbers of the backups in a folder, the newest last."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ()
    return sorted(int(name.rstrip("/")) for name in names if name.rstrip("/").isdigit())


def _readable(numbers: Sequence[int], callback: Any) -> list[int]:
    """The backups of these numbers whose weights file can be opened; all of them if none can.

    A completely written file may still be broken, for example after a power failure.
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
    """A context in which a BackupAndRestore of Keras 3 reads and writes in this folder."""
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
    """Keeps two checkpoints of each worker; Keras 2 keeps one, under a strategy only the chief's.

    (distribute/worker_training_state.py, checked in 2.15.)
    """
    from keras.src.distribute.distributed_file_utils import remove_temp_dirpath
    from keras.src.distribute.worker_training_state import WorkerTrainingState as cls

    own_init, own_restore = cls.__init__, cls.restore

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
                    leave_aside(manager.directory, os.path.basename(file))
        begin(self._model, manager.directory)
        if chosen:
            manager.checkpoint.restore(saved[chosen])

    cls.__init__, cls.restore = __init__, restore
    _install_checkpoints_end(cls)


def _install_checkpoints_end(cls: type) -> None:
    """Deletes a checkpoint of Keras 2 only for a newer one, or when all workers ended `fit`."""
    own_back_up, own_delete = cls.back_up, cls.delete_backup

    @functools.wraps(own_back_up)
    def back_up(self, *args, **kwargs):
        own_back_up(self, *args, **kwargs)
        manager = self.write_checkpoint_manager
        if place(self._model)[1] > 1 and manager.latest_checkpoint:
            number = int(manager.latest_checkpoint.rpartition("-")[2])
            delete_superseded(manager.directory, number)

    @functools.wraps(own_delete)
    def delete_backup(self):
        folder = self.write_checkpoint_manager.directory
        end(self._model, folder, lambda: own_delete(self))

    cls.back_up, cls.delete_backup = back_up, delete_backup
