"""What is saved comes back: every replica's residuals, in files of Keras and in checkpoints."""

import io
import json
import warnings
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf
from models import (
    KERAS_3,
    compiled,
    fit,
    loss_scaled,
    model,
    program,
    scope,
    sha,
    shas,
    slots,
)
from replicas import mirrored
from this_keras import keras

import grace_tf
from grace_tf.core import registry
from grace_tf.keras import aggregator_of


def topk(inner=None, **keywords):
    inner = inner or keras.optimizers.Adam(0.01)
    return grace_tf.wrap(inner, "topk:ratio=0.1", min_elements=1, **keywords)


def plain_adam():
    return keras.optimizers.Adam(0.01)


def strategy_of(replicas):
    return None if replicas == 1 else mirrored(replicas)


def scaled_adam():
    return loss_scaled(keras.optimizers.Adam(0.01), initial_scale=4.0)


def residuals(made):
    arrays = aggregator_of(made.optimizer).state.arrays()
    return {name: rows for name, rows in arrays.items() if "/memory/" in name}


def load(path, strategy=None):
    with scope(strategy):
        return keras.models.load_model(path)


def sentences(said):
    return [str(w.message) for w in said if "compression state" in str(w.message)]


LOST = (
    "The loaded file holds no compression state: residuals start from zero, so training goes on a "
    "little differently from a run that was not interrupted."
)


def test_a_fresh_process_trains_on_exactly(tmp_path):
    mixed = {".*kernel.*": "powersgd:rank=1", ".*": "topk:ratio=0.5"}
    cases = {
        "alone": (
            1,
            lambda: grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd", min_elements=1, seed=5),
        ),
        "mirrored": (2, lambda: grace_tf.wrap(scaled_adam(), mixed, min_elements=1)),
    }
    arguments, wanted = [], []
    for name, (replicas, make) in cases.items():
        strategy = strategy_of(replicas)
        made = compiled(make, strategy)
        fit(made, 3)
        path = tmp_path / f"{name}.keras"
        made.save(path)
        fit(made, 3, seed=1)
        arguments.append(f"{replicas}:{path}")
        wanted.append(shas(made, strategy))
    found = json.loads(program("resume.py", *arguments))
    assert [ends for _, *ends in found] == wanted
    assert [name for name, *_ in found] == ["GraceSGD", "GraceAdam"]


def test_a_file_saved_before_the_first_step_of_a_loaded_model(tmp_path):
    """Nothing is lost on the way from file to file."""
    made = compiled(topk)
    fit(made, 3)
    made.save(tmp_path / "first.keras")
    load(tmp_path / "first.keras").save(tmp_path / "second.keras")
    again = load(tmp_path / "second.keras")
    for each in (made, again):
        fit(each, 3, seed=1)
    assert sha(again) == sha(made)


def test_what_an_optimizer_was_before_its_first_step(tmp_path):
    """As between the folds of a cross-validation: nothing of the first fold stays."""
    made = compiled(topk)
    made.optimizer.build(made.trainable_variables)
    weights, own = made.get_weights(), slots(made.optimizer)
    path = tf.train.Checkpoint(model=made, optimizer=made.optimizer).save(str(tmp_path / "c"))
    fit(made, 3)
    wanted = sha(made)
    for way in ("set_weights", "checkpoint"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if way == "checkpoint":
                tf.train.Checkpoint(model=made, optimizer=made.optimizer).restore(path)
            else:
                made.set_weights(weights)
                made.optimizer.set_weights(own)
        assert not sentences(said), way
        fit(made, 3)
        assert sha(made) == wanted, way


# Under a strategy Keras 2 loads its own metrics only from TensorFlow's format.
def test_files_of_earlier_versions_still_load(tmp_path):
    """They held the state among the assets, and a keyword that changed nothing."""
    made = compiled(topk)
    fit(made, 3)
    made.save(tmp_path / "new.keras")
    assets = io.BytesIO()
    np.savez(assets, **aggregator_of(made.optimizer).state.arrays())
    with (
        zipfile.ZipFile(tmp_path / "new.keras") as new,
        zipfile.ZipFile(tmp_path / "old.keras", "w") as old,
    ):
        old.writestr("metadata.json", new.read("metadata.json"))
        config = new.read("config.json").split(rb"\"memory\"")
        assert len(config) == 2
        old.writestr("config.json", rb"\"exchange\": \"auto\", \"memory\"".join(config))
        weights = io.BytesIO(new.read("model.weights.h5"))
        with h5py.File(weights, "r+") as file:
            del file["optimizer/_grace_state"]
        old.writestr("model.weights.h5", weights.getvalue())
        old.writestr("assets/optimizer/grace.npz", assets.getvalue())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again = load(tmp_path / "old.keras")
        for each in (made, again):
            fit(each, 3, seed=1)
    assert not sentences(said)
    assert sha(again) == sha(made)


@pytest.mark.parametrize("replicas", [1, 3])
def test_another_number_of_replicas_keeps_the_mean(replicas, tmp_path):
    made = compiled(topk, mirrored(2))
    fit(made, 2)
    before = residuals(made)
    assert any(np.any(rows[0] != rows[1]) for rows in before.values())
    made.save(tmp_path / "m.keras")
    strategy = strategy_of(replicas)
    other = load(tmp_path / "m.keras", strategy)
    refused_step(other, strategy)
    assert aggregator_of(other.optimizer).state.workers == tuple(range(replicas))
    # Keras calls the layers of a loaded model otherwise, but they come in the same order.
    after = residuals(other)
    assert len(after) == len(before) == 4
    for rows, saved in zip(after.values(), before.values()):
        assert rows.shape[0] == replicas
        for row in rows:
            np.testing.assert_allclose(row, saved.mean(0), rtol=1e-6)


def refused_step(made, strategy):
    """Makes the state where it will train, as it is: non-finite steps are not committed."""
    variables = made.trainable_variables
    bad = [np.nan * tf.ones(v.shape) for v in variables]

    def replica():
        aggregator_of(made.optimizer).aggregate(bad, variables, None)

    replica() if strategy is None else tf.function(lambda: strategy.run(replica))()


def test_a_foreign_workers_file_warns_once_and_starts_from_zero(tmp_path):
    made = compiled(topk)
    fit(made, 3)
    state = aggregator_of(made.optimizer).state
    arrays = state.arrays()
    arrays["grace"] = np.array([2, 2, 1])  # as if worker 1 of 2 had saved it
    mine = compiled(topk)
    fit(mine, 1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        aggregator_of(mine.optimizer).state.restore(arrays)
    assert [str(w.message) for w in said] == [
        "The saved state of worker 0 of 1 is not in this file, which holds [1] of 2: its residuals "
        "start from zero."
    ]
    assert all(not np.any(rows) for rows in residuals(mine).values())
    assert aggregator_of(mine.optimizer).state.step == 3


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("built", [True, False])
def test_checkpoints(replicas, built, tmp_path):
    strategy = strategy_of(replicas)
    made = compiled(topk, strategy)
    fit(made, 3)
    path = tf.train.Checkpoint(model=made, optimizer=made.optimizer).save(tmp_path / "c")
    other = compiled(topk, strategy, make=lambda: model(seed=9))
    if built:
        fit(other, 1, seed=4)
    status = tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
    fit(made, 3, seed=1)
    fit(other, 3, seed=1)
    status.assert_existing_objects_matched().assert_consumed()
    assert shas(other, strategy) == shas(made, strategy)


def test_plain_and_wrapped_files_load_into_each_other(tmp_path, caplog):
    plain = compiled(lambda: keras.optimizers.Adam(0.01))
    wrapped = compiled(lambda: grace_tf.wrap(keras.optimizers.Adam(0.01), "none"))
    for made in (plain, wrapped):
        fit(made, 3)
    assert sha(plain) == sha(wrapped)
    stores = {}
    for name, made in (("plain", plain), ("wrapped", wrapped)):
        stores[name] = {}
        made.optimizer.save_own_variables(stores[name])
        made.save(tmp_path / f"{name}.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        caplog.clear()
        plain.optimizer.load_own_variables(stores["wrapped"])
        wrapped.optimizer.load_own_variables(stores["plain"])
        from_plain, from_wrapped = load(tmp_path / "plain.keras"), load(tmp_path / "wrapped.keras")
    assert not [r for r in caplog.records if "kipping" in r.getMessage()]
    grace_tf.wrap(from_plain.optimizer, "none")
    grace_tf.unwrap(from_wrapped.optimizer)
    for made in (plain, wrapped, from_plain, from_wrapped):
        assert len(slots(made.optimizer)) == len(slots(plain.optimizer)) > 8
        fit(made, 3, seed=1)
    assert sha(plain) == sha(wrapped) == sha(from_plain) == sha(from_wrapped)


class Halves(grace_tf.Compressor):
    """A method of a third party: half of each element."""

    share: float = 0.5

    nonexpansive = True
    commutes_with_sum = True

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.float32)}

    def compress(self, x, ctx):
        return {"values": tf.reshape(x, [-1]) * self.share}

    def decompress(self, payload, ctx):
        return tf.reshape(payload["values"], ctx.spec.shape)


def test_settings_come_back_with_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_COMPRESSORS", dict(registry._COMPRESSORS))
    halves = grace_tf.register("halves", family="test", paper="-")(Halves)
    made = compiled(
        lambda: grace_tf.wrap(
            keras.optimizers.Adam(0.01),
            {".*bias": "none", "(.*)": halves(0.25)},
            exclude=["no_such_layer.*"],
            min_elements=3,
            seed=11,
        )
    )
    fit(made, 2)
    made.save(tmp_path / "m.keras")
    again = load(tmp_path / "m.keras")
    assert aggregator_of(again.optimizer).settings == aggregator_of(made.optimizer).settings
    for each in (made, again):
        fit(each, 2, seed=1)
    assert sha(again) == sha(made)


def test_exported_models_hold_no_compression_state(tmp_path):
    made = compiled(topk)
    fit(made, 2)
    if KERAS_3:
        made.export(tmp_path / "exported", verbose=False)
    else:
        made.save(tmp_path / "exported", save_format="tf")
    names = [
        name for name, _ in tf.train.list_variables(str(tmp_path / "exported/variables/variables"))
    ]
    assert names and not [name for name in names if "memory" in name]


@pytest.mark.skipif(KERAS_3, reason="Keras 3 cannot train on from such files")
@pytest.mark.parametrize("name, format", [("m.h5", "h5"), ("folder", "tf")])
def test_whole_models_of_keras_2_train_on_without_the_state(name, format, tmp_path):
    """An .h5 file has the optimizer's slots, and a SavedModel has neither slots nor state."""
    made = compiled(topk)
    fit(made, 3)
    made.save(tmp_path / name, save_format=format)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again = load(str(tmp_path / name))
        assert int(again.optimizer.iterations) == (3 if format == "h5" else 0)
        assert aggregator_of(again.optimizer).settings == aggregator_of(made.optimizer).settings
        assert not residuals(again)
        fit(again, 2, seed=1)
    lost = LOST.replace("The loaded file", "What was given to set_weights")
    assert sentences(said) == ([lost] if format == "h5" else [])
    assert all(np.any(rows) for rows in residuals(again).values())


if not KERAS_3:

    def test_a_whole_model_is_loaded_in_a_graph_of_tensorflow_1(tmp_path):
        made = compiled(lambda: topk(keras.optimizers.legacy.Adam(0.01)))
        fit(made, 2)
        made.save(tmp_path / "m.h5")
        saved = made.get_weights()
        with tf.Graph().as_default():
            loaded = keras.backend.batch_get_value(load(str(tmp_path / "m.h5")).weights)
        for wanted, weight in zip(saved, loaded, strict=True):
            np.testing.assert_array_equal(wanted, weight)

    def test_legacy_optimizers_keep_their_state_in_checkpoints(tmp_path):
        strategy = mirrored(2)

        def make():
            return topk(keras.optimizers.legacy.Adam(0.01))

        made = compiled(make, strategy)
        fit(made, 3)
        path = tf.train.Checkpoint(model=made, optimizer=made.optimizer).save(tmp_path / "c")
        other = compiled(make, strategy, make=lambda: model(seed=9))
        tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
        fit(made, 3, seed=1)
        fit(other, 3, seed=1)
        assert shas(other, strategy) == shas(made, strategy)
