"""Momentum correction, masking and clipping, against NumPy and against Keras' dense training."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from this_keras import keras

import grace_tf
from grace_tf.cli.bench import step as bench_step
from grace_tf.core.context import Context
from grace_tf.core.registry import get_memory
from grace_tf.line.settings import settings
from grace_tf.ops.backend import native
from grace_tf.testing import Workers, cases

SIZE, STEPS, RATE = 3, 20, 0.05
SHAPES = ((12, 10), (7,))
f32 = np.float32


def gradients(step):
    return [
        [cases.normal(shape, 100 * step + 10 * w + i) for i, shape in enumerate(SHAPES)]
        for w in range(SIZE)
    ]


def mean(xs):
    return sum(xs[1:], xs[0]) * f32(1 / SIZE)


def clipped(x, limit):
    norm = np.sqrt(np.sum(x.astype(np.float64) ** 2))
    return x * f32(limit / norm) if limit and norm > limit else x


class DenseMomentum:
    """Momentum SGD's updates of one variable."""

    def __init__(self, nesterov):
        self.u, self.nesterov = f32(0), nesterov

    def __call__(self, g):
        self.u = f32(0.9) * self.u + g
        return f32(0.9) * self.u + g if self.nesterov else self.u


def trained_by_keras(nesterov, clip):
    """The weights after STEPS steps of one worker with the mean gradients."""
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9, nesterov=nesterov, clipnorm=clip)
    weights = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    for step in range(STEPS):
        means = [mean(column) for column in zip(*gradients(step))]
        optimizer.apply_gradients(list(zip([tf.constant(g) for g in means], weights)))
    return [w.numpy() for w in weights]


@pytest.mark.parametrize("clip", [None, 1.5])
@pytest.mark.parametrize("nesterov", [False, True])
def test_at_ratio_one_it_is_dense_momentum_sgd(nesterov, clip):
    memory = f"dgc:nesterov={nesterov},clip={clip}"
    workers = Workers(SIZE, "dgc:ratio=1.0", memory=memory)
    formulas = [DenseMomentum(nesterov) for _ in SHAPES]
    weights = [np.zeros(shape, f32) for shape in SHAPES]
    for step in range(STEPS):
        mine = gradients(step)
        results = workers(mine)
        for i, formula in enumerate(formulas):
            got = results[0][i].numpy()
            wanted = formula(clipped(mean([w[i] for w in mine]), clip))
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)
            for other in results[1:]:
                np.testing.assert_array_equal(other[i], got)
            weights[i] -= f32(RATE) * got
    for got, wanted in zip(weights, trained_by_keras(nesterov, clip)):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", [None, 4.0])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("spec", ["topk:ratio=1.0", "dgc:ratio=0.9999"])
def test_momenta_of_workers_that_send_all_are_that_of_dense_training(spec, nesterov, clip):
    """Without masking; each worker's own gradient is clipped to N^-1/2 of the threshold."""
    memory = f"dgc:nesterov={nesterov},clip={clip},masking=false"
    workers = Workers(SIZE, spec, memory=memory, min_elements=10)
    k = int(workers.settings.routes[0][1].ratio * 120)
    formulas = [DenseMomentum(nesterov) for _ in SHAPES]
    given, got = np.zeros(SHAPES[0]), np.zeros(SHAPES[0])
    for step in range(STEPS):
        mine = gradients(step)
        results = workers(mine)[0]
        given += formulas[0](mean([clipped(w[0], clip and clip * SIZE**-0.5) for w in mine]))
        got += results[0].numpy()
        dense = formulas[1](clipped(mean([w[1] for w in mine]), clip))
        np.testing.assert_allclose(results[1], dense, rtol=2e-5, atol=1e-6)
    # One element of 120 may still wait.
    waiting = workers.state.arrays()["0/memory/v"].astype(np.float64).mean(0)
    assert np.count_nonzero(waiting) <= SIZE * (120 - k)
    np.testing.assert_allclose(got + waiting, given, rtol=1e-4, atol=1e-4)


def test_what_travels_dense_keeps_its_momentum_alone():
    workers = Workers(SIZE, "dgc:ratio=0.1")
    workers(gradients(0))
    kept = [name for name in workers.state.arrays() if "/memory/" in name]
    assert sorted(kept) == ["0/memory/u", "0/memory/v", "1/memory/u"]


def test_momentum_outlives_a_dense_stage():
    workers = Workers(1, "dgc:ratio=0.1,dense=3")
    u = np.zeros(SHAPES[0], f32)
    for step in range(4):
        (x,) = grads = gradients(step)[0][:1]
        u = f32(0.9) * u + x
        ((got,),) = workers([grads])
        kept = workers.state.arrays()
        if step < 3:
            np.testing.assert_array_equal(got, u)
            np.testing.assert_array_equal(kept["0/memory/u"][0], u)
    assert np.count_nonzero(got) == 12
    np.testing.assert_array_equal(got + kept["0/memory/v"][0], u)
    np.testing.assert_array_equal(kept["0/memory/u"][0], np.where(got == 0, u, 0))


@pytest.mark.skipif(not native.available(), reason=native.why_not())
def test_the_graph_grows_little_with_what_travels_dense():
    def nodes(count):
        grads = [tf.ones([40 + i]) for i in range(count)]
        return count * bench_step.traced("dgc", grads).nodes

    # The gradient and its aggregate; all u share a variable.
    assert nodes(30) - nodes(10) == pytest.approx(2 * 20)


def steps_of(memory, compressor, count):
    """(sent, u, v, the next state) of one worker in each step, by the memory's own functions."""
    memory, compressor = get_memory(memory), grace_tf.get(compressor)
    spec = tf.TensorSpec((60, 50), tf.float32)
    state = memory.init_state(spec)
    for step in range(count):
        ctx = Context((spec,), (0,), step, 0, SIZE, 1)
        x, carry = memory.compensate(tf.constant(cases.normal((60, 50), step)), state, ctx)
        sent = compressor.decompress(compressor.compress(x, ctx), ctx.public())
        _, state = memory.settle(carry, sent, sent, state, ctx)
        yield sent.numpy(), carry[0].numpy(), x.numpy(), {k: v.numpy() for k, v in state.items()}


def test_what_is_sent_takes_its_momentum_with_it():
    for sent, u, v, state in steps_of("dgc", "dgc:ratio=0.02", 5):
        gone = sent != 0
        assert 40 <= gone.sum() <= 60
        assert not state["u"][gone].any() and not state["v"][gone].any()
        np.testing.assert_array_equal(state["u"][~gone], u[~gone])
        np.testing.assert_array_equal(state["v"][~gone], v[~gone])
    # GRACE's masking is always on.
    for sent, u, _, state in steps_of("dgc:masking=false", "dgc:ratio=0.02", 5):
        np.testing.assert_array_equal(state["u"], u)
        assert not state["v"][sent != 0].any()


@pytest.mark.parametrize("nesterov", [False, True])
def test_all_momentum_is_sent_or_waits(nesterov):
    formula = DenseMomentum(nesterov)
    given, arrived = np.zeros((60, 50)), np.zeros((60, 50))
    for step, (sent, _, v, state) in enumerate(
        steps_of(f"dgc:nesterov={nesterov},masking=false", "dgc:ratio=0.02", 50)
    ):
        given += formula(cases.normal((60, 50), step))
        arrived += sent
        np.testing.assert_array_equal(state["v"] + sent, v)
    np.testing.assert_allclose(given, arrived + state["v"], atol=5e-4, rtol=0)


def test_clipping_is_by_norm_and_needs_no_other_worker():
    """GRACE clamps elements at the norm, which no element exceeds (its bug 20), and its form for
    torch.distributed divides None by the number of workers (bug 18)."""
    x = tf.constant(cases.normal((40, 30)))
    ctx = Context((tf.TensorSpec(x.shape, tf.float32),), (0,), 0, 0, 4, 1)
    memory = get_memory("dgc:clip=10")
    state = memory.init_state(ctx.spec)
    small, _ = memory.compensate(x, state, ctx)
    np.testing.assert_allclose(np.linalg.norm(small), 10 * 4**-0.5, rtol=1e-5)
    np.testing.assert_allclose(small / np.linalg.norm(small), x / np.linalg.norm(x), rtol=1e-5)
    as_it_is, _ = memory.compensate(x / 100, state, ctx)
    np.testing.assert_array_equal(as_it_is, x / 100)
    many = Workers(SIZE, "dgc:ratio=0.1", memory="dgc:clip=1.0")
    (total,) = many([[x.numpy()]] * SIZE)[0]
    assert 0 < np.linalg.norm(total) <= SIZE**-0.5


def test_what_is_not_finite_is_not_clipped_away():
    for clip in ("none", "1.0"):
        workers = Workers(2, "dgc:ratio=0.1", memory=f"dgc:clip={clip}")
        grads = [[cases.normal((40, 30), w)] for w in range(2)]
        workers(grads)
        before = workers.state.arrays()
        for bad in (np.nan, np.inf):
            wrong = [[g.copy() for g in mine] for mine in grads]
            wrong[1][0][3, 4] = bad
            assert np.isnan(workers(wrong)[0][0]).all()
        after = workers.state.arrays()
        assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "memory, sentence",
    [
        ("dgc:momentum=1.0", "momentum is from 0 to below 1"),
        ("dgc:momentum=-0.1", "momentum is from 0 to below 1"),
        ("dgc:momentum=0,nesterov=true", "nesterov is a kind of momentum"),
        ("dgc:clip=0", "clip is above 0 or none"),
        ("dgc:masking=7", "masking is one of False, True"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(memory, sentence):
    with pytest.raises(ValueError, match=sentence):
        settings("dgc", memory=memory)


def weights_after_fit(optimizer, steps=12):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(optimizer=optimizer, loss="mse")
    x = cases.normal((8 * steps, 8))
    model.fit(x, x[:, :1] * x[:, 1:2], batch_size=8, epochs=1, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize("nesterov, decay", [*itertools.product((False, True), (None, 0.05))])
def test_a_wrapped_optimizer_trains_as_keras_momentum_does(nesterov, decay):
    """Weight decay included: Keras applies it to the weights, so that it has no momentum."""
    own = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=nesterov, weight_decay=decay)
    wrapped = grace_tf.wrap(
        keras.optimizers.SGD(0.05, weight_decay=decay),
        "dgc:ratio=1.0",
        memory=f"dgc:momentum=0.9,nesterov={nesterov}",
        min_elements=1,
    )
    for got, wanted in zip(weights_after_fit(wrapped), weights_after_fit(own)):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
