"""Adds up the gradients of the processes of a host; the line then compresses the sum.

It takes the gradients of one process and the plan, and returns the sums over the processes of the
host, the same on each of them.  One collective a bucket and dtype carries them, in full precision
or as bfloat16.
"""

from __future__ import annotations

import tensorflow as tf

from grace_tf.line.plan import Plan
from grace_tf.transports.base import Transport


def added_up(plan: Plan, grads: list, inside: Transport) -> list:
    """The gradients; in the lanes of buckets their sums over the host; rows are unchanged."""
    if inside.size == 1:
        return grads
    sums = list(grads)
    for number, bucket in enumerate(plan.buckets):
        by_dtype: dict[str, list[int]] = {}
        for lane in (lane for group in bucket for lane in group.lanes):
            # Lanes that are compressed as float32 are added up in it: narrow floats may overflow.
            by_dtype.setdefault(lane.spec.dtype.name, []).append(lane.position)
        for dtype, positions in by_dtype.items():
            mine = [tf.cast(grads[position], dtype) for position in positions]
            for position, total in zip(positions, _sums(plan, number, dtype, mine, inside)):
                sums[position] = total
    return sums


def _sums(plan: Plan, number: int, dtype: str, mine: list, inside: Transport) -> list[tf.Tensor]:
    flat = tf.concat([tf.reshape(grad, [-1]) for grad in mine], 0)
    narrow = plan.hierarchical == "bf16" and dtype == "float32"
    sent = tf.cast(flat, tf.bfloat16) if narrow else flat
    (total,) = inside.sum([sent], plan.inside_key(number, sent.dtype.name))
    pieces = tf.split(tf.cast(total, flat.dtype), [grad.shape.num_elements() for grad in mine])
    return [tf.reshape(piece, grad.shape) for piece, grad in zip(pieces, mine)]
