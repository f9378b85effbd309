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

from grace_tf.aggregation.state import variable_nodes
from grace_tf.aggregation.state.conditions import cond
from grace_tf.aggregation.state.slots import Change
from grace_tf.line.sparse_gradients import values_of, with_values
from grace_tf.ops import dispatch
from grace_tf.ops.nonfinite import nan_list, nan_unless, next_or_last

_LOG = logging.getLogger("grace_tf")


class NonFiniteGuard:
    """Replaces the aggregates of non-finite steps of one State."""

    def __init__(self) -> None:
        self._logged = False

    def commit(
        self,
        changes: Sequence[Change],
        counter: Change,
        check: Callable[[], list[tf.Operation]],
        totals: Sequence[tf.Tensor | tf.IndexedSlices],
        finite: tf.Tensor,
        report: Callable[[], None],
    ) -> list[tf.Tensor | tf.IndexedSlices]:
        """The gradients of a finite step, after storing the changes; else NaN, after `report()`.

        `check()` raises where nothing may be stored.  The counter changes last.

        Integers have no NaN, so they are returned unchanged; the floats of the same step become
        NaN.  In a graph on the CPU one node chooses the values of all variables, and one node all
        gradients.  Elsewhere the condition chooses them.  Gradients that native operations have
        made for this step only always become NaN in place.  Other rows of a table always go through
        the condition: behind a native node TensorFlow's optimiser does not know their shape, and
        the update of the table may have other last bits.
        """
        apart = _by_one_node(changes)
        grads = [values_of(total) for total in totals]
        inside = [i for i, total in enumerate(totals) if not _nan_by_one_node(total)]

        def finite_step():
            with tf.control_dependencies(check()):
                stored = [] if apart else [op for change in changes for op in change.store()]
                flag = tf.identity(tf.constant(True))
            if not apart:
                with tf.control_dependencies(stored):
                    counter.variable.assign_add(1)
            return [flag, *(tf.identity(grads[i]) for i in inside)]

        def refused_step():
            report()
            # The last values of a step that another has overtaken are not stored again either.
            with tf.control_dependencies(check() if apart else []):
                flag = tf.identity(tf.constant(False))
            return [flag, *_of_nan([grads[i] for i in inside])]

        flag, *rest = cond(finite, finite_step, refused_step)
        if apart:
            _store([*changes, counter], flag)
        out = dict(zip(inside, rest))
        outside = [i for i in range(len(grads)) if i not in out]
        if outside:
            out.update(zip(outside, nan_unless([grads[i] for i in outside], flag)))
        return [with_values(total, out[i]) for i, total in enumerate(totals)]

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


def _by_one_node(changes: Sequence[Change]) -> bool:
    """Whether one native node can choose between the last and the next values."""
    if tf.executing_eagerly() or any(isinstance(c.next, tf.IndexedSlices) for c in changes):
        return False
    return dispatch.runs_on_cpu([change.last for change in changes])


def _store(changes: Sequence[Change], flag: tf.Tensor) -> None:
    """Assigns the next values where the flag is true, else the last ones again; in this order."""
    kept = next_or_last([c.next for c in changes], [c.last for c in changes], flag)
    stored: list[tf.Operation] = []
    for change, value in zip(changes, kept):
        # The counter, which is the last one, waits for all others.
        with tf.control_dependencies(stored if change is changes[-1] else []):
            stored.append(variable_nodes.assign(change.variable, value))


def _nan_by_one_node(total: tf.Tensor | tf.IndexedSlices) -> bool:
    grad = values_of(total)
    if dispatch.made_here(grad):
        return True
    if tf.executing_eagerly() or isinstance(total, tf.IndexedSlices):
        return False
    if grad.dtype != tf.float32 or not grad.shape.is_fully_defined():
        return False
    return dispatch.runs_on_cpu([grad])


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
