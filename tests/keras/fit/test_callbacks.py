"""Ordinary callbacks between plain processes, by the README's lines alone; one run for all."""

import csv
import os
import re
import zipfile

import numpy as np
import pytest
from launch import launch


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What the two workers say, their files, and all that was printed."""
    folder = tmp_path_factory.mktemp("callbacks")
    made = launch("callbacks.py", folder).succeeded()
    return [told for (told,) in made.answers()], folder, made.text


def test_callbacks_that_decide_by_metrics_decide_alike(run):
    (first, second), _, _ = run
    for name in ("sha", "seen", "last", "epochs", "stopped", "rate", "history"):
        assert first[name] == second[name], name
    assert 0 < first["stopped"] < 11 and first["epochs"] < 12  # EarlyStopping has acted
    assert first["rate"] < 0.1 * 0.99 ** first["epochs"] * 0.6  # and ReduceLROnPlateau


def test_logs_are_means_and_statistics_are_the_same_before_the_validation(run):
    told, _, _ = run
    own = np.array([each["losses"] for each in told])
    assert (own[0] != own[1]).all()
    for each in told:
        seen = np.array(each["seen"])
        np.testing.assert_allclose(seen[:, 0], own.mean(0), rtol=1e-5)
        np.testing.assert_array_equal(seen[:, 1], each["history"])
        np.testing.assert_array_equal(seen[-1], each["last"])
        np.testing.assert_array_equal(seen[:, 1], each["tested"])
    assert told[0]["moving"] != told[1]["moving"]  # before they were averaged


def test_one_worker_writes_a_log_and_says_so(run):
    told, folder, _ = run
    with open(folder / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == list(range(told[0]["epochs"]))
    assert [float(row["val_loss"]) for row in rows] == told[0]["history"]
    assert sorted(os.listdir(folder / "logs")) == ["of0.csv", "of1.csv"]
    assert (folder / "logs" / "of0.csv").read_text() == (folder / "log.csv").read_text()
    assert (folder / "logs" / "of1.csv").read_text() == (folder / "log.csv").read_text()
    for part in ("train", "validation"):
        (events,) = [name for name in os.listdir(folder / "board" / part) if "tfevents" in name]
    assert not [line for line in told[0]["said"] if "writes nothing" in line]
    silent = [line for line in told[1]["said"] if "writes nothing" in line]
    assert [re.match(r"Worker 1 of 2: (\w+) writes", line)[1] for line in silent] == [
        "CSVLogger",
        "TensorBoard",
    ]
    assert f"own_path('{folder}/log.csv')" in silent[0]


def test_a_path_of_all_workers_is_saved_by_worker_0(run):
    told, folder, _ = run
    assert sorted(os.listdir(folder)) == sorted(
        ["best.weights.h5", "board", "both.keras", "end0.weights.h5", "end1.weights.h5"]
        + ["first.keras", "log.csv", "logs", "rank1"]
    )
    assert os.listdir(folder / "rank1") == ["best.weights.h5"]
    assert told[1]["first"][0] == told[1]["first"][1]  # worker 1 has left worker 0's file alone
    left = [[line for line in each["said"] if "first.keras" in line] for each in told]
    assert left[0] == []
    assert left[1][0].startswith(f"Worker 1 of 2 does not save {folder}/first.keras, which is")
    for name in ("both.keras", "first.keras"):
        assert zipfile.ZipFile(folder / name).testzip() is None
