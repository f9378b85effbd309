"""Where each process' callbacks write, and backups that a kill in the middle leaves alone."""

import os
import pathlib
import types
import warnings

import numpy as np
import pytest
from models import KERAS_3, compiled, data, fit, sha
from this_keras import keras

import grace_tf
from grace_tf.keras import aggregator_of, own_path
from grace_tf.keras.files import paths_by_worker
from grace_tf.transports.world import world as groups


def topk():
    return grace_tf.wrap(keras.optimizers.Adam(0.01), "topk:ratio=0.1", min_elements=1)


def second_of_two(table=()):
    """A process group's worker 1, who hears this table from all workers."""
    heard = lambda words, purpose: np.array(table)  # noqa: E731
    return types.SimpleNamespace(rank=1, size=2, processes=2, lifeline=None, handshake=heard)


def test_own_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths_by_worker, "_given", set())
    assert own_path("a/best.keras") == "a/best.keras"
    assert own_path("a/best.keras", 0) == "a/best.keras"
    assert own_path("a/{epoch:02d}-{val_loss:.2f}.keras", 3) == (
        "a/rank3/{epoch:02d}-{val_loss:.2f}.keras"
    )
    assert own_path("backup/", 1) == "rank1/backup"
    assert own_path(tmp_path / "a" / "b", 12) == f"{tmp_path}/a/rank12/b"
    monkeypatch.setattr(groups, "_current", second_of_two())
    assert own_path("a/best.keras") == "a/rank1/best.keras"


def test_own_path_makes_the_folder_of_every_worker_but_0(monkeypatch, tmp_path):
    made = compiled(topk)
    fit(made, 1)
    made.save(own_path(tmp_path / "m.keras", 1))
    assert os.listdir(tmp_path) == ["rank1"]
    assert os.listdir(tmp_path / "rank1") == ["m.keras"]
    assert own_path(tmp_path / "other" / "m.keras", 0) == f"{tmp_path}/other/m.keras"
    assert own_path(tmp_path / "{epoch}" / "m.keras", 1) == f"{tmp_path}/{{epoch}}/rank1/m.keras"
    assert os.listdir(tmp_path) == ["rank1"]


def test_own_path_of_an_own_path_is_the_same(monkeypatch, tmp_path, caplog):
    for name in ("several", "together"):
        monkeypatch.setattr(paths_by_worker, name, lambda *_: second_of_two())
    path = own_path(tmp_path / "{epoch}.weights.h5")
    assert own_path(path) == path
    folder = own_path(tmp_path / "all")
    assert own_path(f"{folder}/a.keras") == f"{folder}/a.keras"
    assert own_path(path, 2) == f"{tmp_path}/rank1/rank2/{{epoch}}.weights.h5"
    saving = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    fit(compiled(topk), 2, callbacks=[saving])
    assert sorted(os.listdir(tmp_path / "rank1")) == ["1.weights.h5", "all", "rank2"]
    assert not [r for r in caplog.records if r.name == "grace_tf"]
    # A script may use a folder named rank1 for all workers, for example for PowerSGD of rank 1.
    shared = str(tmp_path / "powersgd" / "rank1" / "best.keras")
    assert own_path(shared) == f"{tmp_path}/powersgd/rank1/rank1/best.keras"


def test_a_path_object_of_a_callback_is_moved_too(monkeypatch, tmp_path):
    for name in ("several", "together"):
        monkeypatch.setattr(paths_by_worker, name, lambda *_: second_of_two())
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    backup.set_model(compiled(topk))
    paths_by_worker.move(backup, "backup_dir")
    assert backup.backup_dir == f"{tmp_path}/rank1/backup"


def test_model_checkpoint_moves_once_and_says_who_decides(monkeypatch, tmp_path, caplog):
    for name in ("several", "together"):
        monkeypatch.setattr(paths_by_worker, name, lambda *_: second_of_two())
    saving = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "{epoch}.weights.h5"), "loss", save_best_only=True, save_weights_only=True
    )
    made = compiled(topk)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            fit(made, 2, epochs=2, callbacks=[saving])
    assert sorted(os.listdir(tmp_path)) == ["rank1"]
    assert sorted(os.listdir(tmp_path / "rank1")) == ["1.weights.h5", "2.weights.h5"]
    assert len([w for w in said if "Each worker decides by its own loss" in str(w.message)]) == 1
    told = [r.getMessage() for r in caplog.records if r.name == "grace_tf"]
    assert told == [
        f"Worker 1 of 2: ModelCheckpoint writes {tmp_path}/rank1/{{epoch}}.weights.h5; "
        f"{tmp_path}/{{epoch}}.weights.h5 is worker 0's."
    ]


def test_plain_processes_alone_are_left_alone(tmp_path):
    saving = keras.callbacks.ModelCheckpoint(str(tmp_path / "m.weights.h5"), save_weights_only=True)
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "b"), delete_checkpoint=False)
    made = compiled(lambda: keras.optimizers.SGD(0.1))
    fit(made, 2, callbacks=[saving, backup])
    assert sorted(os.listdir(tmp_path)) == ["b", "m.weights.h5"]
    assert not [name for name in os.listdir(tmp_path / "b") if name.isdigit()]


class Torn(Exception):
    """Ends a training, as a kill would."""


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 writes backups by TensorFlow's manager, whole")
def test_a_kill_while_a_backup_is_written_leaves_the_former_one(tmp_path, monkeypatch):
    made = compiled(topk)
    after = {}

    class Remember(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            after[int(self.model.optimizer.iterations.numpy())] = sha(self.model)

    own = keras.Model.save_weights

    def half(self, filepath, **keywords):
        own(self, filepath, **keywords)
        if int(self.optimizer.iterations.numpy()) == 6:
            content = pathlib.Path(filepath).read_bytes()
            pathlib.Path(filepath).write_bytes(content[: len(content) // 2])
            raise Torn

    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "b"), save_freq=2)
    with monkeypatch.context() as patch:
        patch.setattr(keras.Model, "save_weights", half)
        with pytest.raises(Torn):
            fit(made, 8, callbacks=[Remember(), backup])
    assert sorted(os.listdir(tmp_path / "b")) == ["1", "2", "draft"]
    again = compiled(topk)
    found = {}

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            state = aggregator_of(self.model.optimizer).state
            found.setdefault("begin", (sha(self.model), state.step))
            self.model.stop_training = True

    fresh = keras.callbacks.BackupAndRestore(str(tmp_path / "b"), save_freq=2)
    again.fit(*data(1), verbose=0, callbacks=[fresh, Look()])
    assert found["begin"] == (after[4], 4)
    assert not os.path.exists(tmp_path / "b")
