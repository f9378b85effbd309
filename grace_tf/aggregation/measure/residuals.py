"""What a worker has not sent yet, from the state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from grace_tf.aggregation.state.state import State
from grace_tf.line.plan import Plan

_LEAF = "residual"


def residuals(state: State, plan: Plan) -> Iterator[tuple[str, tf.Tensor]]:
    """(variable's name, residual as float32) of this plan's dense gradients, on the first worker.

    That is the first worker of this process.  Memories that keep no leaf called residual, such as
    momenta and estimates, have none.
    """
    for lane in (lane for group in plan.groups for lane in group.lanes):
        leaf = state.leaves("memory", lane.ordinal, lane.memory).get(_LEAF)
        if leaf is not None:
            stored = [{_LEAF: leaf.variables[0].read_value()}]
            (loaded,) = lane.memory.load(stored, [lane.spec])
            yield leaf.stem.rpartition("/memory/")[0], loaded[_LEAF]


def square(state: State, plan: Plan) -> tf.Tensor:
    """‖e‖² over these gradients, float64, eagerly or in a step; NaN where there is no residual."""
    squares = [tf.reduce_sum(tf.square(each)) for _, each in residuals(state, plan)]
    if not squares:
        return tf.constant(np.nan, tf.float64)
    return tf.cast(tf.add_n(squares), tf.float64)
