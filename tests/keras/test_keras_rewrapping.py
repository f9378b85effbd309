"""Wrapping and unwrapping the optimizer of a model that has trained, without a new compile."""

import numpy as np
import pytest
from models import compiled, data, fit, model, scope, sha
from replicas import mirrored
from this_keras import keras

import grace_tf
from grace_tf.keras import aggregator_of


class Traced:
    """A loss that counts how often it is traced."""

    def __init__(self):
        self.count = 0

    def __call__(self, wanted, given):
        self.count += 1
        return keras.losses.mean_squared_error(wanted, given)


def trained(replicas):
    """A model that a plain optimizer has trained, and its loss."""
    traced = Traced()
    with scope(mirrored(replicas) if replicas > 1 else None):
        made = model()
        made.compile(keras.optimizers.SGD(0.1), traced)
    fit(made, 2)
    return made, traced


def on_batch(made, batches):
    x, y = data(batches)
    for k in range(batches):
        made.train_on_batch(x[24 * k : 24 * (k + 1)], y[24 * k : 24 * (k + 1)])


def wrap(made, *method, **keywords):
    return grace_tf.wrap(made.optimizer, *method, min_elements=1, **keywords)


@pytest.mark.parametrize("train, replicas", [(fit, 1), (fit, 2), (on_batch, 1)])
def test_a_step_that_was_traced_before_is_traced_anew(train, replicas):
    made, _ = trained(replicas)
    optimizer = wrap(made, "topk", ratio=0.1)
    train(made, 2)
    taken = aggregator_of(optimizer)
    assert taken.bytes_per_step > 0
    assert taken.state.step == 2
    grace_tf.unwrap(optimizer)
    other = aggregator_of(wrap(made, "qsgd"))
    train(made, 3)
    assert other.bytes_per_step > 0
    assert other.state.step == 3
    again = aggregator_of(wrap(unwrapped(made), "qsgd"))
    train(made, 1)
    assert (other.state.step, again.state.step) == (3, 1)


def unwrapped(made):
    grace_tf.unwrap(made.optimizer)
    return made


def test_after_unwrap_the_plain_step_trains():
    made, _ = trained(1)
    before = made.get_weights()
    taken = aggregator_of(wrap(made, "topk", ratio=0.1))
    fit(made, 2)
    grace_tf.unwrap(made.optimizer)
    made.set_weights(before)
    fit(made, 2)
    assert taken.state.step == 2
    plain, _ = trained(1)
    plain.set_weights(before)
    fit(plain, 2)
    assert sha(made) == sha(plain)


def test_nothing_is_traced_again_where_nothing_changed():
    made, traced = trained(1)
    for wrapped in (False, True):
        if wrapped:
            wrap(made, "qsgd")
            fit(made, 2)
        count = traced.count
        for _ in range(2):
            fit(made, 2)
        assert traced.count == count


def test_a_model_compiled_with_a_wrapped_optimizer_is_traced_once():
    made = compiled(lambda: grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd", min_elements=1))
    fit(made, 2)
    function = made.train_function
    fit(made, 2)
    assert made.train_function is function
    assert np.isfinite(made.get_weights()[0]).all()
