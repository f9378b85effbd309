"""What of a gradient is compared between workers: all of it, or a sketch of it.

It takes the tensors of a bucket and returns pieces, from which norms and distances follow.  Where
all workers live in one process the pieces are the tensors.  Between processes they cross the
network, and a step that is measured must not send much more than another.  So from `LEAST` elements
on they are a sketch: each element goes with a random sign to one of k sums.  For every vector x the
sketch has E‖Sx‖² = ‖x‖², with a relative standard deviation of about √(2/k), and S is linear: the
sketch of a mean over workers is the mean of their sketches.  (Alon, Matias, Szegedy 1996; with one
hash, Charikar, Chen, Farach-Colton 2002.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from grace_tf import ops
from grace_tf.core.context import SHARED
from grace_tf.line.plan import Plan

LEAST, MOST = 1 << 14, 1 << 18  # sums of a sketch: √(2/k) is 1.1 % and 0.28 %
_DRAW = 254  # a draw of no stage, round or hop, and not the one that memories store with
_SIGN = np.int32(np.iinfo(np.int32).min)


def length(plan: Plan, exact: bool) -> int | None:
    """The number of sums of a sketch of all gradients of a plan; None where all are compared.

    A sketch has as many bytes as a step of the plan sends, but not less than `LEAST` sums and not
    more than `MOST`.
    """
    elements = sum(lane.spec.shape.num_elements() for group in plan.groups for lane in group.lanes)
    sent = sum(group.compressor.group_nbytes(group.specs) for group in plan.groups) // 4
    # Odd, so that the columns of a matrix, whose number is often a power of two, meet all sums.
    wanted = min(max(LEAST, sent), MOST) | 1
    return None if exact or elements <= wanted else wanted


def sketch(flat: tf.Tensor, count: int, bucket: int, seed: int, step) -> tf.Tensor:
    """The sketch `[count]` of a bucket's elements, with the signs of this step on all workers."""
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
