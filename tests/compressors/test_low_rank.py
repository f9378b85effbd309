"""What holds for all methods of low rank: GRACE's errors are not made, and nothing is lost."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.cli import describe
from grace_tf.cli.models import MODELS
from grace_tf.core.context import Context
from grace_tf.line.exchange import Share, exchange
from grace_tf.line.plan import make_plan
from grace_tf.line.settings import settings
from grace_tf.testing import Workers, cases
from grace_tf.testing.workers import run_rounds
from grace_tf.transports.loopback import Loopback

SHAPE, SIZE = (30, 20), 3
SPECS = ("powersgd:rank=2", "powersgd:rank=2,iterations=3", "acpsgd:rank=2")

both = pytest.mark.parametrize("spec", SPECS)


def gradients(step, shape=SHAPE):
    return [cases.normal(shape, 10 * step + w) for w in range(SIZE)]


def factors(workers):
    arrays = workers.state.arrays()
    return {name: rows for name, rows in arrays.items() if "/compressor/" in name}


@both
def test_bug_1_convolution_kernels_are_matrices_of_their_last_axis(spec):
    compressor = grace_tf.get(spec)
    for shape in ((3, 3, 64, 128), (1, 1, 256, 64), (7, 7, 3, 64)):
        elements = int(np.prod(shape))
        sides = elements // shape[-1] + shape[-1]
        rounds = getattr(compressor, "iterations", 0.5)
        assert compressor.nbytes(tf.TensorSpec(shape, tf.float32)) == 4 * sides * 2 * rounds


@both
def test_bug_2_the_start_is_drawn_once_and_alike_on_all_workers(spec):
    workers = Workers(SIZE, spec)
    workers.prepare([tf.zeros(SHAPE)])
    before = factors(workers)
    assert before
    grads = gradients(0)
    kept = [g.copy() for g in grads]
    workers([[g] for g in grads])
    for name, rows in factors(workers).items():
        assert (before[name] == before[name][0]).all() and (rows == rows[0]).all()
        assert (rows != before[name]).any(), "the next step starts from where this one ended"
    np.testing.assert_array_equal(grads, kept)  # the caller's gradients are not added to


@both
def test_bug_3_the_mean_is_taken_and_the_rank_is_the_one_asked_for(spec):
    x = cases.normal((30, 2), 1) @ cases.normal((2, 20), 2)
    workers = Workers(SIZE, spec, memory="none")
    for _ in range(3):
        got = workers([[x]] * SIZE)[0][0]
    np.testing.assert_allclose(got, x, atol=1e-4)  # not SIZE times as much
    y = cases.normal(SHAPE)
    rank = np.linalg.matrix_rank(workers([[y]] * SIZE)[0][0], tol=1e-3)
    assert rank == 2


@both
def test_bug_4_decoding_has_no_effect_on_the_side(spec):
    compressor = grace_tf.get(spec)
    tensor = tf.TensorSpec(SHAPE, tf.float32)
    contexts = [Context((tensor,), (0,), 1, 0, SIZE, w) for w in range(SIZE)]
    state = compressor.init_state(tensor, contexts[0].public())
    xs = [[tf.constant(g)] for g in gradients(0)]
    first, again = (run_rounds(compressor, xs, [[state]] * SIZE, contexts) for _ in range(2))
    for a, b in zip(tf.nest.flatten(first.totals), tf.nest.flatten(again.totals)):
        np.testing.assert_array_equal(a, b)
    workers = Workers(SIZE, spec)
    got = workers([[g] for g in gradients(0)])[0][0]
    residuals = workers.state.arrays()["0/memory/residual"]
    # no momentum is in them
    np.testing.assert_allclose(residuals.sum(0) + SIZE * got, sum(gradients(0)), atol=1e-5)


@both
def test_bug_5_rounds_are_asked_for_and_a_column_of_norm_zero_is_harmless(spec):
    compressor = grace_tf.get(spec)
    workers = Workers(SIZE, spec)
    for x in (np.zeros(SHAPE), np.ones(SHAPE), np.eye(*SHAPE)[0] * np.ones(SHAPE), np.zeros(SHAPE)):
        got = workers([[x.astype(np.float32)]] * SIZE)[0][0]
        assert np.isfinite(got).all()
    assert all(np.isfinite(rows).all() for rows in factors(workers).values())
    assert workers.state.step == 4
    # All collectives are the line's own, so other buckets can go on meanwhile.
    assert len(workers.handed) == 2 * getattr(compressor, "iterations", 0.5)


@both
def test_nothing_of_any_worker_is_lost_in_50_steps(spec):
    """Sum of gradients = sum of what was sent + residual."""
    workers = Workers(SIZE, spec)
    workers.prepare([tf.zeros(SHAPE)])
    compressor = grace_tf.get(spec)
    tensor = tf.TensorSpec(SHAPE, tf.float32)
    given, sent = np.zeros((2, SIZE, *SHAPE))
    aggregated = np.zeros(SHAPE)
    for step in range(50):
        states = [
            [{name.split("/")[-1]: tf.constant(rows[w]) for name, rows in factors(workers).items()}]
            for w in range(SIZE)
        ]
        residuals = workers.state.arrays()["0/memory/residual"]
        contexts = [Context((tensor,), (0,), step, 0, SIZE, w) for w in range(SIZE)]
        grads = gradients(step)
        xs = [[tf.constant(g + r)] for g, r in zip(grads, residuals)]
        sent += [mine[0].numpy() for mine in run_rounds(compressor, xs, states, contexts).sent]
        given += grads
        aggregated += workers([[g] for g in grads])[0][0].numpy()
    residuals = workers.state.arrays()["0/memory/residual"]
    np.testing.assert_allclose(given, sent + residuals, atol=1e-3)
    np.testing.assert_allclose(SIZE * aggregated, sent.sum(0), atol=1e-3)
    assert np.abs(residuals).max() < 100


RATIOS = [
    ("resnet50", "powersgd:rank=4", 66.5),
    ("resnet50", "acpsgd:rank=4", 116.6),
    ("bert-base", "powersgd:rank=32", 16.7),
    ("bert-base", "acpsgd:rank=32", 32.6),
]


@pytest.mark.parametrize("model, spec, ratio", RATIOS)
def test_the_ratios_of_models_are_those_handed_to_collectives(model, spec, ratio):
    shapes = MODELS[model]()
    nbytes, times = describe.of_a_model(grace_tf.get(spec), shapes)
    assert round(times, 1) == ratio
    with tf.Graph().as_default():
        assert sum(handed.nbytes for handed in _handed(spec, shapes)) == nbytes


def _handed(spec, shapes):
    """What a step of this model hands to collectives; the step is traced and never run."""
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    plan = make_plan(settings(spec), [f"v{i}" for i in range(len(specs))], specs, range(len(specs)))
    assert len(plan.buckets) > 3
    share = Share([tf.compat.v1.placeholder(tf.float32, s) for s in shapes], {}, {}, tf.constant(0))
    for group in plan.groups:
        for tensor, ordinal in zip(group.specs, group.ordinals):
            context = Context((tensor,), (ordinal,), 0, 0, 1)
            share.memory[ordinal] = group.memory.init_state(tensor)
            share.compressor[ordinal] = group.compressor.init_state(tensor, context)
    transport = Loopback(1)
    with transport.recorded() as handed:
        exchange(plan, [share], transport, summed=False)
    rounds = 1 if spec.startswith("acpsgd") else 2
    compressed = [bucket for bucket in plan.buckets if not all(group.dense for group in bucket)]
    dtypes = {each.dtype for each in handed}
    assert len(handed) == len(plan.buckets) + (rounds - 1) * len(compressed) and len(dtypes) == 1
    return handed
