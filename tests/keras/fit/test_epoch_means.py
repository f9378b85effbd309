"""The means over workers that `fit` takes, on one worker with what it hears of the other."""

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, fit
from this_keras import keras

import grace_tf
from grace_tf.keras import flavours, training
from grace_tf.keras.fit import epoch_means
from grace_tf.keras.fit.epoch_means import EpochMeans
from grace_tf.keras.fit.stopping import stopped_by


class Two:
    """A group of two, of which the other worker sends 4 and then threes."""

    rank, size = 0, 2

    def __init__(self, where=None, names=None):
        self.where, self.names, self.sums = where, names, 0

    def handshake(self, words, purpose):
        other = list(words)
        other[0] = other[0] if self.where is None else self.where
        other[1] = other[1] if self.names is None else self.names
        other[3] ^= 1
        return np.array([words, other])

    def sum(self, buffers, key):
        self.sums += 1
        return [buffers[0] + tf.constant([4.0] + [3.0] * (buffers[0].shape[0] - 1), tf.float64)]


def model():
    frozen = keras.layers.Dense(8, trainable=False)
    norm = keras.layers.BatchNormalization(name="norm")
    return keras.Sequential([keras.Input((8,)), frozen, norm, keras.layers.Dense(4)])


def means_of(monkeypatch, group, made):
    monkeypatch.setattr(epoch_means, "several", lambda: group)
    means = flavours.callback(EpochMeans, made)
    means.set_model(made)
    return means


def wrapped(**keywords):
    return compiled(lambda: grace_tf.wrap(keras.optimizers.SGD(), **keywords), make=model)


def test_logs_and_statistics_but_not_frozen_weights(monkeypatch):
    group, made = Two(), wrapped()
    weights = [w.copy() for w in made.layers[0].get_weights()]
    means = means_of(monkeypatch, group, made)
    logs = {"loss": 2.0, "told": "by a callback"}
    means.on_epoch_end(0, logs)
    assert logs == {"loss": 3.0, "told": "by a callback"} and group.sums == 1
    assert epoch_means.averaged(logs) and not epoch_means.averaged({"loss": 3.0})
    for before, after in zip(weights, made.layers[0].get_weights()):
        np.testing.assert_array_equal(before, after)
    _, _, mean, variance = made.get_layer("norm").get_weights()
    np.testing.assert_array_equal(mean, [1.5] * 8)
    np.testing.assert_array_equal(variance, [2.0] * 8)
    at_end = {"loss": 2.0}
    means.on_train_end(at_end)
    assert at_end == {"loss": 3.0}


def test_statistics_are_averaged_once_before_the_validation(monkeypatch):
    made = wrapped()
    means = means_of(monkeypatch, Two(), made)
    means.on_epoch_begin(0)
    means.on_test_begin()
    once = made.get_layer("norm").get_weights()
    means.on_test_end({"loss": 2.0})
    means.on_epoch_end(0, {"loss": 2.0})
    np.testing.assert_array_equal(once[2:], made.get_layer("norm").get_weights()[2:])
    assert once[2][0] == 2.0  # (0 + 4) / 2, since here no metric comes before


@pytest.mark.parametrize(
    "made",
    [
        lambda: wrapped(average_logs=False),
        lambda: compiled(lambda: keras.optimizers.SGD(), make=model),
    ],
)
def test_nothing_happens_where_it_is_turned_off_or_not_ours(monkeypatch, made):
    logs = {"loss": 2.0}
    means_of(monkeypatch, None, made()).on_epoch_end(0, logs)
    means_of(monkeypatch, Two(), made()).on_epoch_end(0, logs)
    assert logs == {"loss": 2.0}


def test_what_differs_in_more_than_values(monkeypatch):
    for group, sentence in (
        (
            Two(where=0),
            "worker 0 validates after this epoch and worker 1 does not; give",
        ),
        (Two(names=3), r"metrics: 1, 3 of them, worker 0 loss; give all workers the same metrics"),
    ):
        means = means_of(monkeypatch, group, wrapped())
        with pytest.raises(RuntimeError, match=sentence):
            means.on_test_end({"loss": 2.0})


def test_an_aggregator_of_a_custom_step_counts(monkeypatch):
    made = compiled(lambda: keras.optimizers.SGD(), make=model)
    for average_logs, expected in ((True, 3.0), (False, 2.0)):
        aggregate = grace_tf.Aggregator("qsgd", average_logs=average_logs)
        weights = made.trainable_variables
        aggregate([tf.zeros(w.shape) for w in weights], weights)
        logs = {"loss": 2.0}
        means_of(monkeypatch, Two(), made).on_epoch_end(0, logs)
        assert logs["loss"] == expected
        del aggregate


def test_a_list_of_callbacks_that_the_user_has_made():
    users = keras.callbacks.CallbackList([keras.callbacks.Callback()], model=wrapped())
    before, means = list(users.callbacks), flavours.callback(EpochMeans, users.model)
    with training._first({"callbacks": users}, [means], users.model):
        assert users.callbacks == [means, *before] and means.model is users.model
    assert users.callbacks == before


def test_the_callback_that_stops_is_known():
    class Mine(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.stop()

        def stop(self):
            self.model.stop_training = True

    made = wrapped()
    for callback in (
        Mine(),
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: setattr(made, "stop_training", True)
        ),
    ):
        fit(made, 1, epochs=2, callbacks=[keras.callbacks.Callback(), callback])
        assert made.stop_training is True
        assert stopped_by(made) == type(callback).__name__
    fit(made, 1)
    assert made.stop_training is False and stopped_by(made) == ""
    made.stop_training = True
    assert stopped_by(made) == "a callback"
