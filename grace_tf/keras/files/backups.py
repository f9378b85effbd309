"""Makes `BackupAndRestore` survive a kill at any moment; all workers go on from the same step.

Each process has its own folder, with its last two complete backups, numbered.  A backup has the
checksums of its files, and counts only where they hold.  `backup_agreement` decides from which
number all workers go on, and when backups may be deleted.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from grace_tf.aggregation.state.file_format import Table, from_keys, packed
from grace_tf.keras.classes import reducing
from grace_tf.keras.files import checksums
from grace_tf.keras.files.backup_agreement import agree, begin, delete_superseded, end, leave_aside
from grace_tf.keras.files.paths_by_worker import LOG, compresses, in_use, move, place
from grace_tf.keras.flavours import Flavour
from grace_tf.keras.optimizers import innermost
from grace_tf.keras.replacing import in_place_of

KEPT = 2
_DRAFT = "draft"
# What TensorFlow calls the parts of a compression state in a checkpoint; see `State` and `Leaf`.
_IN_CHECKPOINTS = re.compile(r".*/_grace/state/(?:(.+)/)?\.ATTRIBUTES/(rows|whose|table)")
_CHECKSUMS = "sha256"  # the name of the file in a folder of Keras 3, the suffix beside a checkpoint


def install(keras: Flavour) -> None:
    """Installs the changes in a Keras' BackupAndRestore."""
    cls = keras.module.callbacks.BackupAndRestore

    @in_place_of(cls, "set_model")
    def set_model(original, self, model):
        original(self, model)
        move(self, "backup_dir")

    if keras.is_3:
        _install_folders(cls)
        _install_end(cls)
    else:
        _install_checkpoints(keras)


def _install_folders(cls: type) -> None:
    """Gives each backup a folder of its own, where Keras 3 overwrites its only backup in place.

    A folder gets its number when it is whole.  (callbacks/backup_and_restore.py, checked in 3.15.)
    """

    @in_place_of(cls, "_load_model")
    def load_model(original, self):
        if not _ours(self.model):
            return original(self)
        numbers = _numbers(self.backup_dir)
        folders = {number: os.path.join(self.backup_dir, str(number)) for number in numbers}
        weights = os.path.basename(self._weights_path)
        damaged = _damaged(folders, lambda folder: _damage_in(folder, weights))
        chosen = agree(self.model, numbers, damaged, self.backup_dir)
        for number in numbers:
            if number > chosen:
                leave_aside(self.backup_dir, str(number))
        begin(self.model, self.backup_dir)
        self._grace_number = chosen
        # Where no backup has a number, plain Keras may have made one in the folder itself.
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
        checksums.write(os.path.join(draft, _CHECKSUMS), tf.io.gfile.listdir(draft))
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


def _damaged(paths: Mapping[int, str], damage: Callable[[str], str]) -> list[int]:
    """The numbers of the backups at `paths` of which `damage` says what is wrong with them.

    A completely written file may be broken later, for example by a power failure or its disk.
    """
    found = []
    for number, path in paths.items():
        if wrong := damage(path):
            LOG.warning("The backup %s is damaged and is left out: %s.", path, wrong)
            found.append(number)
    return found


def _damage_in(folder: str, weights: str) -> str:
    """What is wrong with a backup of Keras 3; "" for nothing."""
    names = set(tf.io.gfile.listdir(folder))
    if _CHECKSUMS in names:
        return checksums.damage(os.path.join(folder, _CHECKSUMS), names - {_CHECKSUMS})
    try:  # an earlier version has made it
        h5py.File(os.path.join(folder, weights), "r").close()
    except OSError as error:
        return f"{weights} cannot be opened, {error}"
    return ""


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


def _install_checkpoints(keras: Flavour) -> None:
    """Keeps two checkpoints of each worker; Keras 2 keeps one, under a strategy only the chief's.

    (distribute/worker_training_state.py, checked in 2.15.)
    """
    distribute = f"{keras.package}.src.distribute"
    file_utils = importlib.import_module(f"{distribute}.distributed_file_utils")
    cls = importlib.import_module(f"{distribute}.worker_training_state").WorkerTrainingState

    @in_place_of(cls, "__init__")
    def init(original, self, model, checkpoint_dir, *args, **kwargs):
        if place(model)[1] > 1:
            _leave_unreadable_list(os.path.join(checkpoint_dir, "chief"))
        original(self, model, checkpoint_dir, *args, **kwargs)
        if place(model)[1] > 1 and not self._enable_save_before_preemption:
            manager = self.read_checkpoint_manager
            manager = tf.train.CheckpointManager(manager.checkpoint, manager.directory, KEPT)
            self.read_checkpoint_manager = self.write_checkpoint_manager = manager
            # Where it would write.
            file_utils.remove_temp_dirpath(checkpoint_dir, model.distribute_strategy)

    @in_place_of(cls, "restore")
    def restore(original, self):
        manager = self.read_checkpoint_manager
        if place(self._model)[1] == 1 or self._enable_save_before_preemption:
            self._grace_restored = manager.latest_checkpoint
            return original(self)
        saved = _checkpoints(manager)
        damaged = _damaged(saved, _damage_of)
        chosen = agree(self._model, sorted(saved), damaged, manager.directory)
        for number, path in saved.items():
            if number > chosen:
                # The checksums go first and the index next: after a kill the rest does not count.
                for file in sorted(tf.io.gfile.glob(f"{path}.*"), reverse=True):
                    leave_aside(manager.directory, os.path.basename(file))
        begin(self._model, manager.directory)
        if chosen:
            self._grace_restored = saved[chosen]
            manager.checkpoint.restore(saved[chosen])

    _install_checkpoints_end(cls)
    _install_restore_without_a_step(keras.module.callbacks.BackupAndRestore)


def _leave_unreadable_list(folder: str) -> None:
    """Puts TensorFlow's list of checkpoints aside where reading it would end the run."""
    try:
        tf.train.get_checkpoint_state(folder)
    except ValueError:  # no text, or empty; after other errors TensorFlow goes on by itself
        leave_aside(folder, "checkpoint")


def _checkpoints(manager: tf.train.CheckpointManager) -> dict[int, str]:
    """The complete checkpoints in a folder by number, also where its list of them is damaged."""
    pattern = os.path.join(manager.directory, f"ckpt-*.{_CHECKSUMS}")
    listed = [path[: -len(_CHECKSUMS) - 1] for path in tf.io.gfile.glob(pattern)]
    paths = {*manager.checkpoints, *listed}
    return {_number(path): path for path in paths if tf.io.gfile.exists(f"{path}.index")}


def _number(path: str) -> int:
    return int(path.rpartition("-")[2])


def _files_of(path: str) -> Iterable[str]:
    """The names of the files of a checkpoint but for its checksums."""
    files = map(os.path.basename, tf.io.gfile.glob(f"{path}.*"))
    return [name for name in files if not name.endswith(f".{_CHECKSUMS}")]


def _damage_of(path: str) -> str:
    """What is wrong with a checkpoint of Keras 2; "" for nothing."""
    written = f"{path}.{_CHECKSUMS}"
    if not tf.io.gfile.exists(written):  # an earlier version has made it, or a kill came just then
        return ""
    return checksums.damage(written, _files_of(path))


def _install_checkpoints_end(cls: type) -> None:
    """Deletes a checkpoint of Keras 2 only for a newer one, or when all workers ended `fit`."""

    @in_place_of(cls, "back_up")
    def back_up(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        manager = self.write_checkpoint_manager
        newest = manager.latest_checkpoint
        if place(self._model)[1] == 1 or self._enable_save_before_preemption or not newest:
            return
        checksums.write(f"{newest}.{_CHECKSUMS}", _files_of(newest))
        for old in tf.io.gfile.glob(os.path.join(manager.directory, f"ckpt-*.{_CHECKSUMS}")):
            if not tf.io.gfile.exists(f"{old[: -len(_CHECKSUMS) - 1]}.index"):
                tf.io.gfile.remove(old)
        delete_superseded(manager.directory, _number(newest))

    @in_place_of(cls, "delete_backup")
    def delete_backup(original, self):
        folder = self.write_checkpoint_manager.directory
        end(self._model, folder, lambda: original(self))


def _install_restore_without_a_step(cls: type) -> None:
    """Restores the optimizer where no step is left, in which Keras 2 would make its variables.

    TensorFlow restores a variable as it is made, from the file, so this comes before the file goes.
    """

    @in_place_of(cls, "on_train_end")
    def on_train_end(original, self, logs=None):
        path = getattr(self._training_state, "_grace_restored", None)
        if path and compresses(self.model) and self.model.built:
            optimizer = innermost(self.model.optimizer)
            if hasattr(optimizer, "build") and not getattr(optimizer, "_built", False):
                self.model.optimizer.build(self.model.trainable_variables)
            states = [each._aggregator().state for each in reducing(optimizer)]
            # After a step the file may have been superseded, and is not needed.
            lacks = len(states) == 1 and not states[0].variables
            if lacks and tf.io.gfile.exists(f"{path}.index") and (saved := _state_in(path)):
                states[0].restore(saved)
        original(self, logs)


def _state_in(path: str) -> dict[str, np.ndarray]:
    """The arrays of the compression state in a checkpoint, as `State.restore` takes them."""
    reader = tf.train.load_checkpoint(path)
    found: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for name in reader.get_variable_to_shape_map():
        if match := _IN_CHECKPOINTS.fullmatch(name):
            leaf, what = match.groups()
            found[what][leaf or ""] = reader.get_tensor(name)
    if not found:
        return {}
    size, *workers = next(iter(found["whose"].values())).tolist()
    rows = {**found["rows"], **packed({}, size, tuple(workers), Table.of(found["table"][""]))}
    return from_keys(rows)
