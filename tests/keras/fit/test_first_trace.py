"""The first step of `fit`, which is traced once although Keras makes an optimizer's variables."""

import models
import numpy as np
import pytest
from this_keras import keras

import grace_tf

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
