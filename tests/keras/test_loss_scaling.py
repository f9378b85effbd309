"""Keras 3's LossScaleOptimizer and what overflows on the way: accumulation, averages, both doors.

What every engine does in such a step is the cell "overflow" of test_cells.py.
"""

import numpy as np
import pytest
import tensorflow as tf
from models import KERAS_3, loss_scaled, replicas_of
from replicas import mirrored
from this_keras import keras

import grace_tf

pytestmark = pytest.mark.skipif(not KERAS_3, reason="Keras 2 looks after the exchange")
SMALL, LARGE = 1.0, 3e5  # as float16 the second is infinite


def scope(door, replicas):
    if replicas == 1:
        return tf.distribute.get_strategy()
    if door == "wrap":
        return mirrored(replicas)
    ops = grace_tf.CompressedAllReduce("fp16", min_elements=1)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)


def trained(gradients, door="wrap", replicas=1, traced=True, **keywords):
    """(values of the variable on all replicas, the optimizer) after steps of these gradients.

    The last replica has the gradient, the others 1.
    """
    strategy = scope(door, replicas)
    with strategy.scope():
        variable = keras.Variable(np.ones([8], np.float32))
        optimizer = keras.optimizers.Adam(0.1, **keywords)
        if door == "wrap":
            grace_tf.wrap(optimizer, "fp16", min_elements=1)
        optimizer = loss_scaled(optimizer, initial_scale=8.0)
        optimizer.build([variable])

    def step(gradient):
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            mine = tf.where(tf.equal(i, replicas - 1), gradient, 1.0)
            optimizer.apply([mine * optimizer.dynamic_scale * tf.ones([8])], [variable])

        strategy.run(replica)

    for gradient in gradients:
        (tf.function(step) if traced else step)(tf.constant(gradient))
    return replicas_of(variable), optimizer


def state_of(optimizer):
    """Everything but the scale and the count of steps since it changed."""
    return [np.stack(replicas_of(v)) for v in optimizer.inner_optimizer.variables]


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("door, replicas", [("wrap", 1), ("wrap", 2), ("CompressedAllReduce", 2)])
def test_the_step_leaves_nothing_but_half_the_scale(door, replicas, traced):
    keywords = {"weight_decay": 0.1, "use_ema": True, "ema_momentum": 0.5}
    rows, optimizer = trained([SMALL, SMALL, LARGE, SMALL], door, replicas, traced, **keywords)
    assert len(rows) == replicas and all(np.array_equal(row, rows[0]) for row in rows)
    assert (optimizer.dynamic_scale.numpy(), optimizer.step_counter.numpy()) == (4.0, 1)
    wanted, other = trained([SMALL] * 3, door, replicas, traced, **keywords)
    np.testing.assert_array_equal(rows, wanted)
    for ours, theirs in zip(state_of(optimizer), state_of(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert int(optimizer.iterations.numpy()) == 3


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_sum_of_batches_that_overflows_is_left_out(replicas):
    steps = [SMALL, SMALL, SMALL, LARGE, SMALL, SMALL]
    rows, optimizer = trained(steps, replicas=replicas, gradient_accumulation_steps=2)
    wanted, _ = trained(steps[:2] + steps[4:], replicas=replicas, gradient_accumulation_steps=2)
    np.testing.assert_array_equal(rows, wanted)
    assert optimizer.dynamic_scale.numpy() == 4.0
    assert int(optimizer.inner_optimizer._iterations.numpy()) == 4


def test_the_scale_does_not_grow_in_a_step_that_is_skipped():
    _, optimizer = trained([SMALL, SMALL])
    optimizer.dynamic_growth_steps = 3
    variable = optimizer.inner_optimizer._trainable_variables[0]
    optimizer.apply([LARGE * optimizer.dynamic_scale * tf.ones([8])], [variable])
    assert (optimizer.dynamic_scale.numpy(), optimizer.step_counter.numpy()) == (4.0, 0)


def test_an_optimizer_that_is_not_wrapped_is_left_to_keras():
    variable = keras.Variable(np.ones([8], np.float32))
    optimizer = loss_scaled(keras.optimizers.SGD(1.0), initial_scale=8.0)
    for gradient in (LARGE, np.inf):
        optimizer.apply([gradient * 8.0 * tf.ones([8])], [variable])
    np.testing.assert_array_equal(variable.numpy(), np.float32([1 - LARGE] * 8))
    assert optimizer.dynamic_scale.numpy() == 4.0


def after(optimizer, variables, gradients):
    """The values of variables after eager steps in which all of them have these gradients."""
    optimizer.build(variables)
    for gradient in gradients:
        scale = getattr(optimizer, "dynamic_scale", 1.0)
        optimizer.apply([gradient * scale * tf.ones(v.shape) for v in variables], variables)
    return [v.numpy() for v in variables]


@pytest.mark.skipif(not hasattr(keras.optimizers, "Muon"), reason="an older Keras 3")
def test_an_optimizers_own_weight_decay_is_applied_once_and_not_in_a_skipped_step():
    def muon():
        optimizer = keras.optimizers.Muon(0.1, weight_decay=0.1, adam_weight_decay=0.3)
        return grace_tf.wrap(optimizer, "fp16", min_elements=1)

    shapes = ([4, 4], [4])  # of which the second is updated as by AdamW
    ours, theirs = ([keras.Variable(np.ones(s, np.float32)) for s in shapes] for _ in range(2))
    scaled = loss_scaled(muon(), initial_scale=8.0)
    for mine, wanted in zip(
        after(scaled, ours, [SMALL, LARGE, SMALL]), after(muon(), theirs, [SMALL] * 2), strict=True
    ):
        np.testing.assert_allclose(mine, wanted, rtol=1e-6)
    assert scaled.dynamic_scale.numpy() == 4.0


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="an older Keras 3")
def test_each_part_of_a_multioptimizer_skips_what_overflows():
    sgd, adam = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1)
    both = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(sgd, {"second": adam}))
    optimizer = loss_scaled(grace_tf.wrap(both, "fp16", min_elements=1), initial_scale=8.0)
    variables = [keras.Variable(np.ones([8], np.float32), name=n) for n in ("first", "second")]
    after(optimizer, variables, [])
    before = [v.numpy() for v in variables]
    first, second = (g * optimizer.dynamic_scale * tf.ones([8]) for g in (SMALL, LARGE))
    optimizer.apply([first, second], variables)
    np.testing.assert_allclose(variables[0].numpy(), before[0] - 0.1)
    np.testing.assert_array_equal(variables[1].numpy(), before[1])
    assert optimizer.dynamic_scale.numpy() == 4.0
