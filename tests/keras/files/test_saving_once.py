"""`model.save` of two plain processes to one path: this process, and a note of the other."""

import json
import os
import subprocess
import sys
import types

import pytest
from models import compiled, fit
from this_keras import keras

import grace_tf
from grace_tf.keras.files import saving_once


def topk():
    return grace_tf.wrap(keras.optimizers.SGD(0.1), "topk:ratio=0.1", min_elements=1)


@pytest.fixture
def place(monkeypatch, tmp_path):
    """(a model, the group of which this process is a worker, the folder of the notes)"""
    made = compiled(topk)
    fit(made, 1)
    group = types.SimpleNamespace(rank=1, size=2, timeout=0.2, lifeline=None)
    monkeypatch.setattr(saving_once, "several", lambda: group)
    monkeypatch.setattr(saving_once, "_folder", lambda: str(tmp_path / "notes"))
    monkeypatch.setattr(saving_once, "_said", set())
    return made, group, tmp_path


@pytest.fixture
def other():
    """A process that lives during the test."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate(b"\n")


def note_of(folder):
    (path,) = (folder / "notes").iterdir()
    return path


def written(path, rank, process):
    path.write_text(json.dumps([rank, process, saving_once._began(process)]))


def test_the_path_of_a_lower_rank_is_left_alone(place, other, caplog):
    made, _, folder = place
    path = folder / "m.keras"
    made.save(path)
    os.remove(path)
    written(note_of(folder), 0, other.pid)
    for _ in range(2):
        made.save(path)
        assert not path.exists()
    (told,) = [r.getMessage() for r in caplog.records if r.name == "grace_tf"]
    assert told.startswith(f"Worker 1 of 2 does not save {path}, which is worker 0's;")
    made.save(folder / "m1.keras")  # a path with the rank is this worker's own
    assert (folder / "m1.keras").exists()


FUNCTIONS = [keras.models.save_model, keras.saving.save_model]
FUNCTIONS += [keras.saving.save_weights] if hasattr(keras.saving, "save_weights") else []


@pytest.mark.parametrize("save", FUNCTIONS)
def test_the_functions_of_keras_leave_the_path_of_a_lower_rank_alone(place, other, save):
    made, _, folder = place
    path = folder / ("m.weights.h5" if save.__name__ == "save_weights" else "m.keras")
    save(made, path)
    os.remove(path)
    written(note_of(folder), 0, other.pid)
    save(made, path)
    save(made, filepath=path)
    assert not path.exists()


def test_worker_0_saves_where_another_has_saved_before(place, other):
    made, group, folder = place
    group.rank = 0
    for save, name in ((made.save, "m.keras"), (made.save_weights, "m.weights.h5")):
        save(folder / name)
        written(note_of(folder), 1, other.pid)
        os.remove(folder / name)
        save(folder / name)
        assert (folder / name).exists()
        assert json.loads(note_of(folder).read_text())[0] == 0
        os.remove(note_of(folder))


def test_the_note_of_a_process_that_has_ended_does_not_count(place):
    made, _, folder = place
    made.save(folder / "m.keras")
    note_of(folder).write_text(json.dumps([0, os.getpid(), "another start"]))
    os.remove(folder / "m.keras")
    made.save(folder / "m.keras")
    assert (folder / "m.keras").exists()
    saving_once._remove()
    assert not list((folder / "notes").iterdir())


def test_a_process_that_saves_for_ever_is_not_waited_for(place):
    made, _, folder = place
    made.save(folder / "m.keras")
    with open(note_of(folder)) as held:
        saving_once.fcntl.flock(held, saving_once.fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match=r"cannot save .*m\.keras: another process has been"):
            made.save(folder / "m.keras")


def test_without_a_temporary_folder_it_saves_as_keras_does(place, monkeypatch):
    made, _, folder = place
    (folder / "file").write_text("")
    with monkeypatch.context() as patch:  # Keras asks for the folder too
        patch.setattr(saving_once, "_folder", lambda: str(folder / "file" / "notes"))
        made.save(folder / "m.keras")
    assert (folder / "m.keras").exists()
