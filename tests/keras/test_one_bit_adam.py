"""Adam whose momentum travels as signs: the formula, when the warm-up ends, files."""

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf
from models import KERAS_3, ROWS, compiled, data, replicas_of
from replicas import mirrored
from this_keras import keras

import grace_tf
from grace_tf.keras import OneBitAdam, aggregator_of
from grace_tf.testing import cases

RATE, BETA_1, BETA_2, EPSILON, DECAY = 0.1, 0.9, 0.99, 1e-7, 0.01
SHAPE = (5, 8)


def gradients(steps, workers=1):
    """[step][worker], each of its own scale by element; one element never has any."""
    scales = np.geomspace(0.1, 10, 40).reshape(SHAPE).astype(np.float32)
    scales[2, 3] = 0
    return [
        [cases.normal(SHAPE, 10 * step + w) * scales for w in range(workers)]
        for step in range(steps)
    ]


def made(**keywords):
    return OneBitAdam(RATE, BETA_1, BETA_2, EPSILON, min_elements=1, **keywords)


def transcribed(p, grads, whole, updates, decay=0.0):
    """The weights after each step, by the formula; `whole[t]`, `updates[t]`: what step t does."""
    m, v = np.zeros(SHAPE), np.zeros(SHAPE)
    errors = np.zeros((len(grads[0]), *SHAPE))
    for t, each in enumerate(grads):
        each = np.array(each, np.float64)
        if whole[t]:
            m = BETA_1 * m + (1 - BETA_1) * each.mean(0)
            v = BETA_2 * v + (1 - BETA_2) * each.mean(0) ** 2
        else:
            x = BETA_1 * m + (1 - BETA_1) * each + errors
            sent = np.abs(x).mean((1, 2), keepdims=True) * np.where(x < 0, -1, 1)
            errors, m = x - sent, np.where((v > 0) & (m != 0), sent.mean(0), 0)
        rate = np.sqrt(1 - BETA_2 ** updates[t]) / (1 - BETA_1 ** (t + 1))
        p = p - RATE * (rate * m / (np.sqrt(v) + EPSILON) + decay * p)
        yield p


def frozen(steps, warm_up):
    return [t < warm_up for t in range(steps)], [min(t + 1, warm_up) for t in range(steps)]


def test_in_the_warm_up_it_is_adam():
    ours, adam = tf.Variable(tf.ones(SHAPE)), tf.Variable(tf.ones(SHAPE))
    optimizer = made(freeze_step=9)
    other = keras.optimizers.Adam(RATE, BETA_1, BETA_2, EPSILON)
    for (grad,) in gradients(6):
        optimizer.apply_gradients([(tf.constant(grad), ours)])
        other.apply_gradients([(tf.constant(grad), adam)])
        np.testing.assert_allclose(ours, adam, rtol=1e-5)


@pytest.mark.parametrize("decay", [None, DECAY])
def test_after_it_signs_with_a_residual_are_the_momentum(decay):
    variable, optimizer = tf.Variable(tf.ones(SHAPE)), made(freeze_step=3, weight_decay=decay)
    grads = gradients(8)
    wanted = transcribed(np.ones(SHAPE), grads, *frozen(8, 3), decay or 0.0)
    for (grad,), p in zip(grads, wanted):
        optimizer.apply_gradients([(tf.constant(grad), variable)])
        np.testing.assert_allclose(variable, p, rtol=2e-4)


def test_what_never_had_a_gradient_is_not_moved_by_signs():
    variable, optimizer = tf.Variable(tf.ones(SHAPE)), made(freeze_step=3)
    for (grad,) in gradients(8):
        optimizer.apply_gradients([(tf.constant(grad), variable)])
        assert variable.numpy()[2, 3] == 1  # its square root of the variance is 0
    assert (np.delete(variable.numpy().ravel(), 2 * 8 + 3) != 1).all()


def test_the_momenta_of_two_replicas_are_averaged():
    strategy, grads = mirrored(2), gradients(7, workers=2)
    with strategy.scope():
        optimizer, variable = made(freeze_step=3), tf.Variable(tf.ones(SHAPE))
        optimizer.build([variable])

    @tf.function
    def step(both):
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply_gradients([(tf.gather(both, i) / 2, variable)])

        strategy.run(replica)

    for both, p in zip(grads, transcribed(np.ones(SHAPE), grads, *frozen(7, 3))):
        step(tf.constant(np.stack(both)))
        first, second = replicas_of(variable)
        np.testing.assert_allclose(first, p, rtol=2e-4)
        np.testing.assert_array_equal(first, second)


def test_in_two_hops_each_owner_keeps_the_error_of_its_part_of_the_sum():
    """Its next momentum counts it in; parts are of whole blocks of the signs, a block each here."""
    size, block, warm_up = 3, 4096, 2
    grads = [
        [cases.normal((size * block,), 10 * step + w) for w in range(size)] for step in range(6)
    ]
    strategy = mirrored(size)
    with strategy.scope():
        optimizer = made(freeze_step=warm_up, exchange="two_hop")
        variable = tf.Variable(tf.ones([size * block]))
        optimizer.build([variable])

    @tf.function
    def step(each):
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply_gradients([(tf.gather(each, i) / size, variable)])

        strategy.run(replica)

    def signs(x):
        blocks = x.reshape(-1, block)
        means = np.abs(blocks).mean(1, keepdims=True)
        return (means * np.where(blocks < 0, -1, 1)).ravel()

    m, errors = np.zeros(size * block), np.zeros((size, size, block))  # by worker, by part
    for t, each in enumerate(np.array(grads, np.float64)):
        step(tf.constant(each, tf.float32))
        if t < warm_up:
            m = BETA_1 * m + (1 - BETA_1) * each.mean(0)
        else:
            x = BETA_1 * m + (1 - BETA_1) * each + errors.reshape(size, -1)
            sent = np.array([signs(mine) for mine in x])
            total = sent.sum(0)
            m = signs(total) / size
            errors = (x - sent).reshape(size, size, block)
            for owner, lost in enumerate((total - size * m).reshape(size, block)):
                errors[owner, owner] += lost
        for found in replicas_of(optimizer._momentums[0]):
            np.testing.assert_allclose(found, m, rtol=1e-3, atol=1e-6)


def test_small_variables_send_their_momentum_whole():
    variable = tf.Variable(tf.ones(SHAPE))
    optimizer = OneBitAdam(RATE, BETA_1, BETA_2, EPSILON, freeze_step=2)  # below min_elements
    m, v = np.zeros(SHAPE), np.zeros(SHAPE)
    for t, (grad,) in enumerate(gradients(6)):
        optimizer.apply_gradients([(tf.constant(grad), variable)])
        m = BETA_1 * m + (1 - BETA_1) * grad
        v = BETA_2 * v + (1 - BETA_2) * grad**2 if t < 2 else v
        np.testing.assert_allclose(optimizer._momentums[0], m, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(optimizer._variances[0], v, rtol=1e-4)


def test_the_warm_up_ends_where_the_norm_of_the_variance_has_settled():
    def frozen_after(factor):
        variable = tf.Variable(tf.ones(SHAPE))
        optimizer = OneBitAdam(RATE, beta_2=0.8, min_elements=1)  # looks every five steps
        step = tf.function(lambda g: optimizer.apply_gradients([(g, variable)]))
        for t in range(16):
            step(tf.fill(SHAPE, tf.constant(factor) ** t))
        return int(tf.convert_to_tensor(optimizer._frozen_at)[0])

    # The looks are after 5, 10 and 15 steps; the step that looks is the last of the warm-up.
    assert frozen_after(1.0) == 11
    assert frozen_after(1.1) == 11
    assert frozen_after(0.9) == 0


def test_intervals_double_every_so_many_whole_gradients():
    optimizer = made(intervals=2)
    optimizer.build([tf.Variable(tf.ones(SHAPE))])
    whole, count = [0, 1, 2, 4, 6, 10, 14, 22, 30], 0
    for t in range(31):
        optimizer.iterations.assign(t)
        assert bool(optimizer._whole()) == (t in whole), t
        count += t in whole
        assert int(optimizer._updates()) == count, t


def test_with_intervals_the_variance_takes_in_whole_gradients_only():
    variable, optimizer = tf.Variable(tf.ones(SHAPE)), made(intervals=2)
    grads, whole = gradients(9), [t in (0, 1, 2, 4, 6) for t in range(9)]
    wanted = transcribed(np.ones(SHAPE), grads, whole, np.cumsum(whole))
    for (grad,), p in zip(grads, wanted):
        optimizer.apply_gradients([(tf.constant(grad), variable)])
        np.testing.assert_allclose(variable, p, rtol=2e-4)


def test_it_sends_a_bit_an_element_after_the_warm_up():
    variable, optimizer = tf.Variable(tf.ones([64, 64])), made(freeze_step=2)
    sent = []
    for step in range(3):
        optimizer.apply_gradients([(tf.constant(cases.normal((64, 64), step)), variable)])
        sent.append(aggregator_of(optimizer).bytes_per_step)
    flag = 4
    assert sent == [4 * 4096 + flag, 4 * 4096 + flag, 4096 // 8 + 4 + flag]


def test_rows_of_an_embedding_have_a_momentum_of_every_row():
    variable, optimizer = tf.Variable(tf.ones(SHAPE)), made(freeze_step=1)
    dense, other = tf.Variable(tf.ones(SHAPE)), made(freeze_step=1)
    for step in range(4):
        rows = tf.IndexedSlices(cases.normal((2, 8), step), [1, 3], SHAPE)
        optimizer.apply_gradients([(rows, variable)])
        other.apply_gradients([(tf.convert_to_tensor(rows), dense)])
    np.testing.assert_array_equal(variable, dense)


@pytest.mark.parametrize("after", [2, 6], ids=["in the warm-up", "after it"])
def test_a_saved_model_goes_on_bit_for_bit(after, tmp_path):
    def model():
        return compiled(lambda: OneBitAdam(0.01, freeze_step=4, min_elements=1))

    def train(made, rows):
        made.fit(x[rows], y[rows], batch_size=ROWS, shuffle=False, verbose=0)

    (x, y), half = data(after + 3), after * ROWS
    whole, first = model(), model()
    train(whole, slice(None))
    train(first, slice(half))
    first.save(tmp_path / "model.keras")
    resumed = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(resumed.optimizer, OneBitAdam)
    train(resumed, slice(half, None))
    for ours, theirs in zip(resumed.get_weights(), whole.get_weights()):
        np.testing.assert_array_equal(ours, theirs)


def test_its_copies_are_configured_alike():
    rate = keras.optimizers.schedules.CosineDecay(0.1, 100)
    optimizer = OneBitAdam(rate, 0.8, 0.95, 1e-5, 0.1, intervals=3, exclude="b.*", seed=4)
    config = optimizer.get_config()
    for other in (
        OneBitAdam.from_config(config),
        pickle.loads(pickle.dumps(optimizer)),
        copy.deepcopy(optimizer),
        keras.optimizers.deserialize(keras.optimizers.serialize(optimizer)),
    ):
        assert type(other) is type(optimizer) and other.get_config() == config
        assert aggregator_of(other).settings == aggregator_of(optimizer).settings
        assert aggregator_of(other)._stages.clock is not None


def test_what_it_cannot_do_is_refused():
    for wrong, words in (
        ({"freeze_step": 0}, "freeze_step is at least 1, not 0"),
        ({"intervals": 0}, "intervals is at least 1, not 0"),
        ({"freeze_step": 3, "intervals": 4}, "freeze_step or intervals"),
        ({"beta_2": 1.0}, "beta_2 is at least 0 and less than 1"),
    ):
        with pytest.raises(ValueError, match=words):
            OneBitAdam(**wrong)
    with pytest.raises(TypeError, match="the memory and the granularity are the method's own"):
        OneBitAdam(memory="none")
    with pytest.raises(ValueError, match="is wrapped already"):
        grace_tf.wrap(OneBitAdam(), "qsgd")
    with pytest.raises(ValueError, match="OneBitAdam compresses by itself"):
        grace_tf.unwrap(OneBitAdam())
    assert KERAS_3 or not isinstance(OneBitAdam(), keras.optimizers.legacy.Optimizer)
