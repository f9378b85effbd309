"""What the doctor finds, and why Horovod is missing."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
from unittest import mock

import tensorflow as tf
from this_keras import KERAS_3, keras

import grace_tf
from grace_tf.__main__ import main
from grace_tf.cli import doctor
from grace_tf.keras import flavours
from grace_tf.ops.backend import cuda, native

SCRIPT = pathlib.Path(__file__).parents[2] / ".ci" / "horovod"


def test_doctor_tells_what_importing_has_put_into_keras_and_tf_distribute():
    found = dict(doctor._guards())
    guards = {
        name.removeprefix("guard: "): told for name, told in found.items() if "guard:" in name
    }
    of_both = "backups guards lifeline paths_by_worker pickling saving_once split_steps".split()
    of_both += ["synchronised", "training"]
    assert set(guards) == {*of_both, *(["loss_scaling"] if KERAS_3 else [])}
    assert "in BackupAndRestore." in guards["backups"]
    assert (
        "ModelCheckpoint._get_file_path, ModelCheckpoint._save_model" in guards["paths_by_worker"]
    )
    assert "Model.fit, " in guards["training"]
    assert "in MultiWorkerMirroredStrategy.scope. " in guards["lifeline"]
    with mock.patch.object(keras.Model, "fit", lambda self: None):
        assert "Model.fit, " not in dict(doctor._guards())["guard: training"]


def test_doctor_tells_versions_repairs_and_surroundings():
    found = {**dict(doctor.findings()), **dict(doctor._repairs())}
    assert found["TensorFlow"] == tf.__version__
    assert f"{keras.__name__} {keras.__version__}" in found["Keras"].split(", ")
    assert found["tf.keras means"] == keras.__name__
    assert found["grace_tf"] == grace_tf.__version__
    assert found["native operations"].startswith(("yes, ", "no, the reference operations serve: "))
    assert found["workers around"].startswith("none")
    state = "applied to" if KERAS_3 else "not needed"
    assert found["repair: agree_on_finite"].startswith(state)


def test_doctor_sees_tf_config():
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    with mock.patch.dict(os.environ, {"TF_CONFIG": config}):
        assert dict(doctor.findings())["workers around"].startswith("2, ")
    with mock.patch.dict(os.environ, {"TF_CONFIG": "{"}):
        assert "TF_CONFIG is not" in dict(doctor.findings())["workers around"]


def test_guards_and_repairs_are_shown_when_asked_and_the_verdict_always(capsys):
    for words, shown in ([], False), (["--verbose"], True):
        assert main(["doctor", *words]) == 0
        printed = capsys.readouterr().out
        assert ("guard: training" in printed) == ("repair: agree_on_finite" in printed) == shown
        assert printed.splitlines()[-1].startswith("verdict: ")


def test_the_verdict_says_what_to_do_first():
    gpus = mock.patch.object(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    with mock.patch.object(native, "available", lambda: True):
        assert doctor.verdict() == "all is well: grace_tf can train here."
        with gpus, mock.patch.object(cuda, "why_not", lambda: "No driver."):
            assert doctor.verdict().endswith(
                "on GPUs by the slower reference operations: No driver."
            )
        with mock.patch.object(flavours, "chosen", side_effect=ImportError("No tf_keras.")):
            assert doctor.verdict().endswith("install tf_keras, or unset TF_USE_LEGACY_KERAS.")
            assert dict(doctor.findings())["tf.keras means"].endswith("No tf_keras")
    with mock.patch.object(native, "available", lambda: False):
        assert "install g++" in doctor.verdict()
    with mock.patch.dict(os.environ, {"TF_CONFIG": "{"}):
        assert doctor.verdict().startswith("training cannot start: TF_CONFIG is not")


def prepared(folder, tools, python='echo "tf2.15.1-py311"'):
    """A virtual environment whose Python is a line of bash, where PATH has only these tools."""
    (folder / "bin").mkdir()
    for tool in ("bash", "cat", "dirname", "grep", "head", "mktemp", "rm", "tee", *tools):
        (folder / "bin" / tool).symlink_to(shutil.which(tool) or "/bin/true")
    (folder / "bin" / "python").write_text(f"#!/bin/bash\n{python}\n")
    (folder / "bin" / "python").chmod(0o755)
    return {"PATH": str(folder / "bin"), "XDG_CACHE_HOME": str(folder / "cache")}


def built(folder, environment, *options):
    """What `.ci/horovod` says where it fails, and the doctor after it."""
    command = ["bash", str(SCRIPT), *options, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done
    with mock.patch.object(sys, "prefix", str(folder)):
        with mock.patch.object(importlib.util, "find_spec", return_value=None):
            return done.stderr.strip().splitlines(), doctor.horovod()


def test_the_doctor_says_why_horovod_was_not_built(tmp_path):
    said, found = built(tmp_path, prepared(tmp_path, ["g++"]))
    assert said == ["Horovod cannot be built here: there is no cmake."]
    assert found == f"not installed: {said[0]}"


def test_tests_do_not_try_again_what_has_failed(tmp_path):
    environment = prepared(tmp_path, ["g++", "tail"])
    first, _ = built(tmp_path, environment, "--once")
    (tmp_path / "bin" / "cmake").symlink_to("/bin/true")
    (tmp_path / "bin" / "g++").unlink()
    again, _ = built(tmp_path, environment, "--once")
    assert again == [f"{first[0]} It was tried before; `make horovod` tries again."]
    assert built(tmp_path, environment)[0] == [first[0].replace("cmake", "g++")]


def test_a_step_that_fails_shows_its_errors(tmp_path):
    steps = 'case "$*" in *download*) echo quiet; echo "ERROR: no network" >&2; exit 1;; esac'
    environment = prepared(tmp_path, ["cmake", "g++"], f"{steps}\necho tf2.15.1-py311")
    said, found = built(tmp_path, environment)
    assert said[0] == "ERROR: no network"
    assert said[1:] == ["Horovod cannot be built: its sources could not be downloaded."]
    assert found == f"not installed: {said[1]}"


def test_the_doctor_tells_a_missing_horovod_from_a_broken_one(tmp_path):
    with mock.patch.object(sys, "prefix", str(tmp_path)):
        with mock.patch.object(importlib.util, "find_spec", return_value=None):
            assert doctor.horovod() == "not installed"
    broken = ImportError("mpi_lib.so: undefined symbol: _ZN4absl")
    with mock.patch.object(importlib.util, "find_spec"):
        with mock.patch.object(importlib, "import_module", side_effect=broken):
            found = doctor.horovod()
        lonely = mock.Mock(**{"gloo_built.return_value": False, "mpi_built.return_value": False})
        with mock.patch.object(importlib, "import_module", return_value=lonely):
            assert "without Gloo and without MPI" in doctor.horovod()
    assert found == (
        "installed, but it cannot be imported: ImportError: mpi_lib.so: undefined symbol: _ZN4absl"
    )
