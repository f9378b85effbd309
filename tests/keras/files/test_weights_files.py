"""The compression state in files of weights: kept with them, and a warning where it is lost."""

import warnings

import numpy as np
import pytest
from models import (
    KERAS_3,
    compiled,
    data,
    fit,
    model,
    scope,
    sha,
    shas,
    slots,
)
from test_keras_files import (
    LOST,
    load,
    plain_adam,
    refused_step,
    residuals,
    scaled_adam,
    sentences,
    strategy_of,
    topk,
)

from grace_tf.keras import aggregator_of

WEIGHTS = [("w.weights.h5", 1)] + ([("w.weights.h5", 2)] if KERAS_3 else [("w", 1), ("w", 2)])


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name, replicas", WEIGHTS)
def test_files_of_weights(name, replicas, scaled, tmp_path):
    """Loaded before the state is made, and in its place."""
    strategy = strategy_of(replicas)

    def make():
        return topk(scaled_adam() if scaled else None)

    def other():
        return compiled(make, strategy, make=lambda: model(seed=9))

    made = compiled(make, strategy)
    fit(made, 3)
    made.save_weights(tmp_path / name)
    early, late = other(), other()
    with scope(strategy):
        early.optimizer.build(early.trainable_variables)
    fit(late, 2, seed=4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for each in (early, late):
            each.load_weights(tmp_path / name)
    assert not sentences(said)
    for each in (made, early, late):
        fit(each, 3, seed=1)
    assert shas(early, strategy) == shas(late, strategy) == shas(made, strategy)


def test_plain_and_wrapped_files_of_weights_and_what_is_lost(tmp_path):
    plain, wrapped = compiled(plain_adam), compiled(topk)
    for name, made in (("plain", plain), ("wrapped", wrapped)):
        fit(made, 3)
        made.save_weights(tmp_path / f"{name}.weights.h5")
        made.save(tmp_path / f"{name}.keras")
    reader = compiled(plain_adam, make=lambda: model(seed=9))
    reader.optimizer.build(reader.trainable_variables)
    fresh = compiled(topk, make=lambda: model(seed=9))
    fresh.optimizer.build(fresh.trainable_variables)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader.load_weights(tmp_path / "wrapped.weights.h5")
        load(tmp_path / "wrapped.keras")
    assert sha(reader) == sha(wrapped)
    np.testing.assert_array_equal(slots(reader.optimizer)[2], slots(wrapped.optimizer)[2])
    assert any(np.any(rows) for rows in residuals(wrapped).values())
    for each in (fresh, wrapped):  # it warns where the state is made, or where it is thrown away
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            each.load_weights(tmp_path / "plain.weights.h5")
            refused_step(each, None)
            refused_step(each, None)
        assert sentences(said) == [LOST]
        assert all(not np.any(rows) for rows in residuals(each).values())
        assert aggregator_of(each.optimizer).state.step == 0
        fit(each, 3, seed=1)
    assert sha(fresh) == sha(wrapped)


def test_nothing_is_lost_before_the_first_step(tmp_path):
    made = compiled(plain_adam)
    made.optimizer.build(made.trainable_variables)
    made.evaluate(*data(), verbose=0)  # makes the metrics
    made.save_weights(tmp_path / "w.weights.h5")
    other = compiled(topk)
    fit(other, 1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        other.load_weights(tmp_path / "w.weights.h5")
    assert not sentences(said)


def test_weights_given_to_the_optimizer_lose_the_state():
    made = compiled(topk)
    fit(made, 3)
    own = [v.numpy() for v in made.optimizer._variables]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made.optimizer.set_weights(own)
    assert sentences(said) == [LOST.replace("The loaded file", "What was given to set_weights")]
    assert all(not np.any(rows) for rows in residuals(made).values())
