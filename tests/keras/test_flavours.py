"""Keras 3 and the legacy package tf_keras in one process; each optimizer is of its own Keras."""

import copy
import importlib.util
import itertools
import json
import pickle

import pytest
from models import compiled, fit, program
from this_keras import KERAS_3, keras

import grace_tf
from grace_tf.keras import flavours

HERE = flavours.chosen()


def test_the_keras_of_optimizers_models_and_layers():
    made = compiled(lambda: grace_tf.wrap(keras.optimizers.SGD(0.1)))
    for thing in (made, made.optimizer, made.layers[0], type(made), grace_tf.keras.Callback()):
        assert flavours.flavour_of(thing) == HERE
    assert (HERE.package, HERE.is_3) == (keras.__name__, KERAS_3)
    assert flavours.is_a(made, "Model") and not flavours.is_a(made, "optimizers.Optimizer")
    for thing in (1, None, object, "keras"):
        assert flavours.flavour_of(thing) is None and not flavours.is_a(thing, "Model")


def test_of_a_module_that_is_no_keras():
    with pytest.raises(TypeError, match=r"^keras is the module keras or tf_keras, not 'keras'\.$"):
        grace_tf.keras.OneBitAdam(keras="keras")


def test_a_subclass_of_ours_is_one_of_keras():
    class Mine(grace_tf.keras.OneBitAdam):
        pass

    assert isinstance(Mine(0.1), keras.optimizers.Optimizer) and isinstance(Mine(0.1), Mine)
    assert isinstance(Told(root=1), keras.callbacks.Callback) and isinstance(Told(), Told)


class Told(grace_tf.keras.Callback):
    """A user's own subclass. Pickle finds it by its name, so it must be defined in this module."""


@pytest.mark.parametrize(
    "make, name",
    [(grace_tf.keras.Callback, "_root"), (grace_tf.keras.Monitor, "every"), (Told, "_root")],
)
def test_a_pickled_callback_is_of_the_same_keras(make, name):
    callback = make(3)
    for other in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert type(other) is type(callback) and isinstance(other, keras.callbacks.Callback)
        assert vars(other).keys() == vars(callback).keys() and getattr(other, name) == 3


def test_a_registered_subclass_of_ours_is_found_in_files(tmp_path):
    @keras.utils.register_keras_serializable("users", "Own")
    class Mine(grace_tf.keras.OneBitAdam):
        pass

    made = compiled(lambda: Mine(0.1, freeze_step=2))
    fit(made, 1)
    made.save(tmp_path / "model.keras")
    assert isinstance(keras.models.load_model(tmp_path / "model.keras").optimizer, Mine)


@pytest.mark.slow
@pytest.mark.rotated
@pytest.mark.parametrize("order", [*itertools.permutations(["keras", "tf_keras", "grace_tf"])])
def test_models_of_both_train_side_by_side(order, tmp_path):
    if importlib.util.find_spec("tf_keras") is None:
        pytest.skip("The package tf_keras is not installed here.")
    for name, told in json.loads(program("side_by_side.py", tmp_path, *order)).items():
        assert told["class"] == "GraceAdam" and told["is its Keras'"], name
        assert told["losses"][-1] < told["losses"][0]
        assert told["goes on"] and told["same weights"], name
        assert told["one bit"][-1] < told["one bit"][0]
        assert told["other callback"].endswith(f"the model of {name}: make it with keras={name}.")
