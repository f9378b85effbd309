"""Prepares sparse gradients (tf.IndexedSlices) for the line; sparse_policy.py has the rules.

Gradients come as tapes return them.  Those that the plan lists as rows travel as rows, compressed
(compressed_rows.py) or not (`Transport.rows`); every other one is made dense before the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from grace_tf import ops
from grace_tf.line.inputs import is_rows
from grace_tf.line.lanes import Lane
from grace_tf.line.plan import Plan

# The results of a step: `aggregates[i][j]` is what worker i of this process gets for gradient j.
Aggregates = list[list[tf.Tensor | tf.IndexedSlices]]


def arranged(plan: Plan, grads: Sequence[Any]) -> list[Any]:
    """One worker's gradients in the form that the plan's lanes have: rows or dense tensors.

    A row number outside its table, such as -1, raises InvalidArgumentError, however the rows
    travel: some of TensorFlow's operations would skip the row, others fail with other messages.
    Code compiled by XLA cannot raise; there NaN makes the step count as not finite.
    """
    arranged = list(grads)
    for lane in (lane for group in plan.groups for lane in group.lanes):
        if is_rows(grads[lane.position]):
            dense = tf.convert_to_tensor(_plain_rows(grads[lane.position], lane, plan))
            arranged[lane.position] = tf.ensure_shape(dense, lane.shape)
    for lane in plan.rows:
        arranged[lane.position] = _plain_rows(grads[lane.position], lane, plan)
    return arranged


def inside_tables(plan: Plan, grads: Sequence[Any]) -> list[Any]:
    """One worker's gradients as they are, with the same check of row numbers as in `arranged`.

    It serves gradients that do not go through the line.
    """
    checked = list(grads)
    lanes = [lane for group in plan.groups for lane in group.lanes]
    for lane in (*lanes, *plan.rows):
        if is_rows(grads[lane.position]):
            rows = _plain_rows(grads[lane.position], lane, plan)
            if not tf.executing_eagerly():  # else it has raised already
                checked[lane.position] = rows
    return checked


def _plain_rows(grad: tf.IndexedSlices, lane: Lane, plan: Plan) -> tf.IndexedSlices:
    """The same rows with static shapes, except for their number."""
    indices, values = tf.convert_to_tensor(grad.indices), tf.convert_to_tensor(grad.values)
    # 64 bits hold any number of rows.
    numbers = tf.cast(indices, tf.int64)
    inside = tf.reduce_all((numbers >= 0) & (numbers < lane.shape[0]))
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        # Code compiled by XLA cannot raise: NaN makes the step count as not finite.
        indices = tf.where(inside, indices, tf.zeros_like(indices))
        values = tf.where(inside, values, tf.constant(np.nan, values.dtype))
    # The values wait for the check too: the step's flag comes from them, so a failed step commits
    # nothing.
    with tf.control_dependencies(_required(inside, lane, plan.paths[lane.position])):
        indices = tf.identity(indices)
        values = tf.reshape(values, [tf.shape(indices)[0], *lane.shape[1:]])
    return tf.IndexedSlices(values, indices, tf.constant(lane.shape, tf.int64))


def _required(inside: tf.Tensor, lane: Lane, path: str) -> list[tf.Operation]:
    """Raises InvalidArgumentError where an index is outside the table; in graphs returns the op."""
    sentence = f"The sparse gradient of {path} has a row number outside 0 to {lane.shape[0] - 1}."
    if not tf.executing_eagerly():
        return [tf.debugging.Assert(inside, [sentence])]
    if not inside:
        raise tf.errors.InvalidArgumentError(None, None, sentence)
    return []


def alike(plans: Sequence[Plan], aggregates: Aggregates) -> Aggregates:
    """The aggregates of one of these plans, made dense where another plan does not send rows."""
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


def all_finite(grads: Sequence[Any]) -> tf.Tensor:
    """Returns a bool scalar: True if every element of these gradients is finite."""
    xs = [values_of(grad) for grad in grads]
    finite = ops.all_finite([x for x in xs if x.dtype == tf.float32])
    for x in xs:
        if x.dtype.is_floating and x.dtype != tf.float32:
            finite &= tf.reduce_all(tf.math.is_finite(x))
    return finite


def with_values(grad: Any, values: tf.Tensor) -> Any:
    """A gradient with these values, and the row numbers of `grad` if it is rows."""
    return tf.IndexedSlices(values, grad.indices, grad.dense_shape) if is_rows(grad) else values
