"""Every kind of optimizer that `wrap` takes really reduces; what it does not take it refuses."""

import types

import numpy as np
import pytest
import tensorflow as tf
from models import (
    KERAS_3,
    ROWS,
    compiled,
    data,
    fit,
    loss_scaled,
    replicas_of,
    scale_of,
    sha,
    shas,
    slots,
)
from replicas import mirrored
from this_keras import keras

import grace_tf
from grace_tf.keras import aggregator_of
from grace_tf.keras.files import paths_by_worker

SGD = keras.optimizers.SGD
LOSSLESS = {"compressor": "topk:ratio=1.0", "min_elements": 1}
GRACE_BASE = keras.optimizers.Optimizer


def applied(optimizer, strategy, variable, gradients):
    """The variable on every replica after one step in which replica i has gradients[i]."""

    @tf.function
    def step():
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            mine = tf.gather(tf.constant(gradients, tf.float32), i)
            optimizer.apply_gradients([(mine, variable)])

        strategy.run(replica)

    step()
    return replicas_of(variable)


def assert_reduces(make, rate=1.0):
    """One step with different gradients moves every replica by the sum, computed by hand."""
    strategy = mirrored(2)
    with strategy.scope():
        optimizer, variable = make(), tf.Variable(tf.zeros([4]))
    gradients = [[1.0, 2.0, 3.0, 4.0], [10.0, -2.0, 0.5, 0.0]]
    for row in applied(optimizer, strategy, variable, gradients):
        np.testing.assert_allclose(row, -rate * np.sum(gradients, 0), rtol=1e-6)
    assert aggregator_of(optimizer).state.step == 1
    # One replica more than its own gradient: had the line not run, there would be no residual.
    assert len(aggregator_of(optimizer).state.variables) == 4


def test_an_unbuilt_optimizer():
    assert_reduces(lambda: grace_tf.wrap(SGD(1.0), **LOSSLESS))


def test_a_callable_learning_rate():
    rate = 0.5

    def now():
        return rate

    assert_reduces(lambda: grace_tf.wrap(SGD(now), **LOSSLESS), rate=0.5)


def test_a_loss_scale_optimizer_is_wrapped_inside_and_returned():
    outer = loss_scaled(SGD(1.0), initial_scale=1.0)
    inner = outer.inner_optimizer
    assert grace_tf.wrap(outer, **LOSSLESS) is outer
    assert outer.inner_optimizer is inner and type(inner).__name__ == "GraceSGD"
    assert_reduces(lambda: grace_tf.wrap(loss_scaled(SGD(1.0), initial_scale=1.0), **LOSSLESS))


def test_wrapping_keeps_the_object_and_its_slots():
    made = compiled(lambda: SGD(0.1, momentum=0.9))
    fit(made, 3)
    optimizer, before = made.optimizer, slots(made.optimizer)
    rate = optimizer.learning_rate
    assert grace_tf.wrap(optimizer, "topk:ratio=0.5", min_elements=1) is optimizer
    assert isinstance(optimizer, SGD) and isinstance(optimizer, GRACE_BASE)
    assert optimizer.learning_rate is rate
    assert len(before) > 4
    for ours, theirs in zip(slots(optimizer), before):
        np.testing.assert_array_equal(ours, theirs)
    made.compile(optimizer, "mse")
    fit(made, 2)
    assert optimizer.iterations.numpy() == 5
    assert aggregator_of(optimizer).state.step == 2


def test_unwrap_gives_the_plain_optimizer_back():
    plain, other = compiled(lambda: SGD(0.1)), compiled(lambda: SGD(0.1))
    optimizer = grace_tf.wrap(plain.optimizer, "signsgd", min_elements=1)
    assert grace_tf.unwrap(optimizer) is optimizer
    assert type(optimizer) is SGD and "grace" not in optimizer.get_config()
    fit(plain, 3)
    fit(other, 3)
    assert sha(plain) == sha(other)
    with pytest.raises(ValueError, match="SGD is not wrapped"):
        grace_tf.unwrap(optimizer)
    grace_tf.wrap(optimizer, "signsgd")  # and it may be wrapped again


def test_mixed_precision_wraps_ours():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        strategy = mirrored(2)
        made = compiled(lambda: grace_tf.wrap(SGD(0.1), "qsgd", min_elements=1), strategy)
        assert "LossScaleOptimizer" in type(made.optimizer).__name__
        first = sha(made)
        fit(made, 4)
        assert len(set(shas(made, strategy))) == 1 and sha(made) != first
        assert aggregator_of(made.optimizer).state.step == 4
        assert aggregator_of(made.optimizer).bytes_per_step > 0
    finally:
        keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("method", ["none", "fp16", "eden"])
def test_under_mixed_float16_a_step_in_which_one_replica_overflows_is_skipped_by_both(method):
    def trained(x, y):
        made = compiled(lambda: grace_tf.wrap(SGD(0.1), method, min_elements=1), strategy)
        made.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
        scaler = made.optimizer
        (end,) = set(shas(made, strategy))
        return end, scale_of(scaler), aggregator_of(scaler).state.step

    strategy = mirrored(2)
    x, y = data(4)
    more_x, more_y = (np.insert(each, [2 * ROWS], each[:ROWS], axis=0) for each in (x, y))
    more_y[3 * ROWS - 1] = 6e4  # of the second replica; as float16 its scaled gradient is infinite
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        wanted, scale, steps = trained(x, y)
        found = trained(more_x, more_y)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert found == (wanted, scale / 2, steps)


def test_embeddings_and_variables_without_gradient():
    strategy = mirrored(2)

    def ends(make):
        with strategy.scope():
            table, idle = tf.Variable(tf.ones([6, 2])), tf.Variable(tf.ones([3]))
            optimizer = make()

        @tf.function
        def step():
            def replica():
                i = tf.distribute.get_replica_context().replica_id_in_sync_group
                rows = tf.gather(tf.constant([[0, 1, 1], [1, 5, 0]]), i)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.gather(table, rows) ** 2)
                grads = tape.gradient(loss, [table, idle])
                assert isinstance(grads[0], tf.IndexedSlices) and grads[1] is None
                optimizer.apply_gradients(zip(grads, [table, idle]))

            strategy.run(replica)

        step()
        step()
        return replicas_of(table) + replicas_of(idle)

    plain = ends(lambda: SGD(0.1))
    for compressor in ("none", "topk:ratio=1.0"):
        wrapped = ends(lambda of=compressor: grace_tf.wrap(SGD(0.1), of, min_elements=1))
        for ours, theirs in zip(wrapped, plain):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_two_optimizers_of_equal_variables_keep_apart():
    strategy = mirrored(2)

    def ends(count):
        with strategy.scope():
            variables = [tf.Variable(tf.zeros([8])) for _ in range(count)]
            optimizers = [
                grace_tf.wrap(SGD(1.0), "topk:ratio=0.25", min_elements=1) for _ in variables
            ]

        @tf.function
        def step():
            def replica():
                i = tf.distribute.get_replica_context().replica_id_in_sync_group
                for k, (variable, optimizer) in enumerate(zip(variables, optimizers)):
                    grad = tf.range(8.0) ** (k + 1) + tf.cast(i, tf.float32)
                    optimizer.apply_gradients([(grad, variable)])

            strategy.run(replica)

        for _ in range(3):
            step()
        return [variable.numpy() for variable in variables]

    (alone,), (first, second) = ends(1), ends(2)
    np.testing.assert_array_equal(first, alone)
    assert not np.array_equal(first, second)


def test_every_optimizer_of_keras_has_a_class_that_files_can_name():
    spaces = [keras.optimizers] if KERAS_3 else [keras.optimizers, keras.optimizers.legacy]
    count = 0
    for space in spaces:
        for name in ("SGD", "Adam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl"):
            prefix = "Legacy" if space is not keras.optimizers else ""
            found = keras.utils.get_registered_object(f"grace_tf>Grace{prefix}{name}")
            assert issubclass(found, getattr(space, name))
            count += 1
    assert count == 8 * len(spaces)


def test_a_class_of_the_users_own_does_not_take_the_place_of_keras_own():
    own = type("SGD", (SGD,), {})
    names = [keras.utils.get_registered_name(type(grace_tf.wrap(of(0.1)))) for of in (SGD, own)]
    assert names == ["grace_tf>GraceSGD", f"grace_tf>{own.__module__}.GraceSGD"]


if not KERAS_3:
    legacy = keras.optimizers.legacy

    def test_legacy_optimizers():
        assert_reduces(lambda: grace_tf.wrap(legacy.SGD(1.0), **LOSSLESS))
        assert_reduces(
            lambda: grace_tf.wrap(loss_scaled(legacy.SGD(1.0), initial_scale=1.0), **LOSSLESS)
        )
        optimizer = grace_tf.wrap(legacy.Adam(1.0))
        assert type(optimizer).__name__ == "GraceLegacyAdam" and isinstance(optimizer, legacy.Adam)

    def test_unwrapping_a_legacy_optimizer_leaves_nothing():
        optimizer = grace_tf.unwrap(grace_tf.wrap(legacy.Adam(0.1)))
        assert type(optimizer) is legacy.Adam
        assert "_grace" not in optimizer._trackable_children()

    def test_a_legacy_optimizer_trains_as_unwrapped():
        strategy = mirrored(2)
        plain = compiled(lambda: legacy.Adam(0.1), strategy)
        wrapped = compiled(lambda: grace_tf.wrap(legacy.Adam(0.1), "none"), strategy)
        fit(plain, 5)
        fit(wrapped, 5)
        assert shas(plain, strategy) == shas(wrapped, strategy)

    class ExponentialMovingAverage(legacy.Optimizer):
        """Applies gradients by another optimizer, as that of TF Model Garden does."""

        def __init__(self, optimizer):
            super().__init__("average")
            self._optimizer = optimizer

        @property
        def iterations(self):
            return self._optimizer.iterations

        def apply_gradients(self, grads_and_vars, name=None):
            return self._optimizer.apply_gradients(grads_and_vars, name)

    def test_the_optimizer_inside_model_gardens_average_is_wrapped():
        assert_reduces(lambda: grace_tf.wrap(ExponentialMovingAverage(legacy.SGD(1.0)), **LOSSLESS))
        average = ExponentialMovingAverage(legacy.SGD(1.0))
        assert type(grace_tf.wrap(average)) is ExponentialMovingAverage
        assert type(average._optimizer).__name__ == "GraceLegacySGD"
        assert paths_by_worker.compresses(types.SimpleNamespace(optimizer=average))
        assert type(grace_tf.unwrap(average)._optimizer) is legacy.SGD

    def test_addons():
        tfa = pytest.importorskip("tensorflow_addons")
        assert_reduces(lambda: grace_tf.wrap(tfa.optimizers.SGDW(0.0, 1.0), **LOSSLESS))
        assert_reduces(lambda: grace_tf.wrap(tfa.optimizers.Lookahead(legacy.SGD(1.0)), **LOSSLESS))
        assert_reduces(
            lambda: grace_tf.wrap(tfa.optimizers.MovingAverage(legacy.SGD(1.0)), **LOSSLESS)
        )
        strategy = mirrored(2)
        lamb = compiled(lambda: grace_tf.wrap(tfa.optimizers.LAMB(0.1), "none"), strategy)
        plain = compiled(lambda: tfa.optimizers.LAMB(0.1), strategy)
        fit(lamb, 5)
        fit(plain, 5)
        assert type(lamb.optimizer).__name__ == "GraceTfaLAMB"
        assert shas(lamb, strategy) == shas(plain, strategy)


def ancestors(op):
    """All operations that run before this one."""
    found, waiting = set(), [op]
    while waiting:
        op = waiting.pop()
        before = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - found
        found |= before
        waiting += before
    return found


def test_what_slots_alone_give_is_computed_after_the_aggregates():
    """Else it lies in memory beside gradients and residuals, as many bytes as the gradient."""
    variable = tf.Variable(tf.zeros([64]))
    optimizer = grace_tf.wrap(SGD(0.1, momentum=0.9), "topk", min_elements=1)
    optimizer.build([variable])

    @tf.function
    def step(grad):
        optimizer.apply_gradients([(grad, variable)])

    operations = step.get_concrete_function(tf.TensorSpec([64])).graph.get_operations()
    (decision,) = [op for op in operations if op.type == "If"]
    products = [op for op in operations if op.type == "Mul"]
    assert len(products) >= 2  # momentum · velocity and learning rate · gradient
    assert all(decision in ancestors(op) for op in products)
