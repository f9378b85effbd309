"""Gradients that would be reduced by nobody, or twice, and fits that would wait for ever."""

import json

import numpy as np
import pytest
import tensorflow as tf
from launch import launch
from models import KERAS_3, compiled, fit, replicas_of
from replicas import mirrored
from this_keras import keras

import grace_tf
from grace_tf.keras import callback, flavours, repairs
from grace_tf.keras.fit.epoch_means import EpochMeans
from grace_tf.transports.world import world

SGD = keras.optimizers.SGD


class OneOfTwo:
    """Stands for the process group of two workers, seen from worker 1."""

    rank, size = 1, 2

    def explain(self, error):
        return f"worker 0 is gone ({error.message})"

    def handshake(self, words, purpose):
        return np.array([words] * 2)

    def sum(self, buffers, key):
        raise tf.errors.UnavailableError(None, None, "socket closed")


@pytest.fixture
def one_of_two(monkeypatch):
    monkeypatch.setattr(world, "_current", OneOfTwo())


def optimizers():
    """A plain optimizer of each kind that this Keras has."""
    return [SGD(1.0)] if KERAS_3 else [SGD(1.0), keras.optimizers.legacy.SGD(1.0)]


def aggregated(variable):
    """What an Aggregator, kept with the variable, makes of ones."""
    return grace_tf.all_reduce([tf.ones(variable.shape)], [variable], "fp16", min_elements=1)


def test_in_a_group_a_plain_optimizer_takes_aggregated_gradients_only(monkeypatch):
    for optimizer in optimizers():
        first, second = tf.Variable(tf.zeros([4])), tf.Variable(tf.zeros([4]))
        (total,) = aggregated(first)
        with monkeypatch.context() as patch:
            patch.setattr(world, "_current", OneOfTwo())
            optimizer.apply_gradients([(total, first), (None, second)])
            for pairs in ([(total, second)], [(total, first), (total, second)]):
                with pytest.raises(RuntimeError, match=r"worker 1 of 2, but its SGD is not wrap"):
                    optimizer.apply_gradients(pairs)
        np.testing.assert_array_equal(first.numpy(), [-1.0] * 4)
        np.testing.assert_array_equal(second.numpy(), [0.0] * 4)


def under_strategy(optimizer, **keywords):
    """Each replica's variable after a step of a gradient that an Aggregator has reduced."""
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable(tf.zeros([4]))

    @tf.function(autograph=False)
    def step():
        def replica():
            (total,) = aggregated(variable)
            optimizer.apply_gradients([(total, variable)], **keywords)

        strategy.run(replica)

    step()
    return [row.tolist() for row in replicas_of(variable)]


def test_under_a_strategy_nothing_is_reduced_twice():
    way_out = "wrap.optimizer. under a strategy instead"
    offs = [{"skip_gradients_aggregation": True}, {"experimental_aggregate_gradients": False}]
    with mirrored(2).scope():
        made = optimizers()
    for optimizer, off in zip(made, offs):
        (name,) = off
        ending = r"\." if KERAS_3 else rf", or apply_gradients\(\.\.\., {name}={off[name]}\)\."
        with pytest.raises(
            RuntimeError, match=f"reduced by a grace_tf.Aggregator.*{way_out}{ending}"
        ):
            under_strategy(optimizer)
        if not KERAS_3:
            assert under_strategy(optimizer, **off) == [[-2.0] * 4] * 2


@pytest.mark.parametrize("where", ["alone", "under a strategy"])
def test_an_aggregator_and_a_wrapped_optimizer_are_one_too_many(where):
    sentence = "Both an Aggregator and a wrapped optimizer compress these gradients; use one"
    for plain in optimizers():
        optimizer = grace_tf.wrap(plain, "fp16", min_elements=1)
        with pytest.raises(ValueError, match=sentence):
            if where == "alone":
                variable = tf.Variable(tf.zeros([4]))
                optimizer.apply_gradients(zip(aggregated(variable), [variable]))
            else:
                under_strategy(optimizer)


def test_another_variable_than_the_aggregators_is_no_matter():
    used, other = tf.Variable(tf.zeros([4])), tf.Variable(tf.zeros([4]))
    aggregated(used)
    for plain in optimizers():
        other.assign(tf.zeros([4]))
        optimizer = grace_tf.wrap(plain, "fp16", min_elements=1)
        optimizer.apply_gradients([(tf.ones([4]), other), (None, used)])
        np.testing.assert_array_equal(other.numpy(), [-1.0] * 4)


def test_a_bare_class_says_how_to_make_one():
    bare = type(grace_tf.wrap(SGD(0.1), "fp16"))
    sentence = r"A bare GraceSGD compresses nothing; make it with grace_tf\.wrap\(\)\."
    for call in (
        lambda: bare(0.1).get_config(),
        lambda: bare.from_config(SGD(0.1).get_config()),
        lambda: bare(0.1).build([tf.Variable(tf.zeros([4]))]),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()


def test_synchronised_statistics_are_refused_where_keras_would_not_synchronise(one_of_two):
    """In a loop of one's own; programs/cells.py calls fit."""
    layer = keras.layers.BatchNormalization(synchronized=True, name="norm")
    rows = tf.ones([3, 4])
    layer(rows, training=False)
    with pytest.raises(RuntimeError, match="BatchNormalization 'norm' is to be synchronised, but"):
        layer(rows, training=True)
    with pytest.raises(RuntimeError, match="make it with synchronized=False"):
        tf.function(lambda: layer(rows, training=True), autograph=False)()
    keras.layers.BatchNormalization()(rows, training=True)
    layer.trainable = False  # then it normalises by its averages
    layer(rows, training=True)


def test_the_rank_of_no_worker_is_refused_as_the_one_whose_values_count(monkeypatch):
    monkeypatch.setattr(callback, "place", lambda model: (0, 2))
    sgd = lambda: grace_tf.wrap(SGD(0.1), "none")  # noqa: E731
    for root in (-1, 2):
        with pytest.raises(ValueError, match=rf"root={root}\) names none of the 2 workers"):
            fit(compiled(sgd), 1, callbacks=[grace_tf.keras.Callback(root=root)])
    made = compiled(sgd)
    fit(made, 1, callbacks=[grace_tf.keras.Callback(root=1)])
    assert made._grace_root == 0  # it counts for this call of fit only


def test_fit_refuses_logs_of_which_it_cannot_take_means():
    told = [answer for (answer,) in launch("callback_refusals.py").succeeded().answers()]
    for worker in (0, 1):
        assert told[worker]["same"] is None
        assert told[worker]["one validates"] == (
            "RuntimeError: The workers log different metrics, since worker 0 validates after this "
            "epoch and worker 1 does not; give validation data to all of them or none, or turn "
            "means over workers off by average_logs=False in grace_tf.wrap."
        )
        assert told[worker]["turned off"] is None
    assert told[0]["unbuilt"] == told[1]["unbuilt"]


def test_the_means_say_who_is_gone(one_of_two):
    made = compiled(lambda: grace_tf.wrap(SGD(0.1)))
    callback = flavours.callback(EpochMeans, made)
    callback.set_model(made)
    with pytest.raises(RuntimeError, match=r"^worker 0 is gone \(socket closed\)$"):
        callback.on_epoch_end(0, {"loss": 1.0})


if KERAS_3:

    def test_auto_is_no_xla_between_processes(monkeypatch):
        accelerator = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
        devices = [*tf.config.list_physical_devices(), accelerator]
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: devices)
        assert "no_xla_between_processes" in repairs.APPLIED
        assert compiled(lambda: SGD(0.1)).jit_compile is True
        monkeypatch.setattr(world, "_current", OneOfTwo())
        assert compiled(lambda: SGD(0.1)).jit_compile is False
        assert compiled(lambda: SGD(0.1), jit_compile=True).jit_compile is True
        # Its step can be split, so that XLA compiles no collective.
        assert compiled(lambda: grace_tf.wrap(SGD(0.1))).jit_compile is True

    def test_a_whole_step_with_auto_is_not_given_to_xla(monkeypatch):
        devices = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: devices)

        class Own(keras.Sequential):
            def train_step(self, data):
                return super().train_step(data)

        for spec, jit in (("auto", False), ("qsgd", True)):
            model = Own([keras.layers.Dense(1)])
            model.compile(grace_tf.wrap(SGD(0.1), spec), "mse")
            assert model.jit_compile is jit


@pytest.mark.parametrize("door", ["wrap", "CompressedAllReduce"])
def test_a_strategy_that_ends_at_its_process_is_refused_where_there_are_more(monkeypatch, door):
    if door == "wrap":
        strategy, optimizer = mirrored(2), grace_tf.wrap(SGD(1.0), "qsgd", min_elements=1)
    else:
        ops = grace_tf.CompressedAllReduce("qsgd", min_elements=1)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
        optimizer = SGD(1.0)
    with strategy.scope():
        variable = tf.Variable(tf.zeros([8]))
    task = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply_gradients([(tf.ones([8]), variable)]))

    with pytest.raises(RuntimeError, match="reduces within its process, one of several"):
        step()
    assert not np.any(variable.numpy())
