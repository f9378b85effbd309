"""Factors that travel as bfloat16: half the bytes, and what rounding takes is in the residuals."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.testing import Workers, cases

SHAPES = (30, 20), (9,), (16, 41)
SPECS = "powersgd:rank=2,factors=bf16", "powersgd:rank=2,iterations=2,factors=bf16"
SPECS += ("acpsgd:rank=4,factors=bf16",)

each = pytest.mark.parametrize("spec", SPECS)


def gradients(size, step):
    return [[cases.normal(s, 100 * step + w) for s in SHAPES] for w in range(size)]


@each
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_nothing_that_rounding_takes_is_lost_with_any_number_of_workers(spec, size):
    workers = Workers(size, spec)
    given, got = ([np.zeros(shape) for shape in SHAPES] for _ in range(2))
    for step in range(6):
        grads = gradients(size, step)
        results = workers(grads)
        for i in range(len(SHAPES)):
            for mine in results[1:]:
                np.testing.assert_array_equal(mine[i], results[0][i])
            given[i] += sum(mine[i].astype(np.float64) for mine in grads)
            got[i] += size * results[0][i].numpy().astype(np.float64)
    for i in range(len(SHAPES)):
        kept = workers.state.arrays()[f"{i}/memory/residual"].sum(0)
        # The sum of rounded numbers, rounded once more, is 2^-9 off where that is lost.
        np.testing.assert_allclose(got[i] + kept, given[i], atol=1e-4)


@each
def test_what_is_sent_has_eight_bits_of_each_factor(spec):
    plain = Workers(1, spec.replace(",factors=bf16", ""), memory="none")
    halves = Workers(1, spec, memory="none")
    x = gradients(1, 0)
    a, b = (np.concatenate([t.numpy().ravel() for t in w(x)[0]]) for w in (plain, halves))
    off = np.linalg.norm(a - b) / np.linalg.norm(a)
    assert 2.0**-12 < off < 2.0**-7


@each
def test_it_sends_half_the_bytes(spec):
    halves, plain = grace_tf.get(spec), grace_tf.get(spec.replace(",factors=bf16", ""))
    matrix, vector = tf.TensorSpec([30, 20], tf.float32), tf.TensorSpec([9], tf.float32)
    assert 2 * halves.nbytes(matrix) == plain.nbytes(matrix)
    assert halves.nbytes(vector) == 36
    workers = Workers(3, spec)
    workers([[cases.normal((30, 20), w)] for w in range(3)])
    flag = workers.bytes_per_step - halves.nbytes(matrix)
    assert flag in (2, 4)


@pytest.mark.parametrize("spec, words", [(SPECS[0], 4), (SPECS[1], 4), (SPECS[2], 6 + 4)])
def test_between_many_workers_it_sends_each_a_chunk_and_all_its_sum(spec, words):
    workers = Workers(5, spec)
    workers([[cases.normal((30, 20), w)] for w in range(5)])
    hops = {h.kind: h.nbytes for h in workers.handed if h.kind != "sum"}
    flag = 4 * spec.startswith("acpsgd")
    assert hops["gather"] == 4 * words
    assert hops["all_to_all"] - 5 * 4 * words in (0, 5 * flag)


def test_a_plan_has_keys_for_the_rounds():
    with pytest.raises(ValueError, match="iterations is from 1 to 15, not 16"):
        grace_tf.get("powersgd:iterations=16,factors=bf16")
    workers = Workers(4, "powersgd:rank=1,iterations=15,factors=bf16")
    workers([[cases.normal((30, 20), w)] for w in range(4)])
    assert len(workers.handed) == 31
    for spec in ("powersgd:factors=fp8", "acpsgd:factors=fp8"):
        with pytest.raises(ValueError, match="factors is one of float32, bf16"):
            grace_tf.get(spec)
