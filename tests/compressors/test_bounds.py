"""The bound holds for the worst gradients, and every unbiased method has one."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.testing import Workers

STEPS = 100


def filled(value, *ends):
    """512 elements: first `ends`, which set the scale, then `value` in all others."""
    return np.float32([*ends, *[value] * (512 - len(ends))])


# For each spec a gradient whose error is close to the bound.  With qsgd most of its elements lie
# halfway between two levels.
WORST = [
    ("natural", np.full(4096, 4 / 3, np.float32)),  # p = 1/3
    ("qsgd:bits=8", filled(1 / 254, 1)),
    ("qsgd:bits=8,rounding=stratified", filled(1 / 254, 1)),
    ("qsgd:bits=8,norm=minmax", filled(0, 1, -1)),  # of 256 levels none is 0
    ("qsgd:bits=4,norm=minmax", filled(0, 1, -1)),
    ("qsgd:levels=1,norm=l2", filled(1)),
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


@pytest.mark.parametrize("norm", ["max", "l2", "minmax"])
def test_the_bound_of_qsgd_is_that_of_its_block_and_falls_with_the_bits(norm):
    def bound(bits, block, n):
        compressor = grace_tf.get(f"qsgd:bits={bits},norm={norm},block={block}")
        return compressor.relative_bound(tf.TensorSpec([n], tf.float32))

    for bits in (2, 4, 8, 16):
        assert bound(bits, 32, 1000) == bound(bits, "none", 32) < bound(bits, "none", 1000)
        assert bound(bits, 512, 100) == bound(bits, "none", 100)
    falling = [bound(bits, 512, 1000) for bits in (16, 8, 4, 2)]
    assert falling == sorted(falling) and len({*falling}) == 4


def test_every_unbiased_method_has_a_bound():
    spec = tf.TensorSpec([40, 50], tf.float32)
    specs = [s for entry in registry.entries() for s in (entry.name, *entry.examples)]
    unbiased = {s for s in specs if grace_tf.get(s).unbiased}
    without = {s for s in unbiased if grace_tf.get(s).relative_bound(spec) is None}
    # A shared scale is the largest of all workers' scales.  It may be much larger than the gradient
    # of this worker, so the error of this worker has no bound relative to its gradient.
    assert without == {"terngrad:shared=true,clip=none,workers=3"}
    assert {"natural", "qsgd:norm=minmax", "terngrad:clip=none", "wangni", "atomo"} < unbiased
    assert grace_tf.get("terngrad").relative_bound(spec) is None  # clipping is not unbiased
