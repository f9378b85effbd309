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

import numpy as np
import tensorflow as tf

from grace_tf import ops
from grace_tf.core.context import SHARED
from grace_tf.line.plan import Plan

LEAST, MOST = 1 << 14, 1 << 18  # limits of k; √(2/k) is 1.1 % and 0.28 %
_DRAW = 254  # the number of a random draw that no stage, round, hop or memory uses
_SIGN = np.int32(np.iinfo(np.int32).min)


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


def sketch(flat: tf.Tensor, count: int, bucket: int, seed: int, step) -> tf.Tensor:
    """The sketch `[count]` of a bucket's elements.

    The random signs depend on the step, and are the same on all workers.
    """
    rows = -(-flat.shape[0] // count)
    groups = -(-rows * count // 32)
    words = ops.random_words(groups, ops.Key(seed, SHARED, step, bucket, _DRAW))
    signs = tf.bitwise.left_shift(words[:, None], tf.range(32)[None]) & _SIGN
    bits = tf.bitcast(tf.pad(flat, [[0, 32 * groups - flat.shape[0]]]), tf.int32)
    signed = tf.bitcast(tf.bitwise.bitwise_xor(bits, tf.reshape(signs, [-1])), tf.float32)
    return tf.reduce_sum(tf.reshape(signed[: rows * count], [rows, count]), 0)


def joined(xs: Sequence[tf.Tensor]) -> tf.Tensor:
    """All elements end to end, as float32."""
    return tf.concat([tf.reshape(tf.cast(x, tf.float32), [-1]) for x in xs], 0)
