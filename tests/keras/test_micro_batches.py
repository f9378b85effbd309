"""Gradients that Keras 3 accumulates: the memory `variance` sees each of them.

What every engine does with them is the cell "accumulation" of test_cells.py.
"""

import pickle

import numpy as np
import pytest
import tensorflow as tf
from models import KERAS_3, loss_scaled, replicas_of
from replicas import mirrored
from this_keras import keras

import grace_tf
from grace_tf.keras.wrapping import aggregator_of
from grace_tf.testing import cases

pytestmark = pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no gradient_accumulation_steps")
COUNT, STEPS = 3, 4
SHAPES = (40, 50), (7,), (9, 4)  # the small ones share a variable of the state
METHOD = "variance:alpha=1.25,decay=0.9,capacity=1.0"


def scope(replicas):
    return mirrored(replicas) if replicas > 1 else tf.distribute.get_strategy()


def gradients(sample, replicas=1):
    """The gradients of each variable, a row for each replica: the same direction, plus noise."""
    steady = [cases.normal(shape, 99) for shape in SHAPES]
    noise = [
        [2 * cases.normal(shape, 100 * i + sample) for shape in SHAPES] for i in range(replicas)
    ]
    return [np.stack([a + n[k] for n in noise]) for k, a in enumerate(steady)]


def built(method=METHOD, replicas=1, scaled=False, dtype="float32", memory="auto", **keywords):
    """(the optimizer, its variables)"""
    with scope(replicas).scope():
        variables = [
            keras.Variable(np.zeros(shape), dtype=dtype, name=f"of_{len(shape)}_{shape[0]}")
            for shape in SHAPES
        ]
        keywords = {"gradient_accumulation_steps": COUNT, **keywords}
        optimizer = keras.optimizers.SGD(1.0, **keywords)
        grace_tf.wrap(optimizer, method, memory=memory, min_elements=1)
        outer = loss_scaled(optimizer, initial_scale=1.0) if scaled else optimizer
        outer.build(variables)
    return outer, variables


def apply(outer, variables, batches, replicas=1, traced=True):
    """Applies the gradients of one micro-batch after the other."""

    def micro_batch(given):
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            scale = getattr(outer, "dynamic_scale", 1.0)
            mine = [
                tf.cast(tf.gather(g, i) / replicas * scale, v.dtype)
                for g, v in zip(given, variables)
            ]
            outer.apply(mine, variables)

        scope(replicas).run(replica)

    run = tf.function(micro_batch) if traced else micro_batch
    for given in batches:
        run([tf.constant(g, tf.float32) for g in given])
    return [np.stack(replicas_of(v)) for v in variables]


def leaves(outer, leaf):
    """The rows of each variable; stages of a schedule have longer names for them."""
    arrays, found = aggregator_of(outer).state.arrays(), []
    for shape in SHAPES:
        name = f"of_{len(shape)}_{shape[0]}/memory/{leaf}"
        (rows,) = (arrays[each] for each in arrays if each == name or each.startswith(f"{name}@"))
        found.append(rows)
    return found


class Algorithm:
    """Algorithm 1 of the paper, as its authors' workers run it: all of them on one variable."""

    def __init__(self, replicas, shape):
        self.r, self.v = np.zeros([replicas, *shape]), np.zeros([replicas, *shape])

    def step(self, samples):
        for sample in samples:
            self.r, self.v = self.r + sample / COUNT, self.v + (sample / COUNT) ** 2
        out = self.r**2 > 1.25 * self.v
        sent = np.where(out, self.r, 0)
        self.r, self.v = np.where(out, 0, self.r), np.where(out, 0, 0.9 * self.v)
        return sent


@pytest.mark.parametrize("replicas, traced", [(1, False), (1, True), (2, False), (2, True)])
def test_the_variance_is_over_micro_batches(replicas, traced):
    outer, variables = built(replicas=replicas)
    batches = [gradients(i, replicas) for i in range(COUNT * STEPS)]
    ends = apply(outer, variables, batches, replicas, traced)
    for k, (end, r, v) in enumerate(zip(ends, leaves(outer, "r"), leaves(outer, "v"))):
        workers, wanted, shares = Algorithm(replicas, SHAPES[k]), 0, []
        for i in range(0, COUNT * STEPS, COUNT):
            sent = workers.step([batch[k] for batch in batches[i : i + COUNT]])
            wanted = wanted - np.mean(sent, 0)
            shares.append(np.mean(sent != 0))
        assert 0 < max(shares) and min(shares) < 1
        np.testing.assert_allclose(end, np.stack([wanted] * replicas), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(r, workers.r, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(v, workers.v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_that_is_skipped_leaves_nothing_of_its_micro_batches(scaled):
    good = [gradients(i) for i in range(2 * COUNT)]
    large = [np.full_like(g, 2e38) for g in gradients(0)]  # finite, and the sum of two is not
    outer, variables = built(scaled=scaled)
    ends = apply(outer, variables, [*good[:COUNT], large, large, gradients(50), *good[COUNT:]])
    other, others = built(scaled=scaled)
    wanted = apply(other, others, good)
    for leaf in "rvs":
        for ours, theirs in zip(leaves(outer, leaf), leaves(other, leaf)):
            np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(ends, wanted):
        if scaled:
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert np.isnan(ours).all()  # every worker sees that the step was not finite


@pytest.mark.parametrize("way", ["checkpoint", "pickle"])
def test_a_copy_made_between_micro_batches_goes_on_with_the_same_bits(way, tmp_path):
    batches = [gradients(i) for i in range(2 * COUNT)]
    outer, variables = built()
    apply(outer, variables, batches[: COUNT + 1])
    if way == "checkpoint":
        path = tf.train.Checkpoint(optimizer=outer).save(tmp_path / "half")
        other, others = built()
        tf.train.Checkpoint(optimizer=other).restore(path)
    else:
        other, others = pickle.loads(pickle.dumps(outer)), built()[1]
        other.build(others)
        for ours, theirs in zip(other.variables, outer.variables):
            ours.assign(theirs)
    for ours, theirs in zip(others, variables):
        ours.assign(theirs)
    wanted = apply(outer, variables, batches[COUNT + 1 :])
    for ours, theirs in zip(apply(other, others, batches[COUNT + 1 :]), wanted):
        np.testing.assert_array_equal(ours, theirs)


def test_gradients_in_half_precision_are_squared_as_float32():
    outer, variables = built(dtype="bfloat16")
    apply(outer, variables, [gradients(i) for i in range(COUNT - 1)])
    for k, squares in enumerate(leaves(outer, "s")):
        given = [tf.cast(gradients(i)[k], tf.bfloat16) for i in range(COUNT - 1)]
        wanted = sum((np.float32(g) / COUNT) ** 2 for g in given)
        np.testing.assert_allclose(squares, wanted, rtol=1e-5)


def memory_of(optimizer):
    """The memory of the variables, as `grace_tf.explain` shows it."""
    rows = grace_tf.explain(optimizer).as_dict()["variables"]
    return {row["memory"] for row in rows}


def test_explain_says_over_what_the_variance_is():
    assert memory_of(built()[0]) == {"variance:alpha=1.25,decay=0.9,micro_batches=3"}
    for keywords in ({"gradient_accumulation_steps": None}, {"clipnorm": 1.0}, {"clipvalue": 1.0}):
        outer, variables = built(**keywords)
        assert memory_of(outer) == {"variance:alpha=1.25,decay=0.9"}, keywords
        apply(outer, variables, [gradients(0)])  # a step needs no observed micro-batch


def test_a_host_of_several_processes_has_no_micro_batches_of_its_own():
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=COUNT)
    grace_tf.wrap(optimizer, METHOD, hierarchical=True, min_elements=1)
    optimizer.build([keras.Variable(np.zeros(8))])
    assert memory_of(optimizer) == {"variance:alpha=1.25,decay=0.9"}


def test_a_config_with_another_count_of_micro_batches_makes_an_optimizer_of_that_count():
    outer, _ = built()
    config = outer.get_config()
    again = type(outer).from_config(config)
    assert again.get_config() == config
    for changed, memory in (
        ({"gradient_accumulation_steps": 6}, "variance:alpha=1.25,decay=0.9,micro_batches=6"),
        ({"clipnorm": 1.0}, "variance:alpha=1.25,decay=0.9"),
    ):
        other = type(outer).from_config({**config, **changed})
        other.build([keras.Variable(np.zeros(8))])
        assert memory_of(other) == {memory}


@pytest.mark.parametrize("changed", [{"clipnorm": 1.0}, {"gradient_accumulation_steps": 2}])
def test_an_optimizer_that_was_changed_after_it_was_wrapped_is_refused(changed):
    outer, variables = built()
    vars(outer).update(changed)
    with pytest.raises(ValueError, match=r"have changed since it was wrapped.*and not 3"):
        apply(outer, variables, [gradients(0)], traced=False)


def test_a_schedule_of_alphas_squares_each_micro_batch_once():
    batches = [gradients(i) for i in range(COUNT)]
    outer, variables = built("variance:alpha=1e9@0/1.25@2,decay=0.9,capacity=1.0")
    apply(outer, variables, batches)  # sends nothing, so v is what was added, times the decay
    for k, v in enumerate(leaves(outer, "v")):
        wanted = 0.9 * sum((batch[k] / COUNT) ** 2 for batch in batches)
        np.testing.assert_allclose(v, wanted, rtol=1e-4)


def test_a_variable_without_a_gradient_in_the_first_micro_batch_begins_anew_in_each_step():
    outer, variables = built(gradient_accumulation_steps=2)
    for step in range(3):
        both = [g[0] for g in gradients(step)]
        outer.apply(both[1:], variables[1:])
        outer.apply(both, variables)
        assert not np.any(leaves(outer, "s")[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda **keywords: grace_tf.Aggregator("threshold", **keywords),
        lambda **keywords: grace_tf.CompressedAllReduce("threshold", **keywords),
        lambda **keywords: grace_tf.all_reduce([], [], "threshold", **keywords),
        lambda **keywords: grace_tf.wrap(keras.optimizers.SGD(1.0), "threshold", **keywords),
        lambda **keywords: built("threshold", **keywords),
    ],
)
def test_a_count_of_micro_batches_that_no_one_observes_is_refused(make):
    with pytest.raises(ValueError, match="leave micro_batches out"):
        make(memory="variance:micro_batches=2")


def test_rows_of_a_sparse_gradient_are_added_up_before_they_are_squared():
    table = keras.Variable(np.zeros([5, 2], np.float32), name="table")
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    grace_tf.wrap(optimizer, METHOD, min_elements=1).build([table])
    optimizer.apply([tf.IndexedSlices(tf.ones([3, 2]), [1, 1, 4], [5, 2])], [table])
    squares = aggregator_of(optimizer).state.arrays()["table/memory/s"][0]
    np.testing.assert_array_equal(squares[:, 0], [0, 1, 0, 0, 0.25])
