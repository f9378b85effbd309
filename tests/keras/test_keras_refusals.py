"""What `wrap` refuses, and what happens to a step that is not finite."""

import json
import re
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from models import KERAS_3, compiled, fit, loss_scaled, program, replicas_of, sha
from replicas import mirrored
from this_keras import keras

import grace_tf
from grace_tf.keras import aggregator_of

SGD = keras.optimizers.SGD


def test_refusals():
    optimizer = grace_tf.wrap(SGD(0.1), "qsgd")
    with pytest.raises(ValueError, match=r"GraceSGD is wrapped already; grace_tf.unwrap"):
        grace_tf.wrap(optimizer, "qsgd")
    with pytest.raises(ValueError, match="wrapped already"):
        grace_tf.wrap(loss_scaled(optimizer), "qsgd")
    with pytest.raises(TypeError, match="takes a Keras optimizer, not 'adam'"):
        grace_tf.wrap("adam")
    for error, sentence, arguments in [
        (ValueError, "Unknown compressor 'qsdg'; available: .*qsgd", {"compressor": "qsdg"}),
        (TypeError, "qsgd has no hyperparameter 'ratio'; it has: bits", {"ratio": 0.1}),
        (ValueError, "bits", {"bits": 99}),
        (ValueError, "granularity", {"granularity": "layer"}),
        (ValueError, "exchange is one of auto, gather", {"exchange": "ring"}),
        (ValueError, "Unknown memory 'kept'; available: auto, ", {"memory": "kept"}),
        (ValueError, 'nonexpansive.*memory="none" or rounding="nearest"', {"memory": "residual"}),
        (ValueError, "seed", {"seed": -1}),
        (ValueError, "no regular expression", {"exclude": "("}),
        (TypeError, "ambiguous", {"compressor": {".*": "qsgd"}, "bits": 4}),
    ]:
        plain = SGD(0.1)
        with pytest.raises(error, match=sentence):
            grace_tf.wrap(plain, **arguments)
        assert type(plain) is SGD


def test_a_damaged_config_is_refused():
    config = grace_tf.wrap(SGD(0.1), "qsgd").get_config()
    for damaged in (config["grace"][:-9], "[]", None):
        with pytest.raises(ValueError, match="config of this GraceSGD is damaged: its 'grace' is"):
            type(grace_tf.wrap(SGD(0.1), "qsgd")).from_config({**config, "grace": damaged})


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no gradient_accumulation_steps")
def test_a_sentence_stays_whole_inside_the_conditions_of_keras():
    optimizer = grace_tf.wrap(SGD(0.1, gradient_accumulation_steps=2), "qsgd")
    weights = [keras.Variable(np.zeros(4, np.float32))]
    optimizer.build(weights)

    @tf.function(autograph=False)
    def step():
        optimizer.apply_gradients([(tf.ones([4]), weights[0])])

    refuses = mock.patch.object(aggregator_of(optimizer), "aggregate")
    with refuses as aggregate, pytest.raises(RuntimeError, match=r"^One sentence\.$"):
        aggregate.side_effect = RuntimeError("One sentence.")
        step()


def test_workers_do_not_train_in_a_graph_of_tensorflow_1():
    aggregator = grace_tf.Aggregator("qsgd")
    two_workers = mock.patch(
        "grace_tf.aggregation.step.between_processes", return_value=mock.Mock(size=2)
    )
    with tf.Graph().as_default(), two_workers:
        variable = tf.Variable(tf.zeros([4]))
        with pytest.raises(RuntimeError, match="this is a graph of TensorFlow 1"):
            aggregator([tf.ones([4])], [variable])


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 makes slots in the strategy of the variables")
def test_an_optimizer_made_outside_the_scope_is_refused():
    outside = grace_tf.wrap(keras.optimizers.Adam(), "qsgd")
    sentence = "^This GraceAdam was made outside of the scope in which the variables were made"
    with mirrored(2).scope(), pytest.raises(RuntimeError, match=sentence):
        outside.build([keras.Variable(np.zeros(4, np.float32))])


def test_parameter_servers_are_refused():
    said = json.loads(program("parameter_server.py"))
    assert len(said) == 3
    for sentence in said:
        assert re.match(
            "(?s)ValueError: .*ParameterServerStrategy updates asynchronously", sentence
        ), sentence


def test_both_doors_at_once_are_refused_before_the_first_update():
    ops = grace_tf.CompressedAllReduce("qsgd", min_elements=1)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
    made = compiled(lambda: grace_tf.wrap(SGD(0.1), "none"), strategy)
    before = sha(made)
    with pytest.raises(ValueError, match="use it or grace_tf.wrap, not both"):
        fit(made, 1)
    assert sha(made) == before


def poisoned_at_the_sixth_step(optimizer, strategy, state, expected):
    """Seven steps, a NaN on replica 1 in the sixth: the weights before, after it and at the end.

    `expected` is the number of residuals, all of which the steps fill.
    """
    with strategy.scope():
        variable = tf.Variable(tf.ones([8]))

    @tf.function
    def step(poison):
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            grad = tf.range(8.0) + tf.cast(i, tf.float32)
            grad += tf.where(tf.equal(i, 1), poison, 0.0)
            optimizer.apply_gradients([(grad, variable)])

        strategy.run(replica)

    for _ in range(5):
        step(tf.constant(0.0))
    before, weights = state.arrays(), replicas_of(variable)
    step(tf.constant(np.nan))
    after, poisoned = state.arrays(), replicas_of(variable)
    for name, rows in before.items():
        np.testing.assert_array_equal(after[name], rows, name)
    residuals = [rows for name, rows in after.items() if name.endswith("/memory/residual")]
    assert all(np.any(rows) for rows in residuals) and len(residuals) == expected
    step(tf.constant(0.0))
    return weights, poisoned, replicas_of(variable)


def test_a_nan_on_one_replica_leaves_all_state_alone():
    optimizer = grace_tf.wrap(SGD(0.1), "topk:ratio=0.25", min_elements=1)
    state = aggregator_of(optimizer).state
    _, poisoned, _ = poisoned_at_the_sixth_step(optimizer, mirrored(2), state, 1)
    assert state.step == 6  # of seven
    assert all(np.isnan(row).all() for row in poisoned)  # as without compression


@pytest.mark.parametrize("door", ["wrap", "wrap, none", "CompressedAllReduce"])
def test_loss_scaling_skips_the_step_on_every_replica(door):
    compressor = "none" if door == "wrap, none" else "topk:ratio=0.25"
    strategy = mirrored(2)
    if door == "CompressedAllReduce":
        ops = grace_tf.CompressedAllReduce(compressor, min_elements=1)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
    with strategy.scope():
        optimizer = loss_scaled(SGD(0.1), initial_scale=4.0)
    if door == "CompressedAllReduce":
        state = ops.aggregator.state
    else:
        state = aggregator_of(grace_tf.wrap(optimizer, compressor, min_elements=1)).state
    weights, skipped, later = poisoned_at_the_sixth_step(
        optimizer, strategy, state, int(compressor != "none")
    )
    assert state.step == (0 if compressor == "none" else 6)  # all dense: the line is not taken
    np.testing.assert_array_equal(skipped, weights)
    assert np.isfinite(later).all() and not np.array_equal(later, weights)
    np.testing.assert_array_equal(later[0], later[1])
    scale = optimizer.dynamic_scale.numpy() if KERAS_3 else optimizer.loss_scale.numpy()
    assert scale == 2.0
