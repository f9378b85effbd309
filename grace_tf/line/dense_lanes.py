"""The lanes that travel uncompressed, and the mean over workers.

A step may have a thousand of these lanes, and the first step pays for every node of its graph.  So
where native operations run, one node makes all float32 lanes of a group one tensor, and another
divides their sums and gives them their shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.core.context import Context
from grace_tf.core.rounds import Outcome, Payload, Rounds, Sum
from grace_tf.ops import dispatch, joining


def uncompressed(xs: Sequence[tf.Tensor], ctx: Context, divisor: int) -> Rounds:
    """The dense lanes of a bucket: sums over workers divided by `divisor`, in the lanes' dtypes."""
    alone = ctx.size == divisor == 1
    together = [] if alone else _together(xs)
    apart = [i for i in range(len(xs)) if i not in set(together)]
    payloads: list[Payload] = []
    finite = None
    if together:
        flat, finite = joining.join([xs[i] for i in together])
        payloads.append({"values": flat})
    payloads += [{"values": x} for x in _reshaped([xs[i] for i in apart], [(-1,)] * len(apart))]
    # The sums need no flag: a non-finite value of one worker makes the sum non-finite on all.
    replies = yield Sum(payloads, None if apart else finite)
    if alone:
        return Outcome(list(xs), [{}] * len(xs), [{}] * len(xs))
    totals = {}
    if together:
        reply, *replies = replies
        each, finite = joining.split(reply["values"], [xs[i].shape for i in together], 1 / divisor)
        totals.update(zip(together, each))
    shaped = _reshaped([r["values"] for r in replies], [tuple(xs[i].shape) for i in apart])
    totals.update(zip(apart, means(shaped, divisor)))
    states = [{}] * len(xs)
    return Outcome([totals[i] for i in range(len(xs))], states, states, None if apart else finite)


def mean(total: tf.Tensor, size: int) -> tf.Tensor:
    """The mean of `size` workers, from their sum."""
    return means([total], size)[0]


def means(totals: Sequence[tf.Tensor], size: int) -> list[tf.Tensor]:
    """The means of `size` workers, from their sums."""
    if size == 1:
        return list(totals)
    # TensorFlow's graphs turn a division by a constant into a product with it; eager steps must
    # give the same bits.  All totals of a dtype share the node of the constant.
    floats = {total.dtype for total in totals if not total.dtype.is_integer}
    shares = {dtype: tf.constant(1 / size, dtype) for dtype in floats}
    return [t * shares[t.dtype] if t.dtype in shares else t // size for t in totals]


def _together(xs: Sequence[tf.Tensor]) -> list[int]:
    """The lanes that native operations take as one list."""
    fit = [i for i, x in enumerate(xs) if x.dtype == tf.float32 and x.shape.num_elements()]
    return fit if fit and dispatch.runs_here([xs[i] for i in fit]) else []


def _reshaped(xs: Sequence[tf.Tensor], shapes: Sequence[tuple[int, ...]]) -> list[tf.Tensor]:
    """Each x in its shape; all x of a shape share the node that says it."""
    made: dict[tuple[int, ...], tf.Tensor] = {}
    out = []
    for x, shape in zip(xs, shapes):
        if x.shape.rank != len(shape):  # else it has this shape already
            if shape not in made:
                made[shape] = tf.constant(shape, tf.int32)
            x = tf.reshape(x, made[shape])
        out.append(x)
    return out
