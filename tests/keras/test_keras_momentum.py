"""A momentum is kept once, by the memory or by the optimizer."""

import logging
import warnings

import pytest
import tensorflow as tf
from models import KERAS_3, compiled, fit, loss_scaled
from this_keras import keras

import grace_tf
from grace_tf.__main__ import main
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


def test_the_averages_of_signum_are_a_momentum_already():
    with pytest.raises(ValueError, match=r"'momentum' has .* SGD must .*\"momentum:beta=0.9\""):
        grace_tf.wrap(SGD(0.001, momentum=0.9), "signum")
    with pytest.raises(ValueError, match="must have none"):
        grace_tf.wrap(SGD(0.001, momentum=0.9), "topk@0;signum@9")
    with pytest.warns(UserWarning, match='memory="none" leaves that to Adam alone'):
        grace_tf.wrap(Adam(0.001), "signum")
    grace_tf.wrap(SGD(0.001, momentum=0.9), "signum:momentum=0.0")


FAR = [
    ("signsgd", SGD, {"learning_rate": 0.02, "momentum": 0.9}, "0.02 and a momentum of 0.9"),
    ("signsgd", SGD, {"learning_rate": 0.001, "momentum": 0.9}, ""),
    ("signum", SGD, {"learning_rate": 0.05}, "a learning rate of 0.05, which"),
    ("signum", SGD, {"learning_rate": 0.001}, ""),
    ("signsgd", Adam, {"learning_rate": 0.001}, ""),
    ("signsgd", Adam, {"learning_rate": 0.1}, "signsgd with Adam has a learning rate of 0.1"),
    ("randomk:ratio=0.1", SGD, {"learning_rate": 0.1, "momentum": 0.9}, "a momentum of 0.9"),
    ("randomk:ratio=0.1", SGD, {"learning_rate": 0.3}, ""),
    ("randomk:scaled=true", SGD, {"learning_rate": 0.1, "momentum": 0.9}, ""),
    ("topk", SGD, {"learning_rate": 1.0, "momentum": 0.99}, ""),
]


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize(("method", "kind", "keywords", "words"), FAR)
def test_the_first_step_says_once_what_is_far_from_what_a_method_needs(
    method, kind, keywords, words, eagerly, caplog
):
    rate = keras.optimizers.schedules.CosineDecay(keywords["learning_rate"], 100)
    for given in (keywords["learning_rate"], rate) if words and not eagerly else (rate,):
        optimizer = grace_tf.wrap(kind(**{**keywords, "learning_rate": given}), method)
        assert not caplog.records  # the rate may still be set
        variable = tf.Variable(tf.zeros([40, 30]))
        step = lambda: optimizer.apply_gradients([(tf.ones([40, 30]), variable)])  # noqa: B023, E731
        if not eagerly:
            optimizer.build([variable])
            step = tf.function(step, autograph=False)
        with caplog.at_level(logging.WARNING, "grace_tf"):
            step()
            step()
        told = [r.getMessage() for r in caplog.records if r.name == "grace_tf"]
        assert len(told) == bool(words)
        if words:
            assert words in told[0] and "begin with" in told[0]
        caplog.clear()


def test_describe_tells_what_to_begin_with(capsys):
    for method, words in (
        ("signum", "begin with a learning rate of 0.001 and no momentum in the optimizer"),
        ("randomk", "begin with no momentum in the optimizer"),
        ("dgc", "begin with no momentum in the optimizer"),
        ("qsgd", ""),
    ):
        assert main(["describe", method]) == 0
        out = capsys.readouterr().out
        assert words in out and bool(words) == ("begin with" in out)


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


@pytest.mark.skipif(KERAS_3, reason="Keras 3 has no legacy optimizers")
def test_a_legacy_optimizer_whose_momentum_is_a_variable_is_judged_where_fit_traces_it(caplog):
    for keywords, words in (
        ({"learning_rate": 0.02, "momentum": 0.9}, "0.02 and a momentum of 0.9"),
        ({"learning_rate": 0.001}, ""),
    ):
        sgd = lambda given=keywords: keras.optimizers.legacy.SGD(**given)  # noqa: E731
        made = compiled(lambda make=sgd: grace_tf.wrap(make(), "signsgd"))
        caplog.clear()
        with caplog.at_level(logging.WARNING, "grace_tf"):
            fit(made, 2)
        told = [r.getMessage() for r in caplog.records if r.name == "grace_tf"]
        assert len(told) == bool(words) and all(words in each for each in told)
