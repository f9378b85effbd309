"""Makes `BackupAndRestore` survive a kill at any moment; all workers go on from the same step.

Each process has its own folder, with its last two complete backups, numbered.  `backup_agreement`
decides from which number all workers go on, and when backups may be deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import h5py
import keras
import tensorflow as tf

from grace_tf.keras.backup_agreement import agree, begin, delete_superseded, end, leave_aside
from grace_tf.keras.paths_by_worker import LOG, compresses, in_use, move, place
from grace_tf.keras.repairs import KERAS_3
from grace_tf.keras.replacing import in_place_of

KEPT = 2
_DRAFT = "draft"


def install() -> None:
    """Installs the changes in Keras' BackupAndRestore."""
    cls = keras.callbacks.BackupAndRestore

    @in_place_of(cls, "set_model")
    def set_model(original, self, model):
        original(self, model)
        move(self, "backup_dir")

    if KERAS_3:
        _install_folders(cls)
        _install_end(cls)
    else:
        _install_checkpoints()


def _install_folders(cls: type) -> None:
    """Gives each backup a folder of its own, where Keras 3 overwrites its only backup in place.

    A folder gets its number when it is whole.  (callbacks/backup_and_restore.py, checked in 3.15.)
    """

    @in_place_of(cls, "_load_model")
    def load_model(original, self):
        if not _ours(self.model):
            return original(self)
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
            return original(self)

    @in_place_of(cls, "_save_model")
    def save_model(original, self):
        if not _ours(self.model):
            return original(self)
        folder, draft = self.backup_dir, os.path.join(self.backup_dir, _DRAFT)
        if tf.io.gfile.exists(draft):
            tf.io.gfile.rmtree(draft)
        with _within(self, draft):
            original(self)
        self._grace_number += 1
        tf.io.gfile.rename(draft, os.path.join(folder, str(self._grace_number)))
        for number in _numbers(folder)[:-KEPT]:
            tf.io.gfile.rmtree(os.path.join(folder, str(number)))
        delete_superseded(folder, self._grace_number)


def _install_end(cls: type) -> None:
    """Keeps backups until all workers have ended; Keras 3 deletes them at its own end of `fit`."""

    @in_place_of(cls, "on_train_end")
    def on_train_end(original, self, logs=None):
        def delete():
            original(self, logs)
            with contextlib.suppress(OSError):  # not empty: other callbacks' files
                folder = os.path.dirname(self.backup_dir)
                if place(self.model)[0] and not in_use(folder):
                    os.rmdir(folder)

        if self.delete_checkpoint and _ours(self.model):
            end(self.model, self.backup_dir, delete)
        else:
            delete()


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

    @in_place_of(cls, "__init__")
    def init(original, self, model, checkpoint_dir, *args, **kwargs):
        original(self, model, checkpoint_dir, *args, **kwargs)
        if place(model)[1] > 1 and not self._enable_save_before_preemption:
            manager = self.read_checkpoint_manager
            manager = tf.train.CheckpointManager(manager.checkpoint, manager.directory, KEPT)
            self.read_checkpoint_manager = self.write_checkpoint_manager = manager
            remove_temp_dirpath(checkpoint_dir, model.distribute_strategy)  # where it would write

    @in_place_of(cls, "restore")
    def restore(original, self):
        if place(self._model)[1] == 1 or self._enable_save_before_preemption:
            return original(self)
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

    _install_checkpoints_end(cls)


def _install_checkpoints_end(cls: type) -> None:
    """Deletes a checkpoint of Keras 2 only for a newer one, or when all workers ended `fit`."""

    @in_place_of(cls, "back_up")
    def back_up(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        manager = self.write_checkpoint_manager
        if place(self._model)[1] > 1 and manager.latest_checkpoint:
            number = int(manager.latest_checkpoint.rpartition("-")[2])
            delete_superseded(manager.directory, number)

    @in_place_of(cls, "delete_backup")
    def delete_backup(original, self):
        folder = self.write_checkpoint_manager.directory
        end(self._model, folder, lambda: original(self))
