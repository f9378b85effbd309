"""A step of Keras that XLA compiles, all but its exchange."""

import numpy as np
import pytest
import tensorflow as tf
from models import KERAS_3, loss_scaled, scale_of
from replicas import mirrored
from tensorflow.python.ops import control_flow_util
from this_keras import keras

import grace_tf
from grace_tf.keras.fit import steps

ROWS = 96


def compiled_now() -> bool:
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


@keras.utils.register_keras_serializable("test_split_steps")
class Seeing(keras.layers.Layer):
    """Lists whether XLA compiles the forward pass."""

    def build(self, shape):
        self.seen = []

    def call(self, x):
        self.seen.append(compiled_now())
        return x


class SeeingSGD(keras.optimizers.SGD):
    """Lists whether XLA compiles the update."""

    seen: list[bool] = []

    def apply_gradients(self, *args, **kwargs):
        self.seen.append(compiled_now())
        return super().apply_gradients(*args, **kwargs)


class OwnStep(keras.Sequential):
    """A model whose `train_step` is not Keras' own."""

    def train_step(self, data):
        return super().train_step(data)


def data():
    draws = np.random.default_rng(1)
    x = draws.integers(0, 30, [ROWS, 6]).astype(np.int32)
    return x, draws.normal(size=[ROWS, 3]).astype(np.float32)


def model_of(optimizer, cls=keras.Sequential, layers=(), **keywords):
    keras.utils.set_random_seed(7)
    model = cls(
        [
            keras.layers.Input([6], dtype="int32"),
            keras.layers.Embedding(30, 4),  # of which the gradient is rows
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(),
            *layers,
            keras.layers.Dense(3),
        ]
    )
    model.compile(optimizer(), "mse", metrics=["mae"], **keywords)
    return model


def fitted(model, times=1.0, **keywords):
    x, y = data()
    history = model.fit(x, y * times, batch_size=16, shuffle=False, verbose=0, **keywords).history
    return [np.array(each) for each in model.get_weights()], history


def wrapped(optimizer=None, method="qsgd"):
    optimizer = keras.optimizers.Adam(0.01) if optimizer is None else optimizer
    return grace_tf.wrap(optimizer, method, min_elements=1)


def check_equal(ours, theirs):
    (weights, history), (other_weights, other) = ours, theirs
    for mine, others in zip(weights, other_weights):
        np.testing.assert_allclose(mine, others, rtol=1e-3, atol=1e-4)
    for name, values in history.items():
        np.testing.assert_allclose(values, other[name], rtol=1e-3, err_msg=name)


def test_xla_compiles_the_forward_pass_and_not_the_exchange():
    seeing, SeeingSGD.seen = Seeing(), []
    model = model_of(lambda: wrapped(SeeingSGD(0.1)), layers=[seeing], jit_compile=True)
    fitted(model, validation_data=data())
    assert model.jit_compile is True
    assert seeing.seen[-2:] == [True, True]  # of fit, and of its validation
    assert SeeingSGD.seen and not any(SeeingSGD.seen)


ADAMS = [keras.optimizers.Adam]
if not KERAS_3:
    ADAMS.append(keras.optimizers.legacy.Adam)


@pytest.mark.parametrize("adam", ADAMS, ids=lambda adam: adam.__module__.split(".")[-2])
def test_a_split_step_trains_as_one_that_is_not_compiled(adam):
    made = (model_of(lambda: wrapped(adam(0.01)), jit_compile=jit) for jit in (True, False))
    check_equal(*map(fitted, made))


def test_auto_reads_its_clock_beside_what_xla_compiles():
    model = model_of(lambda: wrapped(method="auto"), jit_compile=True)
    _, history = fitted(model)
    assert np.isfinite(history["loss"]).all()


def test_what_overflows_in_the_exchange_of_a_split_step_is_skipped():
    def scaled():
        return loss_scaled(wrapped(method="fp16"), initial_scale=2.0**40)

    ours, theirs = (model_of(scaled, jit_compile=jit) for jit in (True, False))
    check_equal(fitted(ours, times=1e7), fitted(theirs, times=1e7))
    assert scale_of(ours.optimizer) == scale_of(theirs.optimizer) == 2.0**40 / 2 ** (ROWS / 16)


def test_a_model_without_trainable_weights_trains_nothing_and_fails_not():
    model = model_of(wrapped)
    model.trainable = False
    model.compile(wrapped(), "mse", jit_compile=True)
    kernels = [np.array(each) for each in model.get_weights()]
    model.fit(*data(), verbose=0)
    for mine, others in zip(model.get_weights(), kernels):
        np.testing.assert_array_equal(mine, others)


def strategy_of(door):
    if door == "wrap":
        return mirrored(2), wrapped
    ops = grace_tf.CompressedAllReduce("qsgd", min_elements=1)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
    return strategy, lambda: keras.optimizers.Adam(0.01)


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 has collectives in each replica's step")
@pytest.mark.parametrize("door", ["wrap", "CompressedAllReduce"])
def test_under_a_strategy_each_replica_is_compiled_by_itself(door):
    found = []
    for jit in (True, False):
        strategy, optimizer = strategy_of(door)
        seeing = Seeing()
        with strategy.scope():
            model = model_of(optimizer, layers=[seeing], jit_compile=jit)
        found.append(fitted(model))
        assert seeing.seen[-1] is jit
        if jit and door == "wrap":
            loss, _ = model.evaluate(*data(), batch_size=16, verbose=0)
            predicted = model.predict(data()[0], batch_size=16, verbose=0)
            np.testing.assert_allclose(np.mean((predicted - data()[1]) ** 2), loss, rtol=1e-3)
    check_equal(*found)


def test_a_step_of_ones_own_is_compiled_whole_in_a_process_alone():
    found = []
    for jit in (True, False):
        SeeingSGD.seen = []
        # With XLA the gradient of the table is dense, without XLA it is rows.  fp16 gives the same
        # result for both, because it rounds each element by itself.
        model = model_of(lambda: wrapped(SeeingSGD(0.1), "fp16"), cls=OwnStep, jit_compile=jit)
        found.append(fitted(model))
        assert set(SeeingSGD.seen) == {jit}
    check_equal(*found)


def test_auto_is_refused_where_xla_compiles_a_whole_step():
    model = model_of(lambda: wrapped(method="auto"), cls=OwnStep, jit_compile=True)
    with pytest.raises(ValueError, match="auto reads a clock in every step, which a step that XLA"):
        fitted(model)


def test_a_step_of_ones_own_is_not_split():
    with mirrored(2).scope():
        model = model_of(wrapped, cls=OwnStep, jit_compile=True)
    with pytest.raises(RuntimeError, match="XLA compiles for one device"):
        model.fit(*data(), batch_size=16, verbose=0)


def test_each_call_of_fit_between_workers_takes_the_same_function(monkeypatch):
    monkeypatch.setattr(steps, "now", lambda: object())  # so that its steps are counted too
    model = model_of(wrapped, jit_compile=True)
    model.make_train_function()
    made = model.train_function
    model.make_train_function()
    assert model.train_function is made


def test_an_apply_gradients_that_the_user_has_set_is_kept():
    model = model_of(wrapped, jit_compile=True)
    calls = []

    def counted(*args, **kwargs):
        calls.append(compiled_now())
        return type(model.optimizer).apply_gradients(model.optimizer, *args, **kwargs)

    object.__setattr__(model.optimizer, "apply_gradients", counted)
    fitted(model)
    assert calls and not any(calls)
    assert model.optimizer.apply_gradients is counted


@pytest.mark.skipif(not KERAS_3, reason="refused for Keras 2 in general")
def test_a_synchronised_normalisation_under_a_strategy_is_refused():
    with mirrored(2).scope():
        layer = keras.layers.BatchNormalization(synchronized=True)
        model = model_of(wrapped, layers=[layer], jit_compile=True)
    with pytest.raises(RuntimeError, match="XLA compiles for one device"):
        fitted(model)
