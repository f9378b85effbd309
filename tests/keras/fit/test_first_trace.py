"""The first step of `fit`, which is traced once although Keras makes an optimizer's variables."""

import models
import numpy as np
import pytest
import tensorflow as tf
from this_keras import keras

import grace_tf
from grace_tf.keras.optimizer_info import info_of

MAKES = {
    "momentum": lambda: grace_tf.wrap(keras.optimizers.SGD(0.1, momentum=0.9), "topk:ratio=0.25"),
    "averaged": lambda: grace_tf.wrap(keras.optimizers.Adam(0.1, use_ema=True), "none"),
    "one bit": lambda: grace_tf.keras.OneBitAdam(0.1),
}


class Counting(keras.Model):
    """A model whose `train_step` is counted."""

    traces = 0

    def train_step(self, data):
        Counting.traces += 1
        return super().train_step(data)


def counting():
    made = models.model()
    return Counting(made.inputs, made.outputs)


@pytest.mark.parametrize("name", MAKES)
def test_variables_of_the_optimizer_do_not_let_a_step_be_traced_twice(name):
    made = models.compiled(MAKES[name], make=counting)
    Counting.traces = 0
    models.fit(made, batches=2)
    assert Counting.traces == 1
    assert len(models.slots(made.optimizer)) >= len(made.trainable_variables)


@pytest.mark.parametrize("name", [None, "Other"])
def test_variables_made_before_the_first_exchange_have_the_names_that_keras_gives_them(name):
    words = {"name": name} if name and not models.KERAS_3 else {}

    def names(wrap):
        keras.backend.clear_session()
        both = [wrap(keras.optimizers.SGD(0.1, momentum=0.9, name="Mine")) for _ in range(2)]
        variables = models.model().trainable_variables

        @tf.function
        def step():
            for each in both:
                each.apply_gradients([(tf.ones(v.shape), v) for v in variables], **words)

        step()
        return [getattr(v, "path", v.name) for each in both for v in each.variables]

    found = names(lambda optimizer: grace_tf.wrap(optimizer, "none"))
    assert found == names(lambda optimizer: optimizer)
    assert any(each.startswith(f"{words.get('name', 'Mine')}/") for each in found)


def test_nadam_which_counts_its_traces_computes_what_it_does_without_grace_tf():
    found = []
    for make in (
        lambda: keras.optimizers.Nadam(0.01),
        lambda: grace_tf.wrap(keras.optimizers.Nadam(0.01), "none"),
    ):
        made = models.compiled(make)
        models.fit(made, batches=4)
        found.append([np.asarray(v) for v in made.trainable_variables])
    for plain, wrapped in zip(*found):
        np.testing.assert_array_equal(plain, wrapped)
    compared = info_of(made.optimizer).variables
    assert any(each is made.optimizer._u_product for each in compared)


@pytest.mark.skipif(models.KERAS_3, reason="apply_gradients of Keras 3 has no other arguments.")
def test_a_class_that_takes_other_arguments_for_apply_gradients_gets_its_own():
    class Own(keras.optimizers.SGD):
        def apply_gradients(self, grads_and_vars, twice=False):
            rate = 2.0 if twice else 1.0
            return super().apply_gradients([(rate * g, v) for g, v in grads_and_vars])

    variable = tf.Variable([2.0])
    optimizer = grace_tf.wrap(Own(0.1), "none")
    optimizer.apply_gradients([(tf.ones([1]), variable)])
    optimizer.apply_gradients([(tf.ones([1]), variable)], True)
    np.testing.assert_allclose(variable, [1.7])


@pytest.mark.skipif(models.KERAS_3, reason="Optimizers of Keras 3 have no aggregate_gradients.")
def test_gradients_aggregated_in_two_calls_are_applied_in_one():
    optimizer = grace_tf.wrap(keras.optimizers.SGD(0.1, momentum=0.9), "none")
    variables = [tf.Variable([2.0]), tf.Variable([3.0])]

    @tf.function
    def step():
        pairs = [optimizer.aggregate_gradients([(tf.ones([1]), v)]) for v in variables]
        optimizer.apply_gradients(sum(pairs, []), skip_gradients_aggregation=True)

    step()
    np.testing.assert_allclose(variables, [[1.9], [2.9]])


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "ScheduleFreeAdamW"), reason="This Keras has no such optimizer."
)
@pytest.mark.parametrize("built", [True, False])
def test_an_optimizer_that_starts_from_the_weights_finds_them_also_in_a_model_that_fit_builds(
    built,
):
    def make():
        first = [keras.Input([models.model().inputs[0].shape[-1]])] if built else []
        return keras.Sequential([*first, keras.layers.Dense(models.model().outputs[0].shape[-1])])

    optimizer = keras.optimizers.ScheduleFreeAdamW(0.0)
    made = models.compiled(lambda: grace_tf.wrap(optimizer, "none"), make=make)
    models.fit(made, batches=2)
    if built:
        kept = [np.asarray(each) for each in models.slots(made.optimizer)]
        kernel = np.asarray(made.trainable_variables[0])
        assert any(each.shape == kernel.shape and np.allclose(each, kernel, 1e-3) for each in kept)
