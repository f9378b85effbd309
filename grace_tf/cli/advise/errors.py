"""The error of the mean (vNMSE) of a method, between several workers of this process.

The gradients of some workers come in; out goes ‖mean of what is decoded − mean‖² / ‖mean‖² over all
tensors, of one step from the method's first state.  A consensus has no scale, so it is scaled for
the least error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from grace_tf.core import registry
from grace_tf.testing.workers import Workers

MOST_WORKERS = 8  # between more of them the mean has a smaller error
MOST_ELEMENTS = 1 << 20


def sample(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The positions of up to four variables that stand for all, of MOST_ELEMENTS together at most.

    They are taken evenly from the kernels, sorted by size; the smallest stands alone where no other
    fits.
    """
    sizes = [math.prod(shape) for shape in shapes]
    matrices = [i for i, shape in enumerate(shapes) if len(shape) > 1 and sizes[i] >= 1024]
    order = sorted(matrices or range(len(shapes)), key=sizes.__getitem__)
    fitting = [i for i in order if 4 * sizes[i] <= MOST_ELEMENTS] or order[:1]
    step = max(1, len(fitting) // 4)
    return sorted(fitting[::-1][::step][:4])


def vnmse(spec: str, grads: Sequence[Sequence[tf.Tensor]]) -> float:
    """The error of the mean of `grads[w][i]`, worker w's gradient i."""
    step = tf.function(Workers(len(grads), spec, min_elements=1024).step, autograph=False)
    got = step.get_concrete_function(grads)(grads)[0]
    wanted = [tf.add_n(each) / len(grads) for each in zip(*grads)]
    if registry.get(spec).aggregates != "sum":
        scale = _total(w * g for w, g in zip(wanted, got)) / _total(g * g for g in got)
        got = [g * tf.cast(scale, g.dtype) for g in got]
    return float(_total((g - w) ** 2 for g, w in zip(got, wanted)) / _total(w * w for w in wanted))


def peak(grads: Sequence[Sequence[tf.Tensor]]) -> float:
    """The largest |g|."""
    return max(float(tf.reduce_max(tf.abs(g))) for mine in grads for g in mine)


def _total(squares) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(tf.cast(each, tf.float64)) for each in squares])
