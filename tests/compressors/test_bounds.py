"""What `relative_bound` says is true of the worst gradient, and of every unbiased method said."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.testing import Workers

STEPS = 100


def between_levels(levels, ends):
    """512 elements: the ends of the range, and others in the middle of two levels, next to 0."""
    x = np.full(512, 1 / (2 * levels), np.float32)
    x[: len(ends)] = ends
    return x


# Of each bound a gradient that comes near it.
WORST = [
    ("natural", np.full(4096, 4 / 3, np.float32)),  # p = 1/3
    ("qsgd:bits=8", between_levels(127, [1])),
    ("qsgd:bits=8,rounding=stratified", between_levels(127, [1])),
    ("qsgd:bits=8,norm=minmax", between_levels(np.inf, [1, -1])),  # of 256 levels none is 0
    ("qsgd:bits=4,norm=minmax", between_levels(np.inf, [1, -1])),
    ("terngrad:clip=none", np.float32([1] + [1 / 33] * 1023)),
    ("wangni", np.ones(1000, np.float32)),
    ("randomk:ratio=0.1,scaled=true", np.ones(1000, np.float32)),
]


@pytest.mark.parametrize(("spec", "x"), WORST, ids=[spec for spec, _ in WORST])
def test_the_bound_is_reached_and_not_passed(spec, x):
    workers = Workers(1, spec, memory="none")
    exact, errors = x.astype(np.float64), []
    for _ in range(STEPS):
        sent = workers([[x]])[0][0].numpy()
        errors.append(np.sum((sent - exact) ** 2) / np.sum(exact**2))
    bound = grace_tf.get(spec).relative_bound(tf.TensorSpec(x.shape, tf.float32))
    slack = 4 * np.std(errors) / STEPS**0.5 + 1e-5 * bound
    assert 0.9 * bound <= np.mean(errors) <= bound + slack


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("norm", ["max", "l2", "minmax"])
@pytest.mark.parametrize("block", ["none", 32, 512])
def test_the_bound_of_qsgd_is_that_of_its_block(bits, norm, block):
    compressor = grace_tf.get(f"qsgd:bits={bits},norm={norm},block={block}")
    d = 1000 if block == "none" else block
    s = 2**bits - 1 if norm == "minmax" else 2 ** (bits - 1) - 1
    wanted = d / (2 * s**2) if norm == "minmax" else min(d / (4 * s**2), d**0.5 / s)
    found = compressor.relative_bound(tf.TensorSpec([1000], tf.float32))
    assert found == pytest.approx(wanted)
    assert compressor.relative_bound(tf.TensorSpec([5], tf.float32)) < found


def test_every_unbiased_method_has_a_bound():
    spec = tf.TensorSpec([40, 50], tf.float32)
    specs = [s for entry in registry.entries() for s in (entry.name, *entry.examples)]
    unbiased = {s for s in specs if grace_tf.get(s).unbiased}
    without = {s for s in unbiased if grace_tf.get(s).relative_bound(spec) is None}
    # The scale of another worker may be any number of times as large as a gradient.
    assert without == {"terngrad:shared=true,clip=none,workers=3"}
    assert {"natural", "qsgd:norm=minmax", "terngrad:clip=none", "wangni", "atomo"} < unbiased
    assert grace_tf.get("terngrad").relative_bound(spec) is None  # clipping is not unbiased
