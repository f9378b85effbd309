"""A user's class derived from the class of a wrapped optimizer, and Keras 2's legacy conversion."""

import copy
import json
import pickle

import pytest
from models import KERAS_3, compiled, fit, loss_scaled, sha
from this_keras import keras

import grace_tf
from grace_tf.keras import aggregator_of

TOPK = {"compressor": "topk:ratio=0.25", "min_elements": 1, "seed": 3}
BASES = [keras.optimizers.SGD, *([] if KERAS_3 else [keras.optimizers.legacy.SGD])]
Schedule = keras.optimizers.schedules.LearningRateSchedule


class Derived:
    """The classes for each base; pickle finds a class by its name, so they are made here."""


def derived(base):
    class Mine(type(grace_tf.wrap(base(0.1)))):
        def __init__(self, *args, **keywords):
            super().__init__(*args, **keywords)
            self.mine = 123

    Mine.__qualname__ = f"Derived.{base.__module__.replace('.', '_')}"
    setattr(Derived, Mine.__qualname__.rpartition(".")[2], Mine)
    return Mine


CLASSES = {base: derived(base) for base in BASES}


@pytest.fixture(params=BASES, ids=lambda base: base.__module__)
def base(request):
    return request.param


def test_it_is_refused_as_bare_until_it_is_wrapped(base):
    mine = CLASSES[base](0.1)
    with pytest.raises(ValueError, match="^A bare Mine compresses nothing; make it with grace_tf"):
        mine.get_config()
    assert grace_tf.wrap(mine, **TOPK) is mine
    assert type(mine) is CLASSES[base] and mine.mine == 123
    with pytest.raises(ValueError, match="^This Mine is wrapped already"):
        grace_tf.wrap(mine, **TOPK)


def test_it_trains_as_the_class_it_derives_from(base):
    def trained(cls):
        made = compiled(lambda: grace_tf.wrap(cls(0.1, momentum=0.9), **TOPK))
        fit(made, 3)
        return made

    made = [trained(cls) for cls in (base, CLASSES[base])]
    assert aggregator_of(made[1].optimizer).state.step == 3
    assert sha(made[0]) == sha(made[1])


@pytest.mark.parametrize("scaled", [False, True])
def test_it_comes_back_from_its_config(base, scaled):
    mine = grace_tf.wrap(CLASSES[base](0.25), **TOPK)
    given = keras.optimizers.serialize(loss_scaled(mine) if scaled else mine)
    given = given if KERAS_3 else json.loads(json.dumps(given))
    back = keras.optimizers.deserialize(given, custom_objects={"Mine": CLASSES[base]})
    back = back.inner_optimizer if scaled else back
    assert type(back) is CLASSES[base]
    assert aggregator_of(back).settings == aggregator_of(mine).settings
    assert float(back.learning_rate) == 0.25


def test_a_copy_is_of_its_class(base):
    mine = grace_tf.wrap(CLASSES[base](0.25), **TOPK)
    for back in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert type(back) is CLASSES[base] and back.mine == 123
        assert aggregator_of(back).settings == aggregator_of(mine).settings


def test_it_has_no_plain_class_to_return_to(base):
    mine = grace_tf.wrap(CLASSES[base](0.25), **TOPK)
    with pytest.raises(ValueError, match="^Mine compresses by itself .* cannot be unwrapped"):
        grace_tf.unwrap(mine)
    assert aggregator_of(mine).settings.config()


class Halves(Schedule):
    def __call__(self, step):
        return 0.5

    def get_config(self):
        return {}


def converted(optimizer):
    return keras.__internal__.optimizers.convert_to_legacy_optimizer(optimizer)


@pytest.mark.skipif(KERAS_3, reason="Keras 3 has no legacy optimizers")
@pytest.mark.parametrize("rate", [0.25, Halves()])
def test_a_wrapped_optimizer_is_converted_to_a_wrapped_legacy_one(rate):
    plain = converted(keras.optimizers.SGD(rate, momentum=0.9))
    new = grace_tf.wrap(keras.optimizers.SGD(rate, momentum=0.9), **TOPK)
    legacy, scaled = converted(new), converted(loss_scaled(new))
    for each in (legacy, scaled.inner_optimizer):
        assert type(each).__name__ == "GraceLegacySGD" and isinstance(each, type(plain))
        assert aggregator_of(each).settings == aggregator_of(new).settings
        given = each.get_config()
        assert given.pop("grace") == new.get_config()["grace"] and given == plain.get_config()
    assert type(new).__name__ == "GraceSGD"
