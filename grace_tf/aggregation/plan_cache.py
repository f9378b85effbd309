"""The plans of an Aggregator, one for every set of gradients that it has seen.

A plan depends on the gradients, their variables and the settings.  A new plan is compared with the
plans of the other workers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

from grace_tf.aggregation.consistency import plan_comparison
from grace_tf.aggregation.consistency.plan_comparison import OptimizerInfo, described
from grace_tf.aggregation.state.variable_registry import VariableRegistry
from grace_tf.line.inputs import is_rows, spec_of
from grace_tf.line.plan import Plan, keyed, make_plan
from grace_tf.line.settings import Settings


class Plans:
    """Makes each plan once, also where several threads ask for it."""

    def __init__(self, registry: VariableRegistry) -> None:
        self._registry = registry
        self._plans: dict[Any, Plan] = {}
        self._settings: list[Settings] = []  # all settings seen; a list, as they may be unhashable
        self._making = threading.RLock()

    def find(
        self,
        settings: Settings,
        grads: Sequence[tf.Tensor | tf.IndexedSlices],
        variables: Sequence[Any],
        others: Any = None,
        optimizer_info: Callable[[], OptimizerInfo] = OptimizerInfo,
        reduce: str = "",
    ) -> Plan:
        """The plan for these gradients; a new one is compared with that of `others` first."""
        with self._making:
            if settings not in self._settings:
                self._settings.append(settings)
            ordinals = self._registry.ordinals(variables)
            specs = tuple(map(spec_of, grads, variables))
            rows = tuple(i for i, g in enumerate(grads) if is_rows(g))
            # A plan that was never compared has no reserved keys; plans between workers need them.
            static = _static(others) if rows else ""
            known = (ordinals, self._settings.index(settings), specs, rows, static, others is None)
            if known not in self._plans:
                paths = [self._registry.path(o) for o in ordinals]
                plan = make_plan(settings, paths, specs, ordinals, rows, static)
                if others is not None:
                    plan = keyed(plan)
                    plan_comparison.compare_plans(others, plan, described(optimizer_info), reduce)
                self._plans[known] = plan
            return self._plans[known]

    def __len__(self) -> int:
        return len(self._plans)

    def forget(self, ordinal: int) -> None:
        """Deletes the plans of a variable that was deleted."""
        for known in list(self._plans):
            if ordinal in known[0]:
                self._plans.pop(known, None)


def _static(others: Any) -> str:
    """The reason why the traced function needs a static number of rows; "" without one."""
    graph = tf.compat.v1.get_default_graph()
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        return "XLA"
    while graph is not None and others is not None and others.same_in_loops:
        if isinstance(graph, WhileBodyFuncGraph):
            return "a traced loop under MultiWorkerMirroredStrategy"
        graph = getattr(graph, "outer_graph", None)
    return ""
