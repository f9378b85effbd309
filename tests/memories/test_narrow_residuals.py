"""Residuals that are stored in fewer bits: what is kept, in expectation and in files."""

import json
import warnings

import numpy as np
import pytest
import tensorflow as tf
from this_keras import keras

import grace_tf
from grace_tf.core.context import Context
from grace_tf.memories.residual import Residual
from grace_tf.testing import Workers, cases

NARROW = ("bf16", "int8")
SHAPES = ((40, 30), (257,), (3,), ())


def specs_of(xs):
    return [tf.TensorSpec(np.shape(x), tf.float32) for x in xs]


def stored(dtype, xs, step=0, worker=0):
    memory = Residual(dtype)
    ctx = Context(tuple(specs_of(xs)), tuple(range(len(xs))), step, 0, 2, worker).stored()
    return memory.store([{"residual": tf.constant(x, tf.float32)} for x in xs], ctx)


def loaded(dtype, xs, *where):
    states = Residual(dtype).load(stored(dtype, xs, *where), specs_of(xs))
    return [state["residual"].numpy() for state in states]


def spacing(dtype, x):
    """How far the two numbers lie apart between which an element is rounded."""
    if dtype == "bf16":
        return np.where(x == 0, 0, 2.0 ** (np.frexp(x)[1] - 8))
    flat = np.abs(x).reshape(-1)
    scales = [flat[i : i + 256].max() for i in range(0, flat.size, 256)]
    return np.repeat(scales, 256)[: flat.size].reshape(x.shape) / 127


@pytest.mark.parametrize("dtype", NARROW)
def test_what_is_kept_is_right_in_expectation_and_within_its_bound(dtype):
    x = cases.normal((600,), 3) * np.float32(10) ** np.linspace(-3, 2, 600, dtype=np.float32)
    draws = np.stack([loaded(dtype, [x], step)[0] for step in range(1000)]).astype(np.float64)
    step = spacing(dtype, x)
    assert np.all(np.abs(draws - x) <= step * (1 + 1e-4))
    assert draws.std(0).max() > 0.3 * step.max()
    # Uniform draws of 16 or 24 bits end at most one of them away from the expectation.
    assert np.all(np.abs(draws.mean(0) - x) <= 4 * step / 2 / 1000**0.5 + 1e-5 * np.abs(x).max())


@pytest.mark.parametrize("dtype", NARROW)
def test_each_worker_step_and_variable_rounds_by_itself(dtype):
    x = cases.normal((2000,), 4)
    (a, b), (c, _), (d, _) = (loaded(dtype, [x, x], *w) for w in ((0, 0), (1, 0), (0, 1)))
    for one, other in ((a, b), (a, c), (a, d)):
        assert 0.2 < np.mean(one != other) < 0.7
    np.testing.assert_array_equal(a, loaded(dtype, [x, x], 0, 0)[0])


@pytest.mark.parametrize("dtype", NARROW)
def test_zeros_stay_zero_and_what_is_huge_stays_finite(dtype):
    huge = np.float32([3.4e38, -3.4e38, 0, 1e-45, 1, -0.0] * 50)
    for kept in loaded(dtype, [np.zeros(300, np.float32)])[0], loaded(dtype, [huge])[0]:
        assert np.isfinite(kept).all()
    assert not loaded(dtype, [np.zeros(300, np.float32)])[0].any()
    np.testing.assert_allclose(loaded(dtype, [huge])[0][:2], huge[:2], rtol=2**-7)


@pytest.mark.parametrize("dtype, share", [("bf16", 0.5), ("int8", 0.25 + 1 / 64 / 4 + 0.001)])
def test_bytes_at_rest(dtype, share):
    workers = Workers(2, "topk", memory=f"residual:dtype={dtype}")
    workers([[cases.normal((300, 400), w)] for w in range(2)])
    (leaf,) = [leaf for name, leaf in workers.state._leaves.items() if "residual" in name]
    for variable in leaf.variables:
        nbytes = variable.shape.num_elements() * variable.dtype.size
        assert nbytes <= share * 4 * 300 * 400


def residuals(workers, dtype, shapes=SHAPES):
    """What the residuals in a state stand for, `[lane][worker]`."""
    rows = [workers.state.arrays()[f"{i}/memory/residual"] for i in range(len(shapes))]
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    load = Residual(dtype).load
    return [
        np.stack([load([{"residual": tf.constant(r)}], [s])[0]["residual"].numpy() for r in rows_])
        for rows_, s in zip(rows, specs)
    ]


@pytest.mark.parametrize("granularity", ["variable", "model"])
@pytest.mark.parametrize("dtype", NARROW)
def test_gradients_arrive_in_expectation(dtype, granularity):
    """Over 50 steps: given = arrived + kept, up to rounding errors without bias."""
    workers = Workers(
        2, "topk:ratio=0.1", memory=f"residual:dtype={dtype}", granularity=granularity
    )
    given, arrived, variance = ([np.zeros(shape) for shape in SHAPES] for _ in range(3))
    for step in range(50):
        grads = [
            [cases.normal(shape, 100 * step + 10 * w + i) for i, shape in enumerate(SHAPES)]
            for w in range(2)
        ]
        results = workers(grads)[0]
        kept = residuals(workers, dtype)
        for i, total in enumerate(results):
            given[i] += grads[0][i].astype(np.float64) + grads[1][i]
            arrived[i] += 2 * total.numpy()
            variance[i] += sum((1.01 * spacing(dtype, k)) ** 2 / 4 for k in kept[i])
    assert np.abs(kept[0]).max() > 0.1
    for g, a, k, v in zip(given, arrived, kept, variance):
        errors = g - a - k.sum(0)
        assert np.all(np.abs(errors) <= 5 * v**0.5 + 1e-4)
    errors, bound = given[0] - arrived[0] - kept[0].sum(0), variance[0].mean() ** 0.5
    assert 0.1 * bound < np.std(errors) < bound
    assert abs(np.mean(errors)) <= 4 * bound / errors.size**0.5


@pytest.mark.parametrize("dtype", NARROW)
def test_a_residual_of_one_dtype_loads_into_another(dtype):
    grads = [[cases.normal(shape, 10 * w + i) for i, shape in enumerate(SHAPES)] for w in range(2)]
    plain = Workers(2, "topk:ratio=0.1", memory="residual")
    plain(grads)
    narrow = Workers(2, "topk:ratio=0.1", memory=f"residual:dtype={dtype}")
    narrow.state.restore(plain.state.arrays())
    narrow.prepare([tf.constant(g) for g in grads[0]])
    wide = residuals(plain, "float32")
    for a, b in zip(residuals(narrow, dtype), wide):
        limit = np.stack([spacing(dtype, row) for row in b])
        assert np.all(np.abs(a - b) <= limit * (1 + 1e-4))
    back = Workers(2, "topk:ratio=0.1", memory="residual")
    back.state.restore(narrow.state.arrays())
    back.prepare([tf.constant(g) for g in grads[0]])
    for a, b in zip(residuals(narrow, dtype), residuals(back, "float32")):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("through", ["arrays", "checkpoint"])
@pytest.mark.parametrize("dtype", NARROW)
def test_state_comes_back_and_another_number_of_workers_keeps_the_mean(dtype, through, tmp_path):
    grads = [[cases.normal(shape, 10 * w + i) for i, shape in enumerate(SHAPES)] for w in range(2)]
    old = Workers(2, "topk:ratio=0.1", memory=f"residual:dtype={dtype}")
    old(grads)
    for size in (2, 3):
        new = Workers(size, "topk:ratio=0.1", memory=f"residual:dtype={dtype}")
        if through == "arrays":
            new.state.restore(old.state.arrays())
        else:
            path = tf.train.Checkpoint(state=old.state).save(str(tmp_path / "c"))
            tf.train.Checkpoint(state=new.state).restore(path)
        new.prepare([tf.constant(g) for g in grads[0]])
        for a, b in zip(residuals(new, dtype), residuals(old, dtype)):
            if size == 2:
                np.testing.assert_array_equal(a, b)
            else:
                limit = spacing(dtype, b.mean(0)) * (1 + 1e-4)
                assert np.all(np.abs(a - b.mean(0)) <= limit)


def test_a_narrow_state_of_another_model_is_refused():
    old = Workers(1, "topk:ratio=0.1", memory="residual:dtype=int8")
    old([[cases.normal((40, 30), 0)]])
    new = Workers(1, "topk:ratio=0.1", memory="residual:dtype=int8")
    new.state.restore(old.state.arrays())
    with pytest.raises(ValueError, match="it is of another model"):
        new.prepare([tf.zeros([50, 30])])


@pytest.mark.parametrize("dtype", NARROW)
def test_in_keras_files(dtype, tmp_path):
    def made():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, name="d")])
        optimizer = grace_tf.wrap(
            keras.optimizers.SGD(0.1),
            "topk:ratio=0.2",
            memory=f"residual:dtype={dtype}",
            min_elements=1,
        )
        model.compile(optimizer, "mse")
        return model

    def fitted(model):
        x, y = cases.normal((16, 6), 1), cases.normal((16, 5), 2)
        model.fit(x, y, batch_size=16, epochs=2, verbose=0)
        return [w.tolist() for w in model.get_weights()]

    def memory_of(model):
        return json.loads(model.optimizer.get_config()["grace"])["memory"]

    model = made()
    assert memory_of(model) == f"residual:dtype={dtype}"
    fitted(model)
    model.save(tmp_path / "m.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        again = keras.models.load_model(tmp_path / "m.keras")
        wanted = fitted(model)
        assert fitted(again) == wanted
    assert memory_of(again) == f"residual:dtype={dtype}"


def test_through_a_mirrored_strategy(two_replicas):
    strategy = two_replicas
    grads = [cases.normal((40, 30), w) for w in range(2)]
    with strategy.scope():
        variable = tf.Variable(tf.zeros([40, 30]))
        aggregate = grace_tf.Aggregator(
            "topk:ratio=0.1", [variable], memory="residual:dtype=bf16", reduce="mean"
        )

    @tf.function
    def step():
        def replica():
            w = tf.distribute.get_replica_context().replica_id_in_sync_group
            return aggregate([tf.gather(tf.stack(grads), w)], [variable])[0]

        return strategy.experimental_local_results(strategy.run(replica))

    alone = Workers(2, "topk:ratio=0.1", memory="residual:dtype=bf16")
    for _ in range(3):
        wanted = alone([[g] for g in grads])
        for (a,), b in zip(wanted, step()):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", NARROW)
def test_compiled_by_xla(dtype):
    """One worker alone, whose step XLA compiles, keeps what the step outside of it keeps."""
    variable = tf.Variable(tf.zeros([40, 30]), name="v")
    kept = []
    for compiled in (False, True):
        aggregate = grace_tf.Aggregator(
            "topk:ratio=0.1", [variable], memory=f"residual:dtype={dtype}"
        )
        step = tf.function(
            lambda g, to=aggregate: to([g], [variable]), jit_compile=compiled, autograph=False
        )
        for seed in range(2):
            step(tf.constant(cases.normal((40, 30), seed)))
        kept.append(aggregate.state.arrays()["v/memory/residual"])
    assert kept[0].any()
    np.testing.assert_array_equal(*kept)
