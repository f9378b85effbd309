"""Steps that are not finite: NaN for every worker's optimizer, and one log line.

The aggregates of such a step are replaced by NaN, so that the optimizer or the loss scaling of
every worker sees the same.  The training goes on; each worker logs it the first time only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from grace_tf.ops import dispatch
from grace_tf.ops.nonfinite import nan_list, nan_unless

_LOG = logging.getLogger("grace_tf")


class NonFiniteGuard:
    """Replaces the aggregates of non-finite steps of one State."""

    def __init__(self) -> None:
        self._logged = False

    def gradients(
        self,
        grads: Sequence[tf.Tensor],
        finite: tf.Tensor,
        commit: Callable[[], None],
        report: Callable[[], None],
    ) -> list[tf.Tensor]:
        """The gradients of a finite step, after `commit()`; else NaN, after `report()`.

        Integers have no NaN, so they are returned unchanged; the floats of the same step become
        NaN.  Tensors that native operations have made for this step only become NaN in place, by
        one node for all; other tensors, which someone else may hold, go through the condition.
        """
        inside = [i for i, g in enumerate(grads) if not dispatch.made_here(g)]

        def finite_step():
            commit()
            return [tf.constant(True), *(tf.identity(grads[i]) for i in inside)]

        def refused_step():
            report()
            return [tf.constant(False), *_of_nan([grads[i] for i in inside])]

        flag, *rest = tf.cond(finite, finite_step, refused_step)
        out = dict(zip(inside, rest))
        outside = [i for i in range(len(grads)) if i not in out]
        if outside:
            out.update(zip(outside, nan_unless([grads[i] for i in outside], flag)))
        return [out[i] for i in range(len(grads))]

    def report(self, step: tf.Tensor, own_finite: tf.Tensor, who: str) -> None:
        """Logs that a step was not finite, but not in code compiled by XLA.

        `own_finite`: whether this worker's gradients were finite.  `who`: "Worker 0 of 2"; "" for a
        single worker.
        """

        def log(step: np.ndarray, own_finite: np.ndarray) -> np.ndarray:
            self._log(int(step), bool(own_finite), who)
            return np.bool_(True)

        if not control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            tf.numpy_function(log, [step, own_finite], tf.bool)

    def _log(self, step: int, own_finite: bool, who: str) -> None:
        if self._logged:
            return
        self._logged = True
        if not who:
            _LOG.warning(
                "In step %d %s was not finite. The compression leaves its state as it was and "
                "gives NaN to the optimizer. Later steps like it are not reported.",
                *(step, "what the gradients became" if own_finite else "a gradient"),
            )
            return
        other = "a gradient of another worker, or the sum over workers,"
        _LOG.warning(
            "%s: in step %d %s was not finite. The compression leaves its state as it "
            "was and gives NaN to the optimizer, on all workers. Later steps like it are not "
            "reported.",
            *(who, step, other if own_finite else "its gradient"),
        )


def _of_nan(grads: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """NaN in the place of each gradient; by one node for all, where the native operations run."""
    out = list(grads)
    plain = [i for i, g in enumerate(grads) if g.dtype == tf.float32 and g.shape.is_fully_defined()]
    if plain and dispatch.runs_here([grads[i] for i in plain]):
        for i, nan in zip(plain, nan_list([grads[i].shape for i in plain])):
            out[i] = nan
    else:
        plain = []
    for i in {*range(len(grads))} - {*plain}:
        # A product with NaN is NaN.
        floats = grads[i].dtype.is_floating
        out[i] = grads[i] * tf.constant(np.nan, grads[i].dtype) if floats else tf.identity(out[i])
    return out
