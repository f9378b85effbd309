"""The part of a gradient that workers compare when they measure an error: all of it, or a sketch.

The tensors of a bucket come in; pieces go out, from which norms and distances are computed.  If all
workers are in one process, the pieces are the tensors themselves.  Between processes the pieces
cross the network, and a measured step must not send much more than others.  Large gradients are
therefore replaced by a sketch: each element is multiplied by a random sign and added to one of k
sums.  For every vector x the sketch has E‖Sx‖² = ‖x‖², with a relative standard deviation of about
√(2/k), and S is linear: the sketch of a mean over workers is the mean of their sketches.  (Alon,
Matias, Szegedy 1996; with one hash, Charikar, Chen, Farach-Colton 2002.)
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf import ops
from grace_tf.aggregation.state.conditions import cond
from grace_tf.core.context import SHARED
from grace_tf.line.plan import Plan
from grace_tf.ops import dispatch

LEAST, MOST = 1 << 14, 1 << 18  # limits of k; √(2/k) is 1.1 % and 0.28 %
_DRAW = 254  # the number of a random draw that no stage, round, hop or memory uses


def length(plan: Plan, exact: bool) -> int | None:
    """The number of sums in the sketch of a plan's gradients; None if no sketch is needed.

    A sketch has as many bytes as a step of the plan sends, with at least `LEAST` and at most `MOST`
    sums.
    """
    elements = sum(lane.spec.shape.num_elements() for group in plan.groups for lane in group.lanes)
    sent = sum(group.compressor.group_nbytes(group.specs) for group in plan.groups) // 4
    # The number of sums is odd.  Matrices often have a power of two as their number of columns.  If
    # the number of sums were such a power too, all elements of a column would go to few sums.
    wanted = min(max(LEAST, sent), MOST) | 1
    return None if exact or elements <= wanted else wanted


def take(
    when: tf.Tensor, xs: Sequence[tf.Tensor], count: int | None, bucket: int, seed: int, step
) -> tuple[tf.Tensor, tf.Tensor]:
    """The pieces of a bucket's tensors, and the squared norm of these tensors in float64.

    If `when` is false, nothing is measured: each piece has no elements, and the squared norm is 0.

    Args:
      when: whether they are wanted in this step.
      count: the number of sums of a sketch; None for the tensors themselves.
    """
    xs = [x for x in xs if x.shape.num_elements() != 0]
    key, count = key_of(bucket, seed, step), count or 0
    if xs and dispatch.runs_on_cpu(xs) and all(x.dtype == tf.float32 for x in xs):
        return ops.signed_sums(xs, count, key, when)

    def taken() -> tuple[tf.Tensor, tf.Tensor]:
        return ops.signed_sums([tf.cast(x, tf.float32) for x in xs], count, key, tf.constant(True))

    def nothing() -> tuple[tf.Tensor, tf.Tensor]:
        return tf.zeros([0]), tf.zeros([], tf.float64)

    if not xs:
        return nothing()
    if tf.executing_eagerly():
        return taken() if when else nothing()
    return cond(when, taken, nothing)


def key_of(bucket: int, seed: int, step) -> ops.Key:
    """The stream of a bucket's random signs.  It depends on the step; all workers have the same."""
    return ops.Key(seed, SHARED, step, bucket, _DRAW)
