"""Weighted sums of two lists of tensors, in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import shaped_like


def mix_list(
    xs: Sequence[tf.Tensor], a: float, ys: Sequence[tf.Tensor], b: float
) -> list[tf.Tensor]:
    """b * y + a * x for each pair of float32 tensors, as TensorFlow computes it.

    Each product and the sum are rounded; a denormal, given or arising, counts as zero of its sign.
    Runs natively where `dispatch.runs_here` says so, in the memory of an x that nothing else holds.
    """
    xs = arguments.float_list(xs, "xs")
    ys = arguments.residual_list(ys, xs)
    if not dispatch.runs_here(xs):
        return [b * y + a * x for x, y in zip(xs, ys)]
    return shaped_like(native._ops().grace_mix_list(xs=xs, ys=ys, a=a, b=b), [x.shape for x in xs])
