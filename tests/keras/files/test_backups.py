"""Killed trainings go on from their backups with the same bits; no file has two writers."""

import re
import shutil

import h5py
import numpy as np
import pytest
from launch import launch
from models import KERAS_3, model
from this_keras import keras

import grace_tf
from grace_tf.cli import launcher
from grace_tf.keras.files import backup_agreement, backups

METHOD = "topk:ratio=0.1"
STEPS, SAVE_FREQ = 12, 3  # as in the program
KILLED = 137  # 128 + SIGKILL
FILES = ["all.weights.h5", "best.weights.h5", "rank1/all.weights.h5", "rank1/best.weights.h5"]
ZERO = "residuals start from zero"


def trained(folder, surroundings, *arguments):
    """The exit code, the lines of JSON of every process, and everything that was printed."""
    processes = 1 if surroundings == "mirrored" else 2
    words = folder, surroundings, METHOD, *arguments
    run = launch("backups.py", *words, workers=processes, linger=20)
    return run.code, run.answers(), run.text


def steps(told):
    """{step: what it left} of the training itself."""
    return {line["step"]: line for line in told if "step" in line and "file" not in line}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the two workers of a process group say of a training that nothing interrupts."""
    code, told, everything = trained(tmp_path_factory.mktemp("whole"), "group")
    assert code == 0, everything[-4000:]
    assert all(sorted(steps(lines)) == list(range(1, STEPS + 1)) for lines in told)
    return told


def no_worker_deletes_where_one_has_no_backup(folder):
    """As where the disk of worker 1 is not mounted."""
    away = folder.with_name("away")
    (folder / "rank1").rename(away)
    files = {path: path.read_bytes() for path in (folder / "backup").rglob("*") if path.is_file()}
    code, _, everything = trained(folder, "group")
    assert code not in (0, launcher.TIMED_OUT)
    for rank in range(2):
        sentence = rf"\[{rank}\] .*worker 1 of 2 has no backup, but others have .*{folder}"
        assert re.search(sentence, everything), everything[-4000:]
    for path, content in files.items():
        assert path.read_bytes() == content
    shutil.rmtree(folder / "rank1", ignore_errors=True)
    away.rename(folder / "rank1")


@pytest.mark.parametrize("surroundings", ["group", "mwms"])
def test_a_kill_as_training_ends_loses_no_backup(surroundings, tmp_path):
    code, _, everything = trained(tmp_path, surroundings, "end", 1)
    assert code == KILLED, everything[-4000:]
    code, told, everything = trained(tmp_path, surroundings)
    assert code == 0, everything[-4000:]
    for lines in told:
        # Keras 2 has nothing left to do, Keras 3 begins the last epoch anew.
        assert min(steps(lines), default=STEPS + 1) == STEPS + 1
        assert lines[-1]["end"]
    assert not [*tmp_path.rglob("latest.weights.h5"), *tmp_path.rglob("ckpt*")]


@pytest.mark.parametrize("surroundings", ["group", "mirrored", "mwms"])
def test_a_killed_training_goes_on_with_the_same_bits(surroundings, whole, tmp_path):
    """In the group worker 0 has saved once more than worker 1, which is killed before it does.

    Under mwms a bit of the newest backup of worker 0 is flipped.
    """
    draw = np.random.default_rng([*surroundings.encode()])
    kill = int(draw.integers(SAVE_FREQ + 1, STEPS))
    rank = 0 if surroundings == "mirrored" else int(draw.integers(2))
    if surroundings == "group":
        kill, rank = 2 * SAVE_FREQ, 1
    elif surroundings == "mwms":
        kill = 2 * SAVE_FREQ + 1  # all workers have two backups
    last = (kill - 1) // SAVE_FREQ  # the newest backup that all workers have
    code, _, everything = trained(tmp_path, surroundings, kill, rank)
    assert code == KILLED, everything[-4000:]
    if surroundings == "group":
        no_worker_deletes_where_one_has_no_backup(tmp_path)
    if surroundings == "mwms":
        DAMAGES["weights"](*newest(tmp_path / "backup", last))
    code, told, everything = trained(tmp_path, surroundings)
    assert code == 0, everything[-4000:]
    lost = [line for line in everything.splitlines() if ZERO in line and '"file"' not in line]
    assert not lost
    if surroundings == "group":
        sentence = "Worker 0 of 2 leaves its backup 2 for number 1, which all workers have."
        assert sentence in everything
    if surroundings == "mwms":
        assert everything.count("is damaged and is left out") == 1
        assert f"Worker 1 of 2 leaves its backup {last} for number {last - 1}" in everything
        last -= 1
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.h5"))
    assert files == (FILES[:2] if surroundings == "mirrored" else FILES)
    assert not [*tmp_path.rglob("workertemp*")]  # Keras 2's folder for files that it deletes
    unbroken = [steps(lines) for lines in whole]
    for lines in told:
        rest = steps(lines)
        begin = 1 + last * SAVE_FREQ
        # Keras 3 begins the interrupted epoch anew, with later steps' data.
        assert sorted(rest)[: STEPS + 1 - begin] == list(range(begin, STEPS + 1))
        assert KERAS_3 or max(rest) == STEPS
        for step in range(begin, STEPS + 1):
            for name in ("weights", "slots"):
                assert rest[step][name] == unbroken[0][step][name], (step, name)
            for worker, residuals in rest[step]["workers"].items():
                assert residuals == unbroken[int(worker)][step]["workers"][worker], (step, worker)
    workers = [worker for lines in told for worker in steps(lines)[STEPS]["workers"]]
    assert workers == ["0", "1"]
    residuals = [unbroken[i][STEPS]["workers"][str(i)] for i in range(2)]
    assert residuals[0] != residuals[1]


def test_every_worker_writes_files_of_its_own(whole):
    for rank, lines in enumerate(whole):
        (written,) = [line["written"] for line in lines if "written" in line]
        assert written == FILES
        last = steps(lines)[STEPS]
        files = {(line["file"], line["whose"]): line for line in lines if "file" in line}
        for name in FILES[:2]:
            own, first = files[name, "own"], files[name, "0"]
            # The loss falls in every epoch, so the best model is the last.
            assert {key: own[key] for key in last} == last
            assert (own["weights"], own["slots"]) == (first["weights"], first["slots"])
            assert not own["warned"]
            assert [ZERO in sentence for sentence in first["warned"]] == [True] * rank
            assert (first["workers"] == own["workers"]) == (rank == 0)


LACKS = r"worker {} has no backup, but others have \(the newest is number {}\); .*/here is worker"


@pytest.mark.parametrize(
    "here, others, chosen",
    [
        # [newest, oldest, ended] of the others; -1 has neither a backup nor begun.
        ([], [[-1, -1, 0]], 0),
        ([4, 5], [[4, 3, 0]], 4),
        ([4, 5], [[5, 4, 0], [5, 4, 0]], 5),
        ([1], [[0, 0, 0]], 0),  # killed before its first one
        ([4, 5], [[-1, -1, 0]], LACKS.format("1 of 2", 5)),
        ([1], [[-1, -1, 0]], LACKS.format("1 of 2", 1)),
        ([4, 5], [[5, 4, 0], [-1, -1, 0]], LACKS.format("2 of 3", 5)),
        ([], [[5, 4, 0], [5, 4, 0]], LACKS.format("0 of 3", 5)),
        ([], [[5, 4, 1], [5, 4, 0]], LACKS.format("0 of 3", 5)),
        ([], [[5, 4, 1], [5, 4, 1]], 0),  # all have ended, and this one has deleted its own
        ([6, 7], [[5, 4, 0]], "do not fit together .*the newest are 7, 5, .*Nothing was deleted"),
        ([4, 5], [[0, 0, 0]], "do not fit together .*the newest are 5, 0, .*Nothing was deleted"),
    ],
)
def test_workers_agree_on_a_backup_or_stop(here, others, chosen, monkeypatch, tmp_path):
    agreed(here, [], others, chosen, monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "here, damaged, others, chosen",
    [
        ([4, 5], [5], [[5, 4, 0]], 4),
        ([4, 5], [4], [[5, 4, 0]], 5),
        ([4, 5], [4], [[4, 3, 0]], "newest are 5, 4, the oldest 5, 3, damaged ones left out"),
        ([1, 2, 3], [2], [[2, 1, 0]], "do not fit together"),  # not the damaged one between
        ([1, 2], [2], [[0, 0, 0]], "do not fit together"),  # there were two: nobody starts anew
        (
            [4, 5],
            [4, 5],
            [[5, 4, 0]],
            "all backups of worker 0 of 2 are damaged; .*/here is",
        ),
        ([1], [1], [[1, 0, 0]], "all backups of worker 0 of 2 are damaged"),
        ([4, 5], [], [[5, 4, 0], [-2, -2, 0]], "all backups of worker 2 of 3 are damaged"),
    ],
)
def test_a_damaged_backup_does_not_count(here, damaged, others, chosen, monkeypatch, tmp_path):
    agreed(here, damaged, others, chosen, monkeypatch, tmp_path)


def agreed(here, damaged, others, chosen, monkeypatch, tmp_path):
    """Asserts which backup this worker and the others agree on, or with which sentence it ends."""

    class Others:
        def handshake(self, words, purpose):
            return np.array([words, *others])

    monkeypatch.setattr(backup_agreement, "place", lambda model: (0, 1 + len(others)))
    monkeypatch.setattr(backup_agreement, "together", lambda *_: Others())
    folder = str(tmp_path / "here")
    if here:
        backup_agreement._mark(folder, "begun")
    if isinstance(chosen, int):
        assert backup_agreement.agree(None, here, damaged, folder) == chosen
    else:
        with pytest.raises(RuntimeError, match=chosen):
            backup_agreement.agree(None, here, damaged, folder)


def test_what_was_left_aside_goes_when_a_newer_backup_is_whole_on_all_workers(tmp_path):
    for name in ("left-4", "left-ckpt-4.index", "left-6", "7"):
        (tmp_path / name).mkdir()
    backup_agreement.delete_superseded(str(tmp_path), 4)
    assert len(list(tmp_path.iterdir())) == 4
    backup_agreement.delete_superseded(str(tmp_path), 5)
    assert {path.name for path in tmp_path.iterdir()} == {"left-6", "7"}


class Alike:
    """Stands for two workers, each with the same backups as this one."""

    def handshake(self, words, purpose):
        return np.array([words, words])


def flip(path, dataset=None):
    """Flips a bit, of the middle of a file or of the first element of a dataset of an .h5 file."""
    at = path.stat().st_size // 2
    if dataset is not None:
        with h5py.File(path, "r") as file:
            at = min(x.id.get_offset() for x in datasets(file) if dataset in x.name)
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def datasets(file):
    found = []
    file.visititems(lambda _, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
    return found


def newest(folder, number):
    """The files of a backup: its weights, and the file with which it is read first."""
    if KERAS_3:
        return [folder / str(number) / x for x in ("latest.weights.h5", "training_metadata.json")]
    return [next(folder.glob(f"**/ckpt-{number}.{x}*")) for x in ("data", "index")]


DAMAGES = {
    "weights": lambda weights, _: flip(weights, "layers/" if KERAS_3 else None),
    "residual": lambda weights, _: flip(weights, "residual" if KERAS_3 else None),
    "json or index": lambda _, text: flip(text),
    "cut": lambda weights, _: weights.write_bytes(weights.read_bytes()[:100]),
}


@pytest.fixture
def one_of_two(tmp_path, monkeypatch):
    """Trains as one of two workers; (the epochs that were left, the weights)."""
    for module in (backups, backup_agreement):
        monkeypatch.setattr(module, "place", lambda model: (0, 2))
    monkeypatch.setattr(backup_agreement, "together", lambda *_: Alike())

    def train(epochs):
        keras.utils.set_random_seed(epochs)
        made = model()
        made.compile(grace_tf.wrap(keras.optimizers.Adam(0.1), METHOD, min_elements=1), "mse")
        x = np.ones([8, 8], np.float32)
        kept = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        seen = made.fit(x, x[:, :4], epochs=epochs, verbose=0, callbacks=[kept])
        train.optimizer = made.optimizer
        return seen.epoch, [w.tolist() for w in made.get_weights()]

    return train


def test_where_no_step_is_left_the_optimizer_is_restored_too(one_of_two):
    """Keras 2 makes its variables, and TensorFlow the residuals, in the first step."""

    def state():
        variables = one_of_two.optimizer.variables
        own = [v.numpy() for v in (variables() if callable(variables) else variables)]
        kept = grace_tf.keras.aggregator_of(one_of_two.optimizer).state.arrays()
        return own, {name: kept[name] for name in kept if "table" not in name}

    _, unbroken = one_of_two(3)
    own, kept = state()
    assert one_of_two(3) == ([], unbroken)
    own_again, kept_again = state()
    np.testing.assert_equal(own_again, own)
    np.testing.assert_equal(kept_again, kept)


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_two_backups_the_whole_one_serves(damage, one_of_two, tmp_path, caplog):
    """Where both are damaged, every worker stops, and nothing is deleted."""
    epochs, unbroken = one_of_two(3)
    assert epochs == [0, 1, 2]
    DAMAGES[damage](*newest(tmp_path / "backup", 3))
    assert one_of_two(3) == ([2], unbroken)
    told = [line for line in caplog.messages if "is damaged and is left out" in line]
    assert len(told) == 1 and re.search(r"[/-]3 is damaged", told[0])
    for number in (2, 3):
        DAMAGES[damage](*newest(tmp_path / "backup", number))
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RuntimeError, match="all backups of worker 0, 1 of 2 are damaged; .*backup"):
        one_of_two(3)
    assert all(path.read_bytes() == content for path, content in files.items())


@pytest.mark.skipif(KERAS_3, reason="Keras 3 has no list of its backups")
@pytest.mark.parametrize("content", [b"\xff\xfe", b'model_checkpoint_path: "ckpt-9"', b""])
def test_a_damaged_list_of_checkpoints_loses_none(content, one_of_two, tmp_path):
    one_of_two(2)
    (tmp_path / "backup" / "chief" / "checkpoint").write_bytes(content)
    assert one_of_two(3)[0] == [2]


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 keeps TensorFlow's checkpoints")
def test_a_broken_backup_of_an_earlier_version_is_left_out(tmp_path, caplog):
    """It has no checksums.  Training goes on from the backup before it, if that can be read."""

    def trained(epochs):
        made = model()
        made.compile(grace_tf.wrap(keras.optimizers.SGD(0.1), METHOD, min_elements=1), "mse")
        x = np.ones([8, 8], np.float32)
        kept = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        seen = made.fit(x, x[:, :4], epochs=epochs, verbose=0, callbacks=[kept])
        for checksums in (tmp_path / "backup").rglob("sha256"):
            checksums.unlink()
        return seen.epoch

    assert trained(3) == [0, 1, 2]
    assert trained(4) == [3]
    last = tmp_path / "backup" / "4" / "latest.weights.h5"
    last.write_bytes(last.read_bytes()[:100])
    assert trained(5) == [3, 4]
    assert f"The backup {last.parent} is damaged and is left out: {last.name} cannot" in caplog.text
    for path in (tmp_path / "backup").rglob("*.h5"):
        path.write_bytes(b"")
    with pytest.raises(RuntimeError, match="all backups in .*backup are damaged"):
        trained(6)
