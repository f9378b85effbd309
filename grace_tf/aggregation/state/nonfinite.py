"""Steps that are not finite: NaN for every worker's optimizer, and one log line.

The aggregates of such a step are replaced by NaN, so that every worker's optimizer or loss scaling
sees the same.  The training may well go on, so each worker says once that it was so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from grace_tf.ops import choice
from grace_tf.ops.nonfinite import nan_list, nan_unless

_LOG = logging.getLogger("grace_tf")


class NonFiniteGuard:
    """Refuses the steps of one State that are not finite."""

    def __init__(self) -> None:
        self._told = False

    def gradients(
        self,
        grads: Sequence[tf.Tensor],
        finite: tf.Tensor,
        keep: Callable[[], None],
        tell: Callable[[], None],
    ) -> list[tf.Tensor]:
        """The gradients of a finite step, after `keep()`; else NaN, after `tell()`.

        Integers have no NaN, so they are returned unchanged; the floats of the same step tell.
        What native operations have made for this step alone becomes NaN in place, by one node for
        all; whatever may be held elsewhere passes through the condition.
        """
        inside = [i for i, g in enumerate(grads) if not choice.made_here(g)]

        def kept():
            keep()
            return [tf.constant(True), *(tf.identity(grads[i]) for i in inside)]

        def refused():
            tell()
            return [tf.constant(False), *_of_nan([grads[i] for i in inside])]

        flag, *rest = tf.cond(finite, kept, refused)
        out = dict(zip(inside, rest))
        outside = [i for i in range(len(grads)) if i not in out]
        if outside:
            out.update(zip(outside, nan_unless([grads[i] for i in outside], flag)))
        return [out[i] for i in range(len(grads))]

    def told(self, step: tf.Tensor, own: tf.Tensor, who: str) -> None:
        """Says that a step was not finite; `own`: this worker's gradients were.  XLA cannot.

        `who`: which worker this is, of how many; "" alone.
        """

        def tell(step: np.ndarray, own: np.ndarray) -> np.ndarray:
            self._tell(int(step), bool(own), who)
            return np.bool_(True)

        if not control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            tf.numpy_function(tell, [step, own], tf.bool)

    def _tell(self, step: int, own: bool, who: str) -> None:
        if self._told:
            return
        self._told = True
        if not who:
            _LOG.warning(
                "In step %d %s was not finite. The compression leaves its state as it was and "
                "gives NaN to the optimizer. Later steps like it are not reported.",
                *(step, "what the gradients became" if own else "a gradient"),
            )
            return
        what = "a gradient of another worker, or the sum over workers," if own else "its gradient"
        _LOG.warning(
            "%s: in step %d %s was not finite. The compression leaves its state as it "
            "was and gives NaN to the optimizer, on all workers. Later steps like it are not "
            "reported.",
            *(who, step, what),
        )


def _of_nan(grads: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """As many gradients of NaN; by one node for all, where the native operations run."""
    out = list(grads)
    plain = [i for i, g in enumerate(grads) if g.dtype == tf.float32 and g.shape.is_fully_defined()]
    if plain and choice.runs_here([grads[i] for i in plain]):
        for i, nan in zip(plain, nan_list([grads[i].shape for i in plain])):
            out[i] = nan
    else:
        plain = []
    for i in {*range(len(grads))} - {*plain}:
        # Whatever is multiplied by NaN is NaN.
        floats = grads[i].dtype.is_floating
        out[i] = grads[i] * tf.constant(np.nan, grads[i].dtype) if floats else tf.identity(out[i])
    return out
