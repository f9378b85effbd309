"""The number of steps that a call of `fit` plans, from which "auto" sees whether timing pays."""

import types
from unittest import mock

import models
import numpy as np
import pytest
import tensorflow as tf
from this_keras import keras

import grace_tf
from grace_tf.aggregation.choice.rest import Call
from grace_tf.keras import aggregator_of
from grace_tf.keras.fit import steps
from grace_tf.keras.fit.traced_again import call_of
from grace_tf.keras.training import _planned

ROWS = np.zeros([100, 2])


@pytest.mark.parametrize(
    "given, steps",
    [
        ({"x": ROWS}, 4),
        ({"x": ROWS, "batch_size": 10, "epochs": 3}, 30),
        ({"x": ROWS, "batch_size": 10, "epochs": 3, "initial_epoch": 2}, 10),
        ({"x": ROWS, "steps_per_epoch": 7, "epochs": 2}, 14),
        ({"x": tf.data.Dataset.from_tensor_slices(ROWS).batch(8), "epochs": 2}, 26),
        ({"x": tf.data.Dataset.from_tensor_slices(ROWS).repeat()}, None),
        ({"x": iter([ROWS])}, None),
    ],
)
def test_the_steps_of_all_epochs_are_counted_where_they_are_known(given, steps):
    assert _planned(given) == steps


def test_only_the_step_of_the_models_own_optimizer_can_be_traced_again():
    """An Aggregator in a `train_step`, or a second optimizer, is not asked between two steps."""
    made = models.compiled(lambda: grace_tf.wrap(keras.optimizers.SGD(0.1), "auto"))
    mine, other = aggregator_of(made.optimizer), grace_tf.Aggregator("auto")
    tuners = [each._stages.tuner for each in (mine, other)]
    assert [call_of(made, tuner) for tuner in tuners] == [Call(), Call()]  # no fit is under way
    now = types.SimpleNamespace(planned=100, done=3)
    with mock.patch.object(steps, "now", lambda: now):
        assert not call_of(made, tuners[0]).again  # its train_function does not ask
        made.train_function = types.SimpleNamespace(counts_steps=True)
        assert [call_of(made, tuner) for tuner in tuners] == [Call(100, 3, True), Call(100, 3)]
        now.planned = None
        assert call_of(made, tuners[0]) == Call(done=3, again=True)
        assert not call_of(None, tuners[0]).again


@pytest.mark.skipif(not models.KERAS_3, reason="Keras 2 accumulates no gradients")
def test_batches_that_make_one_step_together_count_as_one_step():
    sgd = lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=8)  # noqa: E731
    made = models.compiled(lambda: grace_tf.wrap(sgd(), "auto"))
    now = types.SimpleNamespace(planned=80, done=17)
    with mock.patch.object(steps, "now", lambda: now):
        assert call_of(made, aggregator_of(made.optimizer)._stages.tuner) == Call(10, 2)
