"""Signs of a moving average, and the memory that keeps it."""

import numpy as np
import pytest
import tensorflow as tf
from test_fused import CORNERS, assert_same, run
from this_keras import keras

import grace_tf
from grace_tf import ops
from grace_tf.core import registry, rounds
from grace_tf.line.settings import from_config, settings
from grace_tf.memories.momentum import Momentum
from grace_tf.ops.backend import native
from grace_tf.testing import Workers, cases

SHAPE = (40, 31)
needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())


def formula(steps, beta):
    """Algorithm 2 of the paper with the vote of algorithm 3: the votes of each step."""
    beta, rest = np.float32(beta), np.float32(1 - beta)
    averages = [np.zeros(SHAPE, np.float32) for _ in steps[0]]
    for grads in steps:
        averages = [beta * m + rest * g for m, g in zip(averages, grads)]
        yield np.sign(sum(np.where(m >= 0, 1, -1) for m in averages)), averages


def gradients(workers, steps=6):
    return [[cases.normal(SHAPE, 10 * s + w) for w in range(workers)] for s in range(steps)]


@pytest.mark.parametrize("beta", [0.9, 0.5, 0.0])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_is_the_formula(size, beta):
    workers = Workers(size, "signum", momentum=beta)
    steps = gradients(size)
    for grads, (votes, averages) in zip(steps, formula(steps, beta)):
        for mine in workers([[g] for g in grads]):
            np.testing.assert_array_equal(mine[0], votes)
        kept = workers.state.arrays()["0/memory/momentum"]
        np.testing.assert_array_equal(kept, np.stack(averages))


@needs_native
@pytest.mark.parametrize("corner", ["odd", "large"])
def test_the_fused_form_is_its_composition(corner, monkeypatch):
    memory = Momentum(0.75)
    told = {
        (summed, traced): run("signsgd", memory, CORNERS[corner], summed, traced)
        for summed, traced in ((False, False), (True, True))
    }
    monkeypatch.setattr(rounds, "_FUSED", {})
    for (summed, traced), fused in told.items():
        assert_same(fused, run("signsgd", memory, CORNERS[corner], summed, traced))
    with ops.using("reference"):
        assert_same(told[True, True], run("signsgd", memory, CORNERS[corner], True, True))


@needs_native
def test_the_fused_form_sees_what_is_not_finite():
    bad = {0: np.nan, 1: np.inf, 2: -np.inf}
    for step in run("signsgd", Momentum(), CORNERS["odd"], False, False, bad):
        assert all(np.isnan(total).all() for total in step[: 3 * len(CORNERS["odd"])])


class SignumTest(tf.test.TestCase):
    def test_the_vote_is_not_divided_by_the_workers(self):
        # GRACE's TensorFlow code gave ±1/N.
        steps = gradients(3, 1)
        got = Workers(3, "signum")([[g] for g in steps[0]])[0][0]
        self.assertAllEqual(np.unique(got), [-1, 1])

    def test_the_average_begins_at_zero(self):
        # GRACE's Torch code began it with the first gradient, its TensorFlow code with zero.
        workers = Workers(1, "signum", momentum=0.75)
        workers([[np.full([4], 2.0, np.float32)]])
        self.assertAllEqual(workers.state.arrays()["0/memory/momentum"][0], [0.5] * 4)

    def test_bytes(self):
        compressor = grace_tf.get("signum")
        self.assertEqual(compressor.nbytes(tf.TensorSpec([10**6], tf.float32)), 125_000)

    def test_the_name_resolves_to_signsgd_and_the_memory(self):
        compressor, memory = registry.resolve("signum:momentum=0.5")
        self.assertEqual(str(compressor), "signsgd")
        self.assertEqual(registry.get_memory(memory), Momentum(0.5))
        self.assertEqual(settings("signum", momentum=0.5), settings("signum:momentum=0.5"))
        self.assertIn("signum", grace_tf.available())

    def test_wrong_values_are_refused(self):
        for value in (1.0, -0.1, 2):
            with self.assertRaisesRegex(ValueError, r"beta is a number in \[0, 1\), not"):
                grace_tf.get("signum", momentum=value)
        with self.assertRaisesRegex(TypeError, "beta is a finite number"):
            grace_tf.get("signum:momentum=much")
        with self.assertRaisesRegex(TypeError, "no hyperparameter 'beta'; it has: momentum"):
            grace_tf.get("signum:beta=0.5")

    def test_settings_come_back_from_their_configuration(self):
        mapping = {"conv.*": "signum:momentum=0.5", "dense.*": "topk", "other.*": "signsgd"}
        for wanted in (
            settings("signum"),
            settings("signum", momentum=0.5),
            settings({".*kernel": "signum:momentum=0.5"}),
            settings(mapping),
            settings({"a": "topk", "b": "qsgd"}),
        ):
            self.assertEqual(from_config(wanted.config()), wanted)
        # Where "auto" says it all, it is what a configuration says.
        self.assertEqual(settings({"a": "topk", "b": "qsgd"}).config()["memory"], "auto")

    def test_a_mapping_of_memories_has_the_patterns_of_its_compressors(self):
        with self.assertRaisesRegex(ValueError, "memory is a mapping .* patterns of the compress"):
            settings({"a": "topk"}, memory={"b": "none"})
        with self.assertRaisesRegex(ValueError, "memory is a mapping .* patterns of the compress"):
            settings("topk", memory={".*": "none"})

    def test_graces_parameters(self):
        keywords = grace_tf.from_params({"compressor": "signum", "momentum": 0.8})
        self.assertEqual(keywords, {"compressor": "signum", "memory": "auto", "momentum": 0.8})
        self.assertEqual(settings(**keywords).routes[0][2], Momentum(0.8))
        keywords = grace_tf.from_params(
            {"compressor": "efsignsgd", "memory": "efsignsgd", "lr": 0.1}
        )
        self.assertEqual(keywords, {"compressor": "efsignsgd", "memory": "residual"})


def test_a_file_brings_the_averages_back(tmp_path):
    def compiled():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        optimizer = keras.optimizers.SGD(0.01)
        wrapped = grace_tf.wrap(optimizer, "signum", momentum=0.6, min_elements=1)
        model.compile(optimizer=wrapped, loss="mse")
        return model

    x, y = cases.normal((16, 8)), cases.normal((16, 4), 1)
    model = compiled()
    model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
    config = model.optimizer.get_config()
    again = type(model.optimizer).from_config(config)
    assert again.get_config() == config
    path = str(tmp_path / "signum.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    for each in (model, loaded):
        each.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
    for mine, other in zip(model.get_weights(), loaded.get_weights()):
        np.testing.assert_array_equal(mine, other)
