"""What each method sends for some shapes, and what its codec takes on this device.

Shapes, a spec and a number of workers come in; the buckets of the plan go out, with their
collectives and with seconds: see aggregation/measure/codec.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from grace_tf.advice.timeline import Bucket
from grace_tf.aggregation.measure.codec import Step
from grace_tf.aggregation.measure.link import Agree
from grace_tf.line.plan import make_plan
from grace_tf.line.settings import settings

_FEW, _SOME = 2, 8  # workers with which a codec runs whose work grows with their number


def measure(
    spec: str,
    grads: Sequence[tf.Tensor],
    size: int,
    repeats: int,
    meet: Callable[[], None] = lambda: None,
    agree: Agree = list,
    shares: Sequence[float] = (),
) -> list[Bucket]:
    """The buckets of a method between `size` workers with such gradients.

    In `meet` all workers wait for each other, so that those on one processor compress at the same
    time, as in a training.  `agree` returns the times of the slowest worker, repeat by repeat.
    Where every worker decodes the payloads of all others, the work grows with their number: of more
    than 8 workers it follows from what 2 and 8 take.  `shares`: see `Compute.shares`.
    """
    traced = _step(spec, grads, size)
    if size <= _SOME or not traced.gathers_all:
        encode, whole = traced.seconds(repeats, meet, agree)
    else:
        few, some = (_step(spec, grads, n).seconds(repeats, meet, agree) for n in (_FEW, _SOME))
        each = max(0.0, some[1] - few[1]) / (_SOME - _FEW)
        encode, whole = some[0], some[1] + (size - _SOME) * each
    return traced.buckets(encode, max(0.0, whole - encode), shares)


def _step(spec: str, grads: Sequence[tf.Tensor], size: int) -> Step:
    specs = [tf.TensorSpec(grad.shape, grad.dtype) for grad in grads]
    paths = [str(i) for i in range(len(specs))]
    plan = make_plan(settings(spec).at(0), paths, specs, range(len(specs)))
    return Step(plan, grads, size)
