"""A wrapped optimizer is an ordinary object: it is pickled, copied, configured and sent away."""

import copy
import json
import multiprocessing
import pickle
import warnings
from concurrent import futures

import numpy as np
import pytest
import spawned
import tensorflow as tf
from models import KERAS_3, compiled, data, fit, loss_scaled, sha
from this_keras import HAS_ADDONS, keras

import grace_tf
from grace_tf.keras import aggregator_of
from grace_tf.line.settings import settings

SGD = keras.optimizers.SGD
TOPK = {"compressor": "topk:ratio=0.25", "min_elements": 1, "seed": 3}

MAKES = {
    "SGD": lambda: SGD(0.1, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.9)),
    "own": lambda: spawned.Slow(0.1),
    "scaled": lambda: loss_scaled(SGD(0.1), initial_scale=4.0),
}
if not KERAS_3:
    MAKES["legacy"] = lambda: keras.optimizers.legacy.Adam(0.1)
    MAKES["addons"] = lambda: addons().LAMB(0.1)
    MAKES["Lookahead"] = lambda: addons().Lookahead(keras.optimizers.legacy.SGD(0.1))
# Those of Keras 2 that scale losses hold locks and weak references, plain ones as well.
COPIED = [name for name in MAKES if KERAS_3 or name != "scaled"]


def addons():
    return pytest.importorskip("tensorflow_addons").optimizers


def pickled(given):
    return pickle.loads(pickle.dumps(given))


def serialized(given):
    told = json.loads(json.dumps(keras.saving.serialize_keras_object(given)))
    return keras.saving.deserialize_keras_object(told)


def configured(given):
    return type(given).from_config(given.get_config())


def target(start=0.0):
    plain = tf.fill([8], start)
    return keras.Variable(plain) if KERAS_3 else tf.Variable(plain)


def stepped(optimizer, start=0.0, steps=2, variable=None):
    """The variable, a new one if none is given, after steps of gradients that compression changes.

    With the variable goes the state: who wants to see it must hold the variable.
    """
    variable = target(start) if variable is None else variable
    for _ in range(steps):
        optimizer.apply_gradients([(tf.range(8.0) + 1, variable)])
    return variable.numpy()


def plain_of(name):
    return grace_tf.unwrap(grace_tf.wrap(MAKES[name]()))


@pytest.mark.parametrize("name", MAKES)
def test_an_unbuilt_optimizer_is_the_same_after_every_way(name):
    original = grace_tf.wrap(MAKES[name](), **TOPK)
    ways = [serialized, configured]
    if name == "own":  # files and configurations know registered names only; so does Keras
        ways = [configured]
    if name in COPIED:
        ways += [pickled, copy.deepcopy]
    copies = {way.__name__: way(original) for way in ways}
    expected = stepped(original)
    assert not np.array_equal(expected, stepped(plain_of(name)))
    for way, made in copies.items():
        assert type(made) is type(original), way
        assert aggregator_of(made) is not aggregator_of(original), way
        assert aggregator_of(made).settings == aggregator_of(original).settings, way
        np.testing.assert_array_equal(stepped(made), expected, way)


@pytest.mark.parametrize("name", COPIED)
@pytest.mark.parametrize("way", [pickled, copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_built_optimizer_takes_its_compression_state_along(name, way):
    original = grace_tf.wrap(MAKES[name](), **TOPK)
    variable = target()
    stepped(original, variable=variable)
    state = aggregator_of(original).state
    before = state.arrays()
    residual = next(name for name in before if name.endswith("/memory/residual"))
    assert state.step == 2 and np.any(before[residual])
    made = way(original)
    # Twice: a copy of a copy that has not trained.
    for each in (made, way(made)):
        arrays = aggregator_of(each).state.arrays()
        assert arrays.keys() == before.keys()
        for leaf, rows in before.items():
            np.testing.assert_array_equal(arrays[leaf], rows, leaf)
    # Keras' own slots come along where Keras copies them: then both go on alike.
    plain = MAKES[name]()
    stepped(plain)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept = int(way(plain).iterations) == 2
    except (TypeError, AttributeError, RuntimeError):  # Keras 2 cannot
        kept = False
    assert (int(made.iterations) == 2) == kept
    stepped(made, steps=1)
    assert aggregator_of(made).state.step == 3
    assert state.step == 2  # the original is left alone
    np.testing.assert_array_equal(state.arrays()[residual], before[residual])


@pytest.mark.parametrize("name", MAKES)
def test_the_plain_class_takes_the_config_of_a_wrapped_optimizer(name):
    plain = MAKES[name]()
    config = grace_tf.wrap(MAKES[name](), **TOPK).get_config()
    if name == "scaled":
        config = config["inner_optimizer"]["config"]
        plain = plain.inner_optimizer
    made = type(plain).from_config(config)
    assert type(made) is type(plain)
    assert "grace" in config and "grace" not in made.get_config()
    np.testing.assert_array_equal(stepped(made), stepped(plain))


def test_a_class_that_makes_its_config_itself_takes_one_too():
    class Own(SGD):
        @classmethod
        def from_config(cls, config, custom_objects=None):
            assert "grace" not in config
            return cls(**config)

    config = grace_tf.wrap(Own(0.3), **TOPK).get_config()
    made = Own.from_config(config)
    assert type(made) is Own and float(made.learning_rate) == np.float32(0.3)
    again = type(grace_tf.wrap(Own(0.1))).from_config(config)
    assert aggregator_of(again).settings.seed == 3


def test_the_names_of_keras_and_its_own_functions_take_a_wrapped_optimizer():
    original = grace_tf.wrap(SGD(0.3), **TOPK)
    told = keras.optimizers.serialize(original)
    made = keras.optimizers.deserialize(told)
    assert type(made).__name__ == "GraceSGD" and keras.optimizers.get(original) is original
    assert aggregator_of(keras.optimizers.get(told)).settings.seed == 3
    plain = keras.optimizers.get({"class_name": "SGD", "config": original.get_config()})
    assert type(plain) is SGD


def test_a_cloned_model_trains_with_a_copy_of_the_optimizer():
    made = compiled(lambda: grace_tf.wrap(SGD(0.1, momentum=0.9), **TOPK))
    cloned = keras.models.clone_model(made)
    cloned.set_weights(made.get_weights())
    cloned.compile(configured(made.optimizer), "mse")
    for each in (made, cloned):
        fit(each, 3)
    assert sha(cloned) == sha(made)
    other = compiled(lambda: SGD(0.1, momentum=0.9))
    fit(other, 3)
    assert sha(other) != sha(made)


@pytest.mark.parametrize("way", [pickled, copy.deepcopy], ids=["pickle", "deepcopy"])
@pytest.mark.parametrize("name", ["SGD", "scaled"])
def test_a_copied_model_trains_on_exactly(name, way):
    made = compiled(lambda: grace_tf.wrap(MAKES[name](), **TOPK))
    fit(made, 3)
    again = way(made)
    assert aggregator_of(again.optimizer).state is not aggregator_of(made.optimizer).state
    for each in (made, again):
        fit(each, 3, seed=1)
    assert sha(again) == sha(made)
    assert aggregator_of(again.optimizer).state.step == 6


def test_a_spawned_process_gets_optimizers_and_compiled_models():
    x, y = data(4)
    models = [compiled(lambda of=of: grace_tf.wrap(of(0.1), **TOPK)) for of in (SGD, spawned.Slow)]
    for made in models:
        fit(made, 2)  # there is a residual to be taken along
    optimizers = [grace_tf.wrap(make(), **TOPK) for make in (MAKES["own"], MAKES["Adam"])]
    if HAS_ADDONS:
        optimizers.append(grace_tf.wrap(MAKES["addons"](), **TOPK))
    with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        ends = [pool.submit(spawned.trained, made, x, y).result() for made in models]
        configs = [pool.submit(spawned.described, optimizer).result() for optimizer in optimizers]
    for made, (name, before, after) in zip(models, ends):
        assert name == type(made.optimizer).__name__
        for ours, theirs in zip(made.get_weights(), before):
            np.testing.assert_array_equal(ours, theirs)
        made.fit(x, y, batch_size=24, shuffle=False, verbose=0)
        for ours, theirs in zip(made.get_weights(), after):
            np.testing.assert_array_equal(ours, theirs)
    expected = [(type(optimizer).__name__, optimizer.get_config()) for optimizer in optimizers]
    assert configs == expected


def test_an_aggregator_is_copied_with_its_state():
    def aggregate(aggregator):
        return aggregator([tf.range(8.0)], [variable])[0].numpy()

    variable = tf.Variable(tf.zeros([8]))
    original = grace_tf.Aggregator("topk:ratio=0.25", min_elements=1, reduce="sum")
    aggregate(original)
    copies = [pickled(original), copy.deepcopy(original)]
    second = aggregate(original)
    for made in copies:
        assert (made.settings, made.reduce) == (original.settings, "sum")
        np.testing.assert_array_equal(aggregate(made), second)
        assert made.state.step == 2
    assert not np.array_equal(aggregate(grace_tf.Aggregator(original.settings)), second)


if KERAS_3:

    def test_the_wrappers_for_scikit_learn():
        sklearn = pytest.importorskip("sklearn")
        x, y = data(3)
        y = y[:, 0]

        def line():
            return keras.Sequential(
                [keras.Input((8,)), keras.layers.Dense(1, kernel_initializer="zeros")]
            )

        def made(make):
            return keras.wrappers.SKLearnRegressor(
                compiled(make, make=line),
                fit_kwargs={"shuffle": False, "verbose": 0, "batch_size": 24},
            )

        regressor = made(lambda: grace_tf.wrap(SGD(0.1), **TOPK))
        cloned = sklearn.clone(regressor).set_params(fit_kwargs=regressor.fit_kwargs)
        copies = [cloned, pickled(regressor), copy.deepcopy(regressor)]
        found = [each.fit(x, y).predict(x) for each in copies]
        wanted = regressor.fit(x, y).predict(x)
        for each in found:
            np.testing.assert_array_equal(each, wanted)
        assert aggregator_of(regressor.model_.optimizer).state.step == 3
        assert not np.array_equal(made(lambda: SGD(0.1)).fit(x, y).predict(x), wanted)


def test_pickles_made_when_settings_had_another_place_load():
    made = settings("topk", ratio=0.1)
    old = pickle.dumps(made, protocol=0).replace(b"grace_tf.line.settings", b"grace_tf.settings")
    assert b"grace_tf.settings" in old
    assert pickle.loads(old) == made
