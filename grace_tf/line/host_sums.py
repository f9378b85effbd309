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
            narrow = plan.hierarchical == "bf16" and dtype == "float32"
            key = plan.inside_key(number, "bfloat16" if narrow else dtype)
            (totals,) = inside.sum_lists([mine], key, narrow)
            for position, total in zip(positions, totals):
                sums[position] = total
    return sums
