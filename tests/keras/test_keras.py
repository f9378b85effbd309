"""The door of Keras: a wrapped optimizer is the user's own, reduces, and compresses."""

import numpy as np
import pytest
import tensorflow as tf
from models import KERAS_3, compiled, data, fit, model, replicas_of, sha, shas
from replicas import mirrored
from this_keras import keras

import grace_tf

SGD = keras.optimizers.SGD
ADAM = keras.optimizers.Adam


def sgd():
    return SGD(0.1, momentum=0.9)


def adam():
    return ADAM(0.01)


_default = []


def strategy_of(name):
    """None, our own of n replicas, or TensorFlow's default, which reduces by collectives."""
    if name == "default":
        if not _default:
            _default.append(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
        return _default[0]
    return None if name == 1 else mirrored(name)


@pytest.mark.rotated
@pytest.mark.parametrize("where", [1, 2, 3, "default"])
@pytest.mark.parametrize("make", [sgd, adam])
def test_none_is_the_unwrapped_optimizer_bit_for_bit(make, where):
    strategy = strategy_of(where)
    plain, wrapped = (
        compiled(make, strategy),
        compiled(lambda: grace_tf.wrap(make(), "none"), strategy),
    )
    before = sha(plain)
    fit(plain)
    fit(wrapped)
    assert shas(wrapped, strategy) == shas(plain, strategy)
    assert sha(plain) != before


@pytest.mark.rotated
@pytest.mark.parametrize("method", grace_tf.available())
def test_replicas_and_runs_end_with_the_same_bits(method):
    strategy = mirrored(2)

    def ends():
        with strategy.scope():
            variables = [tf.Variable(tf.ones([9, 16])), tf.Variable(tf.zeros([40]))]
            optimizer = grace_tf.wrap(adam(), method, min_elements=1, seed=7)

        @tf.function
        def step(number):
            def replica():
                i = tf.distribute.get_replica_context().replica_id_in_sync_group
                noise = [tf.random.stateless_normal(v.shape, [i, number]) for v in variables]
                optimizer.apply_gradients([(0.1 * v + n, v) for v, n in zip(variables, noise)])

            strategy.run(replica)

        for number in range(20):
            step(tf.constant(number))
        rows = [replicas_of(v) for v in variables]
        return [[row[i].tobytes() for row in rows] for i in range(2)]

    first, second = ends(), ends()
    assert first[0] == first[1]
    assert first == second


def test_methods_differ():
    """Or the test above would hold for a door that compresses nothing."""
    ends = set()
    for method in ("none", "qsgd", "signsgd", "topk:ratio=0.1"):
        made = compiled(lambda of=method: grace_tf.wrap(sgd(), of, min_elements=1))
        fit(made, 5)
        ends.add(sha(made))
    assert len(ends) == 4


def everything():
    """One optimizer with all that Keras does around aggregation."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    return SGD(rate, momentum=0.9, clipnorm=0.1, weight_decay=0.01, use_ema=True)


VARIANTS = {
    "fit": (everything, {}),
    "eager": (sgd, {"run_eagerly": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("replicas", [1, 2])
def test_everything_else_stays_keras_own(variant, replicas):
    """`none`, and a lossless detour through the line, train as the plain optimizer."""
    make, keywords = VARIANTS[variant]
    strategy = strategy_of(replicas)

    def ends(optimizer):
        made = compiled(optimizer, strategy, **keywords)
        fit(made, 6)
        assert len(set(shas(made, strategy))) == 1
        return made

    plain = ends(make)
    assert sha(ends(lambda: grace_tf.wrap(make(), "none"))) == sha(plain)
    through = ends(lambda: grace_tf.wrap(make(), "topk:ratio=1.0", min_elements=1))
    for ours, theirs in zip(through.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert through.optimizer.iterations.numpy() == 6
    assert grace_tf.keras.aggregator_of(through.optimizer).state.step == 6


def test_partial_last_batch_shares_plan_and_state():
    strategy = mirrored(2)
    made = compiled(lambda: grace_tf.wrap(sgd(), "topk:ratio=0.1", min_elements=1), strategy)
    x, y = data(3)
    made.fit(x[:-10], y[:-10], batch_size=24, epochs=2, shuffle=False, verbose=0)
    aggregator = grace_tf.keras.aggregator_of(made.optimizer)
    assert len(aggregator._plans) == 1
    assert len(aggregator.state.variables) == 2 * (1 + 1)  # the step, and what the residuals share
    assert aggregator.state.step == 6
    assert len(set(shas(made, strategy))) == 1


def test_residuals_belong_to_their_replica():
    strategy = mirrored(2)
    made = compiled(lambda: grace_tf.wrap(sgd(), "topk:ratio=0.1", min_elements=1), strategy)
    fit(made, 2)
    step, *residuals = grace_tf.keras.aggregator_of(made.optimizer).state.arrays().items()
    for name, rows in (each for each in residuals if not each[0].startswith("grace")):
        assert rows.shape[0] == 2 and not np.array_equal(rows[0], rows[1]), name


def test_threshold_sees_the_workers_own_gradient():
    """`threshold` gets each gradient without Keras' division by the number of replicas."""
    x, y = data(1, 12)
    ends = []
    for replicas in (1, 2, 3):
        made = compiled(
            lambda: grace_tf.wrap(
                SGD(0.1), "threshold:threshold=0.05", memory="none", min_elements=1
            ),
            strategy_of(replicas),
        )
        # Every replica gets the same rows, so each has the gradient of the only worker.
        rows, wanted = np.tile(x, [replicas, 1]), np.tile(y, [replicas, 1])
        made.fit(rows, wanted, 12 * replicas, shuffle=False, verbose=0)
        ends.append(made.get_weights())
    plain = compiled(lambda: SGD(0.1))
    plain.fit(x, y, 12, shuffle=False, verbose=0)
    assert not np.allclose(plain.get_weights()[0], ends[0][0], atol=1e-6)
    for other in ends[1:]:
        for a, b in zip(ends[0], other):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_wrap_draws_from_no_global_generator():
    def drawn(wrapping):
        tf.random.set_seed(3)
        np.random.seed(3)
        optimizer = SGD(0.1)
        if wrapping:
            grace_tf.wrap(optimizer, "powersgd", min_elements=1)
        made = model()
        made.compile(optimizer, "mse")
        fit(made, 1)
        return tf.random.uniform([]).numpy(), np.random.uniform()

    assert drawn(True) == drawn(False)


if KERAS_3:

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_conditions_around_the_update(replicas):
        """Accumulation, and overwriting by averages, which Keras 3 cannot do in replicas."""
        keywords = {"gradient_accumulation_steps": 2, "use_ema": True, "ema_overwrite_frequency": 4}
        x, y = data(9, 12)

        def ends(replicas, method):
            def make():
                # Keras 3 clips what each replica has, which is divided by the number of replicas.
                clip = {"clipvalue": 0.02 / replicas, "weight_decay": 0.01, "ema_momentum": 0.5}
                sgd = SGD(0.1, momentum=0.9, **clip, **keywords)
                return sgd if method is None else grace_tf.wrap(sgd, method, min_elements=1)

            made = compiled(make, strategy_of(replicas))
            # Every replica gets the same rows.
            rows = [np.repeat(a.reshape([9, 1, 12, -1]), replicas, 1) for a in (x, y)]
            rows = [a.reshape([9 * 12 * replicas, -1]) for a in rows]
            made.fit(*rows, 12 * replicas, shuffle=False, verbose=0)
            assert len(set(shas(made, strategy_of(replicas)))) == 1
            if method is not None:
                step = grace_tf.keras.aggregator_of(made.optimizer).state.step
                assert step == (0 if method == "none" else 4)
            return made.get_weights()

        plain = ends(1, None)
        for weights in (ends(replicas, "none"), ends(replicas, "topk:ratio=1.0")):
            for ours, theirs in zip(weights, plain):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        assert not np.allclose(ends(replicas, "topk:ratio=0.1")[0], plain[0], atol=1e-5)
