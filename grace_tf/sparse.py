"""Sparse gradients (tf.IndexedSlices) as the plan wants them: row_rules.py says which stay rows.

In come gradients as tapes give them.  Those that a plan counts among its rows cross the workers as
rows, compressed (row_lanes.py) or not (`Transport.rows`); every other one is made dense before the
line sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grace_tf.gradients import is_rows
from grace_tf.plan import Plan

# What every worker of this process gets for every gradient.
Aggregates = list[list[tf.Tensor | tf.IndexedSlices]]


def arranged(plan: Plan, grads: Sequence[Any]) -> list[Any]:
    """One worker's gradients as the plan's lanes want them: rows in sparse lanes, else tensors."""
    arranged = list(grads)
    for lane in (lane for group in plan.groups for lane in group.lanes):
        if is_rows(grads[lane.position]):
            dense = tf.convert_to_tensor(grads[lane.position])
            arranged[lane.position] = tf.ensure_shape(dense, lane.shape)
    for lane in plan.rows:
        arranged[lane.position] = _plain_rows(grads[lane.position], lane.shape)
    return arranged


def _plain_rows(grad: tf.IndexedSlices, shape: tuple[int, ...]) -> tf.IndexedSlices:
    """The same rows, with all that is static about them: only their number is not."""
    indices = tf.convert_to_tensor(grad.indices)
    values = tf.reshape(grad.values, [tf.shape(indices)[0], *shape[1:]])
    return tf.IndexedSlices(values, indices, tf.constant(shape, tf.int64))


def alike(plans: Sequence[Plan], aggregates: Aggregates) -> Aggregates:
    """The aggregates of one of these plans, dense wherever another plan does not send rows."""
    rows = set.intersection(*({lane.position for lane in plan.rows} for plan in plans))
    return [
        [
            tf.convert_to_tensor(total) if is_rows(total) and i not in rows else total
            for i, total in enumerate(mine)
        ]
        for mine in aggregates
    ]


def values_of(grad: Any) -> tf.Tensor:
    """The tensor of a gradient's elements."""
    return grad.values if is_rows(grad) else grad


def with_values(grad: Any, values: tf.Tensor) -> Any:
    """A gradient of the same rows as `grad`, if it is rows, and of other values."""
    return tf.IndexedSlices(values, grad.indices, grad.dense_shape) if is_rows(grad) else values
