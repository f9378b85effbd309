"""What workers compare of the models that they have made and compiled."""

import re
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from faulty import faulty, last
from models import KERAS_3
from this_keras import keras

import grace_tf
from grace_tf.cli import launcher
from grace_tf.keras.fit import configuration

LAYERS = keras.layers


class Scale(LAYERS.Layer):
    """A user's layer, made with a number of its own on every worker, and not to be described."""

    def __init__(self, rank):
        super().__init__()
        self.rank, self.inner = rank, LAYERS.Dense(4)

    def call(self, x):
        return self.inner(x)


def own_loss(true, predicted):
    return tf.reduce_mean(tf.abs(true - predicted))


def build(worker=0, extra=False, built=True, **hidden):
    """A model of everything that may differ between workers of the same program."""
    hidden = {"activation": "relu", "kernel_regularizer": keras.regularizers.L2(0.01), **hidden}
    return keras.Sequential(
        [
            *[keras.Input((8,))] * built,
            LAYERS.Dense(8, kernel_initializer=keras.initializers.GlorotUniform(worker), **hidden),
            LAYERS.Dropout(0.5, seed=worker),
            LAYERS.Activation(lambda x: x + 0.0),
            LAYERS.BatchNormalization(),
            Scale(worker),
            *[LAYERS.Dense(4)] * extra,
        ]
    )


def facts(made=None, worker=0, optimizer=None, **compiled):
    compiled = {"loss": keras.losses.Huber(0.5), **compiled}
    made = build(worker) if made is None else made
    sgd = grace_tf.wrap(keras.optimizers.SGD(), "qsgd") if optimizer is None else optimizer
    made.compile(sgd, **compiled)
    return configuration.facts_of(made)


def difference(first, other):
    return configuration._difference(first, other, 1)


class FactsTest(tf.test.TestCase):
    def test_the_same_program_on_two_workers(self):
        for loss in ("mse", own_loss, keras.losses.Huber(0.5), lambda t, p: tf.abs(t - p)):
            LAYERS.Dense(1)  # counts the names on
            first, other = facts(loss=loss), facts(worker=1, loss=loss)
            self.assertEqual(first, other)
            self.assertContainsSubset({"each", "built", "loss", "loss_weights"}, first)

    def test_names_of_outputs_are_free(self):
        def two():
            x = keras.Input((8,))
            model = keras.Model(x, [LAYERS.Dense(2)(x), LAYERS.Dense(2)(x)])
            names = model.output_names
            return facts(model, loss=dict(zip(names, ["mse", "mae"])))

        self.assertEqual(two(), two())

    def test_a_worker_that_has_loaded_the_model(self):
        x = keras.Input((8,))
        hidden = LAYERS.Dense(8, "relu", kernel_regularizer="l2")(x)
        made = keras.Model(x, LAYERS.Bidirectional(LAYERS.LSTM(2))(LAYERS.Reshape((8, 1))(hidden)))
        before = facts(made, loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1))
        path = f"{tempfile.mkdtemp()}/model.keras"
        made.save(path)
        loaded = keras.models.load_model(path)
        self.assertIsNone(difference(before, configuration.facts_of(loaded)))

    def test_each_difference_is_named(self):
        mixed = keras.mixed_precision.LossScaleOptimizer if not KERAS_3 else None
        scaled = (mixed or keras.optimizers.LossScaleOptimizer)(
            grace_tf.wrap(keras.optimizers.SGD(), "qsgd")
        )
        others = {
            "the loss is Huber on worker 0 and mae on worker 1": facts(loss="mae"),
            "the loss of worker 1 is not that of": facts(loss=keras.losses.Huber(2.0)),
            "the loss is Huber on worker 0 and own_loss": facts(loss=own_loss),
            "the loss_weights is None on worker 0 and 2.0": facts(loss_weights=2.0),
            "the steps_per_execution is 1 on worker 0 and 4": facts(steps_per_execution=4),
            "the loss scaling is without on worker 0 and with": facts(optimizer=scaled),
            "layer 1 of the model of worker 1 has other settings": facts(build(activation="tanh")),
            "^layer 1 of the model": facts(build(kernel_regularizer=keras.regularizers.L2(0.1))),
            "the number of layers is 6 on worker 0 and 7": facts(build(extra=True)),
            "the dtype policy is float32 on worker 0 and mixed_bfloat16, float32": facts(
                build(dtype="mixed_bfloat16")
            ),
        }
        first = facts()
        for sentence, other in others.items():
            self.assertRegex(difference(first, other) or "", sentence)

    def test_layers_count_only_where_both_models_are_built_alike(self):
        built, lazy = facts(), facts(build(activation="tanh", built=False))
        self.assertIsNone(difference(built, lazy))
        self.assertRegex(
            difference(facts(build(built=False)), lazy), "layer 1 of the model of worker 1"
        )

    def test_what_cannot_be_had_is_not_compared(self):
        with mock.patch.object(configuration, "_layers_of", side_effect=ValueError("no layers")):
            told = facts()
        self.assertNotIn("each", told)
        self.assertIsNone(difference(facts(), told))
        self.assertIn("loss", difference(facts(), facts(loss="mse")))

    def test_long_lists_and_paths_are_a_workers_own(self):
        own = {"vocabulary": ["a"], "mean": np.zeros(3), "file": "/data/0", "long": [1.0] * 99}
        self.assertEqual(
            configuration.plain(own),
            configuration.plain(
                {"vocabulary": ["b"], "mean": np.ones(3), "file": "/data/1", "long": [2.0] * 9}
            ),
        )


SAID = {
    "policy": r"the dtype policy is float32 on worker 0 and mixed_float16 on worker 1",
    "loss scale": r"the loss scaling is without on worker 0 and with on worker 1",
    "steps": r"the steps_per_execution is 1 on worker 0 and 2 on worker 1",
    "loss": r"the loss is mse on worker 0 and mae on worker 1",
    "layer": r"the number of layers is 1 on worker 0 and 2 on worker 1",
    "again": r"the optimizer is one that has trained on worker 0 and new on worker 1",
}
CASES = [("group", fault) for fault in SAID] + [("strategy", "loss"), ("strategy", "steps")]


@pytest.mark.parametrize("engine, fault", CASES)
def test_what_is_compiled_otherwise_on_one_worker_ends_both_at_once(engine, fault):
    code, printed, said = faulty(engine, fault, program="compiled.py")
    assert code not in (0, launcher.TIMED_OUT), said
    sentence = (
        rf"^(\w+Error: )?Workers cannot train together, {SAID[fault]}: make and compile the same"
    )
    for rank in "01":
        # Under a strategy TensorFlow 2.15 may still write of the other's end after it.
        lines = said[rank] if engine == "strategy" else said[rank][-1:]
        assert any(re.search(sentence, line) for line in lines), said
    assert "trained" not in printed


@pytest.mark.parametrize(
    "engine, fault",
    [("group", "batches"), ("loop", "plan"), ("strategy", "plan"), *[("loop", "scaled")] * KERAS_3],
)
def test_a_first_step_that_only_one_worker_takes_is_found_while_the_others_wait(engine, fault):
    code, printed, said = faulty(engine, fault, program="compiled.py")
    assert code not in (0, launcher.TIMED_OUT), said
    sentence = (
        r"Workers cannot go on: worker 1 of 2 waits in the first step's comparison, but worker 0 "
        r"waits in a step; all workers must make, compile and train the same models"
    )
    for rank in "01":
        assert re.match(sentence, last(said[rank])), said
    assert "trained" not in printed


def test_another_batch_size_is_told_by_its_steps_not_by_the_weights():
    """Worker 1 begins its second epoch within worker 0's first."""
    code, printed, said = faulty("group", "batch size", program="compiled.py")
    assert code not in (0, launcher.TIMED_OUT), said
    for rank in "01":
        sentence = "Workers cannot go on: worker 1 of 2 ended epoch 1 after 3 steps, but worker 0 "
        assert re.match(
            rf"{sentence}(is in step [456]|(has taken|ended it after) [456] steps); all",
            last(said[rank]),
        ), said
    assert "trained" not in printed
