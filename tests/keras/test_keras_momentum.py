"""A momentum is kept once, by the memory or by the optimizer."""

import warnings

import keras
import pytest
from models import KERAS_3, loss_scaled

import grace_tf
from grace_tf.keras import aggregator_of
from grace_tf.memories.dgc import MomentumCorrection

SGD, RMSprop, Adam = (getattr(keras.optimizers, name) for name in ("SGD", "RMSprop", "Adam"))


def test_the_optimizers_momentum_is_refused_and_the_way_out_named():
    for optimizer in (SGD(0.1, momentum=0.9), RMSprop(0.1, momentum=0.9)):
        name, plain = type(optimizer).__name__, type(optimizer)
        sentence = (
            rf"The memory 'dgc' has a momentum of its own, so that {name} must have none: write "
            rf"{name}\(..., momentum=0.0\) and .*memory=\"dgc:momentum=0.9\""
        )
        for given in (optimizer, loss_scaled(optimizer)):
            with pytest.raises(ValueError, match=sentence):
                grace_tf.wrap(given, "dgc")
        assert type(optimizer) is plain
    with pytest.raises(ValueError, match="momentum of its own"):
        grace_tf.wrap(SGD(0.1, momentum=0.5), {"a": "none", ".*": "dgc"})
    with pytest.raises(ValueError, match="'dgc:momentum=0.5' has a momentum of its own"):
        grace_tf.wrap(SGD(0.1, momentum=0.9), "topk", memory="dgc:momentum=0.5")


def test_what_the_refusal_names_is_taken():
    optimizer = grace_tf.wrap(SGD(0.1, momentum=0.0), "dgc", memory="dgc:momentum=0.9")
    ((_, _, memory),) = aggregator_of(optimizer).settings.routes
    assert memory == MomentumCorrection(momentum=0.9)


def test_without_a_second_momentum_nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grace_tf.wrap(SGD(0.1), "dgc")
        grace_tf.wrap(RMSprop(0.1), "dgc")
        grace_tf.wrap(SGD(0.1, momentum=0.9), "topk")
        grace_tf.wrap(SGD(0.1, momentum=0.9), "dgc", memory="dgc:momentum=0")
        grace_tf.wrap(SGD(0.1, momentum=0.9), "dgc", memory="residual")
        grace_tf.wrap(Adam(0.1), "dgc", memory="residual")


def test_adam_is_served_with_a_warning():
    with pytest.warns(UserWarning, match="Adam smooths its aggregates once more by beta_1"):
        grace_tf.wrap(Adam(0.1), "dgc")


@pytest.mark.skipif(KERAS_3, reason="Keras 3 has no legacy optimizers")
def test_legacy_optimizers_are_refused_alike():
    legacy = keras.optimizers.legacy
    with pytest.raises(ValueError, match="momentum of its own"):
        grace_tf.wrap(legacy.SGD(0.1, momentum=0.9), "dgc")
    grace_tf.wrap(legacy.SGD(0.1), "dgc")
