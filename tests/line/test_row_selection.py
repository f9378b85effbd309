"""Sparse gradients under a method that selects: the rows of largest norm go, the others wait."""

import numpy as np
import pytest
import tensorflow as tf
from models import KERAS_3, embedding, embedding_loop, shas
from replicas import mirrored

import grace_tf
from grace_tf.keras import aggregator_of
from grace_tf.line.row_selection import largest
from grace_tf.transports.loopback import Loopback

SHAPE = (60, 6)
# A chunk of chunktopk must be shorter than the table for it to be wanted.
SPECS = ["topk:ratio=0.1,row_ratio=0.3", "chunktopk:chunk=8,row_ratio=0.3"]


def rows_of(count, seed, shape=SHAPE):
    """Rows of small whole numbers, many of them twice: sums and norms are exact."""
    draw = np.random.default_rng([seed, count])
    values = draw.integers(-4, 5, (count, *shape[1:])).astype(np.float32)
    indices = tf.constant(draw.integers(0, shape[0], count))
    return tf.IndexedSlices(tf.constant(values), indices, tf.constant(shape, tf.int64))


def selected(dense, touched, ratio):
    """NumPy's selection: the dense table of what is sent."""
    touched = np.unique(touched)
    norms = (dense[touched].reshape(len(touched), -1).astype(np.float64) ** 2).sum(1)
    order = np.lexsort((touched, -norms))[: max(1, int(ratio * len(touched)))]
    sent = np.zeros_like(dense)
    sent[touched[order]] = dense[touched[order]]
    return sent


def stepper(aggregate, workers, variables, traced):
    def step(grads):
        devices = [None] * workers
        return aggregate.aggregate_replicas(Loopback(workers), grads, variables, devices)

    return tf.function(step, autograph=False, reduce_retracing=True) if traced else step


def residual_of(aggregate, name="table"):
    return aggregate.state.arrays()[f"{name}/memory/residual"]


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "eager"])
@pytest.mark.parametrize("spec", SPECS)
def test_each_worker_sends_its_largest_rows_and_keeps_the_others(spec, traced):
    table = tf.Variable(tf.zeros(SHAPE), name="table")
    aggregate = grace_tf.Aggregator(spec, min_elements=1)
    step, residuals = stepper(aggregate, 2, [table], traced), np.zeros([2, *SHAPE], np.float32)
    # The second step touches no row on worker 1, the third a single one, the fourth none at all.
    for number, counts in enumerate([(30, 50), (40, 0), (1, 20), (0, 0), (25, 25)]):
        workers = [[rows_of(count, 2 * number + w)] for w, count in enumerate(counts)]
        replicas = step(workers)
        wanted, touched = np.zeros(SHAPE, np.float32), set()
        for w, (grad,) in enumerate(workers):
            compensated = 2 * tf.convert_to_tensor(grad).numpy() + residuals[w]
            # The residual of rows that the step does not touch stays where it is.
            sent = selected(compensated, grad.indices.numpy(), 0.3) if counts[w] else 0
            residuals[w] = compensated - sent
            wanted += sent / np.float32(2) if counts[w] else 0
            touched |= {*np.flatnonzero(np.any(sent, 1))} if counts[w] else set()
        for (total,) in replicas:
            assert isinstance(total, tf.IndexedSlices)
            np.testing.assert_array_equal(tf.convert_to_tensor(total), wanted)
            assert touched <= {*total.indices.numpy()}
            assert len(total.indices) == len({*total.indices.numpy()})
        np.testing.assert_array_equal(residual_of(aggregate), residuals)
    assert residuals.any(axis=(1, 2)).all() and aggregate.state.step == 5


def test_of_rows_with_equal_norms_the_lowest_number_goes_first():
    numbers = tf.constant([40, 7, 23, 3, 11], tf.int64)
    values = tf.constant([[2.0, 0.0], [0.0, -2.0], [3.0, 0.0], [2.0, 0.0], [1.0, 1.0]])
    for ratio, wanted in [(0.2, [23]), (0.4, [23, 3]), (0.6, [23, 3, 7]), (0.01, [23])]:
        chosen = largest(tf.IndexedSlices(values, numbers), ratio)
        assert tf.gather(numbers, chosen).numpy().tolist() == wanted
    none = largest(tf.IndexedSlices(values[:0], numbers[:0]), 0.5)
    assert (none.shape, none.dtype) == ((0,), tf.int32)
    assert largest(tf.IndexedSlices(values[:1], numbers[:1]), 0.01).numpy().tolist() == [0]


def test_what_refines_the_values_of_a_selection_compresses_whole_rows():
    table = tf.Variable(tf.zeros([2000, 16]), name="table")
    ends = {}
    for stage in ("", "|values=qsgd:bits=4", "|values=efsignsgd"):
        aggregate = grace_tf.Aggregator(f"topk:row_ratio=0.5{stage}", memory="residual")
        given, got = np.zeros([2000, 16]), np.zeros([2000, 16])
        for seed in range(3):
            grad = rows_of(900, seed, (2000, 16))
            given += tf.convert_to_tensor(grad).numpy()
            (total,) = aggregate([grad], [table])
            touched = len({*grad.indices.numpy()})
            assert len(total.indices) == touched // 2
            got += tf.convert_to_tensor(total).numpy()
        np.testing.assert_allclose(got + residual_of(aggregate)[0], given, atol=1e-4)
        ends[stage] = total.values.numpy()
    exact, quantised, signs = ends.values()
    assert len(np.unique(np.abs(exact))) <= 24 < len(np.unique(np.abs(quantised)))
    # A row of one sign and magnitude an element, in chunks of 32 rows and of one.
    assert (np.ptp(np.abs(signs), 1) == 0).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_leaves_the_residual_alone_on_all_workers(value):
    table = tf.Variable(tf.zeros(SHAPE), name="table")
    aggregate = grace_tf.Aggregator(SPECS[0], min_elements=1)
    step = stepper(aggregate, 2, [table], True)
    step([[rows_of(30, 1)], [rows_of(30, 2)]])
    before = residual_of(aggregate)
    bad = rows_of(30, 3)
    bad = tf.IndexedSlices(
        tf.tensor_scatter_nd_update(bad.values, [[17, 2]], [value]), bad.indices, bad.dense_shape
    )
    for (total,) in step([[rows_of(30, 4)], [bad]]):
        assert np.isnan(total.values).all() and len(total.indices)
    np.testing.assert_array_equal(residual_of(aggregate), before)
    assert before.any() and aggregate.state.step == 1


def test_dense_gradients_and_rows_of_several_tables_mix_in_a_list():
    shapes = [(12, 10), SHAPE, (40, 3, 2)]
    kernel, *tables = [tf.Variable(tf.zeros(s), name=f"v{i}") for i, s in enumerate(shapes)]
    workers = [
        [tf.constant(np.random.default_rng(w).integers(-9, 9, shapes[0]), tf.float32)]
        + [rows_of(30 + 9 * i + w, w, shape) for i, shape in enumerate(shapes[1:])]
        for w in range(2)
    ]

    def aggregates(some):
        aggregate = grace_tf.Aggregator("topk:ratio=0.25,row_ratio=0.5", min_elements=1)
        variables = [[kernel, *tables][i] for i in some]
        step = stepper(aggregate, 2, variables, True)
        for _ in range(2):
            replicas = step([[mine[i] for i in some] for mine in workers])
        arrays = [residual_of(aggregate, f"v{i}") for i in some]
        return [tf.convert_to_tensor(total) for total in replicas[0]], arrays

    together, residuals = aggregates([0, 1, 2])
    for i in range(3):
        (alone,), (residual,) = aggregates([i])
        np.testing.assert_array_equal(together[i], alone)
        np.testing.assert_array_equal(residuals[i], residual)
        assert residual.any()


def test_rows_that_wait_come_back_from_a_checkpoint(tmp_path):
    def made():
        table = tf.Variable(tf.zeros(SHAPE), name="table")
        return table, grace_tf.Aggregator(SPECS[0], min_elements=1)

    table, aggregate = made()
    for seed in range(3):
        aggregate([rows_of(30, seed)], [table])
    saved = tf.train.Checkpoint(aggregate=aggregate).write(str(tmp_path / "state"))
    (wanted,) = aggregate([rows_of(30, 9)], [table])
    other, again = made()
    again([rows_of(30, 5)], [other])  # makes the state, which the checkpoint then replaces
    tf.train.Checkpoint(aggregate=again).read(saved).assert_consumed()
    (found,) = again([rows_of(30, 9)], [other])
    np.testing.assert_array_equal(found.indices, wanted.indices)
    np.testing.assert_array_equal(found.values, wanted.values)
    np.testing.assert_array_equal(residual_of(again), residual_of(aggregate))
    assert again.state.step == aggregate.state.step == 4


OPTIMIZERS = {"sgd": lambda keras: keras.optimizers.SGD(0.1)}
OPTIMIZERS["adam"] = lambda keras: keras.optimizers.Adam(0.01)
if not KERAS_3:
    OPTIMIZERS["legacy"] = lambda keras: keras.optimizers.legacy.Adam(0.01)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_embedding_of_a_keras_model_trains_alike_on_all_replicas(make):
    from this_keras import keras

    strategy, ends = mirrored(2), {}
    for ratio in (0.25, 1.0):
        with strategy.scope():
            model = embedding()
            first = [v.numpy() for v in model.trainable_variables]
            spec = f"topk:ratio=0.5,row_ratio={ratio}"
            optimizer = grace_tf.wrap(make(keras), spec, min_elements=1)
        embedding_loop(model, optimizer, strategy)
        assert len(set(shas(model, strategy))) == 1
        state = aggregator_of(optimizer).state
        tables = [a for name, a in state.arrays().items() if "table" in name and "memory/" in name]
        assert state.step == 12 and len(tables) == (ratio < 1)
        assert all(a.any(axis=(1, 2)).all() for a in tables)
        ends[ratio] = model.trainable_variables[0].numpy()
    assert (ends[0.25] != ends[1.0]).any() and (ends[0.25] != first[0]).any()


@pytest.mark.parametrize("name", ["topk", "chunktopk"])
def test_no_smaller_fraction_of_rows_is_sent_than_of_elements(name):
    found = {r: grace_tf.get(name, ratio=r).row_share for r in (0.01, 0.5, 1.0)}
    assert found == {0.01: 0.25, 0.5: 0.5, 1.0: 1.0}
    assert grace_tf.get(f"{name}:ratio=0.01,row_ratio=0.03").row_share == 0.03


@pytest.mark.parametrize("name", ["topk", "chunktopk"])
@pytest.mark.parametrize("value, error", [(0, ValueError), (1.5, ValueError), ("all", TypeError)])
def test_a_fraction_of_rows_outside_0_to_1_is_refused(name, value, error):
    with pytest.raises(error, match=f"{name}: row_ratio is a"):
        grace_tf.get(name, row_ratio=value)
