"""No optimizer is wrapped without effect: each that `wrap` accepts compresses, or is refused."""

import copy
import inspect
import pickle
import warnings

import numpy as np
import pytest
import tensorflow as tf
from models import KERAS_3, compiled, data, fit, loss_scaled, model, sha, shas, step_function
from replicas import mirrored
from this_keras import HAS_ADDONS, keras

import grace_tf
from grace_tf.keras import aggregator_of

optimizers = keras.optimizers
TOPK = {"compressor": "topk:ratio=0.25", "min_elements": 1}


def addons():
    return pytest.importorskip("tensorflow_addons").optimizers


def multi(layers, first, second):
    """A MultiOptimizer: `first` for one layer, `second` for the other."""
    if not KERAS_3:
        return addons().MultiOptimizer([(first, layers[0]), (second, layers[1])])
    return optimizers.MultiOptimizer(
        optimizers.OptimizerMap(first, {f".*{layers[1].name}/.*": second})
    )


def inner(optimizer):
    """The optimizers that a MultiOptimizer has."""
    given = getattr(optimizer, "inner_optimizer", optimizer)
    return given.optimizers if KERAS_3 else [spec["optimizer"] for spec in given.optimizer_specs]


def spaces():
    """The modules in which optimizers are public."""
    if KERAS_3:
        return {"": optimizers}
    # Keras 2's LossScaleOptimizer is not a subclass of Optimizer.  Other tests here wrap it.
    found = {"": optimizers, "legacy.": optimizers.legacy}
    return {**found, "addons.": addons()} if HAS_ADDONS else found


def found():
    """Every class of an optimizer that Keras and tensorflow-addons make public, by name."""
    bases = (optimizers.Optimizer,) if KERAS_3 else (optimizers.Optimizer, GENERATION_2)
    for prefix, space in spaces().items():
        for name, cls in vars(space).items() if prefix else inspect.getmembers(space):
            if inspect.isclass(cls) and issubclass(cls, bases) and cls not in bases:
                if not inspect.isabstract(cls):
                    yield prefix + name, cls


GENERATION_2 = None if KERAS_3 else optimizers.legacy.Optimizer


def sgd():
    return optimizers.SGD(0.1) if KERAS_3 else optimizers.legacy.SGD(0.1)


# What has no defaults for all of its arguments.
ARGUMENTS = {
    "ConditionalGradient": lambda layers: (0.1, 1.0),
    "AdamW": lambda layers: (0.01,) if not KERAS_3 else (),
    "SGDW": lambda layers: (0.01,),
    "Lookahead": lambda layers: (sgd(),),
    "MovingAverage": lambda layers: (sgd(),),
    "SWA": lambda layers: (sgd(),),
    "LossScaleOptimizer": lambda layers: (sgd(),),
    "CyclicalLearningRate": lambda layers: (),
}


def made(cls, layers):
    if cls.__name__ == "MultiOptimizer":
        return multi(layers, sgd(), sgd())
    return cls(*ARGUMENTS.get(cls.__name__, lambda layers: ())(layers))


def gradients(variables):
    return [
        (tf.reshape(tf.linspace(0.01, 1.0, int(np.prod(v.shape))), v.shape), v) for v in variables
    ]


def test_every_optimizer_that_is_accepted_compresses():
    seen = {}
    for name, cls in found():
        weights = []
        for wrapped in (False, True):
            network = model()
            optimizer = made(cls, network.layers)
            if wrapped:
                assert grace_tf.wrap(optimizer, **TOPK) is optimizer
            optimizer.apply_gradients(gradients(network.trainable_variables))
            weights.append(np.concatenate([v.numpy().ravel() for v in network.trainable_variables]))
        reducing = inner(optimizer) if cls.__name__ == "MultiOptimizer" else [optimizer]
        states = [aggregator_of(each).state for each in reducing]
        assert [state.step for state in states] == [1] * len(states), name
        residuals = [
            rows
            for state in states
            for name, rows in state.arrays().items()
            if name.endswith("/memory/residual")
        ]
        assert len(residuals) >= len(states), name
        assert all(np.any(rows) for rows in residuals), name
        assert not np.array_equal(*weights), name
        seen[name] = len(states)
    wanted = {"SGD", "Adam", "AdamW", "Lion", "Ftrl", "Nadam", "Adafactor", "LossScaleOptimizer"}
    if KERAS_3:
        wanted |= {"Lamb", "Muon"} & set(dir(optimizers)) | {"MultiOptimizer"}
    else:
        wanted |= {"legacy.SGD", "legacy.Adam"}
        wanted -= {"LossScaleOptimizer"}
    if HAS_ADDONS:
        wanted |= {f"addons.{name}" for name in ("LAMB", "MultiOptimizer", "Lookahead", "SWA")}
    assert wanted <= seen.keys()
    assert {count for name, count in seen.items() if "Multi" in name} <= {2}


def pair(wrapped=None, scaled=False, second=optimizers.Adam):
    """A model compiled with a MultiOptimizer of two kinds."""
    network = model()
    optimizer = multi(network.layers, optimizers.SGD(0.1, momentum=0.9), second(0.01))
    if scaled:
        optimizer = loss_scaled(optimizer, initial_scale=4.0)
    if wrapped is not None:
        grace_tf.wrap(optimizer, **wrapped)
    network.compile(optimizer, "mse")
    return network


def names(optimizer):
    return [type(each).__name__ for each in inner(optimizer)]


@pytest.mark.parametrize("scaled", [False, True])
def test_the_optimizers_of_a_multi_optimizer_have_lanes_of_their_own(scaled):
    plain, dense = pair(), pair({"compressor": "none"}, scaled)
    lossy = pair(TOPK, scaled)
    for each in (plain, dense, lossy):
        fit(each, 4)
    assert sha(dense) == sha(plain) != sha(lossy)
    aggregators = [aggregator_of(each) for each in inner(lossy.optimizer)]
    assert [a.state.step for a in aggregators] == [4, 4]
    assert sorted(a.settings.seed for a in aggregators) == [0, 1]
    for aggregator in aggregators:  # each has two of the four variables
        leaves = [name for name in aggregator.state.arrays() if "residual" in name]
        assert sorted(name.split("/")[-3] for name in leaves) == ["bias", "kernel"]


@pytest.mark.parametrize("compressor", ["none", "topk:ratio=1.0"])
def test_a_multi_optimizer_reduces_over_replicas(compressor):
    """As one replica that has all rows; the plain one of addons mixes its replicas up."""
    strategy = mirrored(2)
    # Adam would make much of gradients near zero that differ in their last bits.
    alone = pair(second=optimizers.SGD)
    fit(alone, 3)
    with strategy.scope():
        network = pair({"compressor": compressor, "min_elements": 1}, second=optimizers.SGD)
    x, y = data(3)
    step = step_function(network, network.optimizer, strategy)
    for i in range(3):
        rows = slice(24 * i, 24 * i + 24)
        step(*(tf.reshape(a[rows], [2, 12, -1]) for a in (x, y)))
    assert len(set(shas(network, strategy))) == 1
    steps = 0 if compressor == "none" else 3
    assert [aggregator_of(each).state.step for each in inner(network.optimizer)] == [steps] * 2
    for ours, theirs in zip(network.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_multi_optimizer_is_unwrapped_told_and_refused():
    network = pair(TOPK)
    optimizer = network.optimizer
    with pytest.raises(ValueError, match=r"MultiOptimizer deals .*SGD, .*Adam|Adam, .*SGD"):
        aggregator_of(optimizer)
    with pytest.raises(ValueError, match="wrapped already"):
        grace_tf.wrap(optimizer, "qsgd")
    assert grace_tf.unwrap(optimizer) is optimizer
    assert type(optimizer).__name__ == "MultiOptimizer" and "grace" not in optimizer.get_config()
    assert sorted(names(optimizer)) == ["Adam", "SGD"]
    grace_tf.wrap(inner(optimizer)[0], "qsgd")  # one of them alone is the user's choice
    with pytest.raises(ValueError, match="wrapped already"):
        grace_tf.wrap(optimizer, "qsgd")
    assert sum(name.startswith("Grace") for name in names(optimizer)) == 1


@pytest.mark.parametrize("way", ["pickle", "deepcopy", "config", "serialize"])
def test_a_multi_optimizer_is_copied(way):
    network = pair(TOPK)
    optimizer = network.optimizer
    if way == "pickle":
        optimizer.apply_gradients(gradients(network.trainable_variables))
        made = pickle.loads(pickle.dumps(optimizer))
        for ours, theirs in zip(inner(made), inner(optimizer)):
            kept = aggregator_of(ours).state.arrays()
            for leaf, rows in aggregator_of(theirs).state.arrays().items():
                np.testing.assert_array_equal(kept[leaf], rows, leaf)
    elif way == "deepcopy":
        made = copy.deepcopy(optimizer)
    elif way == "config":
        made = type(optimizer).from_config(optimizer.get_config())
    else:
        told = keras.saving.serialize_keras_object(optimizer)
        made = keras.saving.deserialize_keras_object(told)
    assert type(made) is type(optimizer) and made is not optimizer
    assert names(made) == names(optimizer)
    for ours, theirs in zip(inner(made), inner(optimizer)):
        assert aggregator_of(ours).settings == aggregator_of(theirs).settings
    network.compile(made, "mse")
    fit(network, 1)
    assert {aggregator_of(each).state.step for each in inner(made)} == {1 + (way == "pickle")}


if KERAS_3:

    def test_a_saved_multi_optimizer_trains_on_exactly(tmp_path):
        made = pair(TOPK)
        fit(made, 3)
        made.save(tmp_path / "m.keras")
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            again = keras.models.load_model(tmp_path / "m.keras")
        assert names(again.optimizer) == names(made.optimizer)
        for each in (made, again):
            fit(each, 3, seed=1)
        assert sha(again) == sha(made)

    def test_plain_and_wrapped_files_of_a_multi_optimizer_load_each_other(tmp_path):
        plain, wrapped = pair(), pair({"compressor": "none"})
        for name, made in (("plain", plain), ("wrapped", wrapped)):
            fit(made, 3)
            made.save(tmp_path / f"{name}.keras")
        other = grace_tf.wrap(keras.models.load_model(tmp_path / "plain.keras").optimizer, "none")
        assert [int(each.iterations) for each in inner(other)] == [3, 3]
        again = keras.models.load_model(tmp_path / "wrapped.keras")
        grace_tf.unwrap(again.optimizer)
        for each in (plain, wrapped, again):
            fit(each, 2, seed=1)
        assert sha(plain) == sha(wrapped) == sha(again)

    def test_optimizers_that_come_with_their_variables_are_wrapped_then():
        made = {}

        def chosen(variable):
            kind = optimizers.SGD if variable.name == "bias" else optimizers.Adam
            return made.setdefault(kind, kind(0.01))

        network = compiled(lambda: grace_tf.wrap(optimizers.MultiOptimizer(chosen), **TOPK))
        with pytest.raises(ValueError, match="none yet"):
            aggregator_of(network.optimizer)
        fit(network, 2)
        assert [aggregator_of(each).state.step for each in made.values()] == [2, 2]
        grace_tf.unwrap(network.optimizer)
        assert sorted(names(network.optimizer)) == ["Adam", "SGD"]
