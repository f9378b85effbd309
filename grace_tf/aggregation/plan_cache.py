"""The plans of an Aggregator, one for every set of gradients that it has seen.

A plan depends on the gradients, their variables, the settings, and whether a LossScaleOptimizer
decides about the step.  A new plan is compared with the plans of the other workers; a step that is
traced again takes the plan that it had, since a worker may trace again by itself, as for a batch of
another size.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

from grace_tf.aggregation.consistency import crossing, plan_handshake
from grace_tf.aggregation.consistency.plan_handshake import OptimizerInfo, described
from grace_tf.aggregation.state.variable_registry import VariableRegistry
from grace_tf.line.inputs import is_rows, spec_of
from grace_tf.line.plan import Plan, keyed, make_plan
from grace_tf.line.settings import Settings

# Graphs in which a collective tells whether the gradients are finite on all workers, before a
# condition on it holds the step.  `grace_tf.keras` puts them in.
loss_scaled: weakref.WeakSet = weakref.WeakSet()


class Plans:
    """Makes each plan once, also where several threads ask for it.

    Attributes: compared, the number of plans that were compared with the other workers'.  Unlike
    the number of plans it does not depend on when Python deletes a variable.
    """

    compared = 0

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
        measured: str = "",
    ) -> Plan:
        """The plan for these gradients; a new one is compared with that of `others` first.

        `measured`: how the step measures itself, which all workers must do alike.
        """
        with self._making:
            if settings not in self._settings:
                self._settings.append(settings)
            ordinals = self._registry.ordinals(variables)
            specs = tuple(map(spec_of, grads, variables))
            rows = tuple(i for i, g in enumerate(grads) if is_rows(g))
            # A plan that was never compared has no reserved keys; plans between workers need them.
            static = _static(others) if rows else ""
            scaled = others is not None and any(graph in loss_scaled for graph in _graphs())
            known = (
                *(ordinals, self._settings.index(settings), specs, rows, static, scaled),
                *(others is None, measured),
            )
            if known not in self._plans:
                paths = [self._registry.path(o) for o in ordinals]
                plan = make_plan(settings, paths, specs, ordinals, rows, static)
                if others is not None:
                    plan = keyed(plan)
                    info = described(optimizer_info)
                    info = dataclasses.replace(info, scaled=scaled, measured=measured)
                    crossing.tell_comparison(others)
                    plan_handshake.compare_plans(others, plan, info, reduce)
                    self.compared += 1
                self._plans[known] = plan
            return self._plans[known]

    def made(self, settings: Settings) -> list[Plan]:
        """The plans of these settings, the newest last."""
        found = list(self._plans.items())
        return [plan for known, plan in found if self._settings[known[1]] == settings]

    def __len__(self) -> int:
        return len(self._plans)

    def forget(self, ordinal: int) -> None:
        """Deletes the plans of a variable that was deleted."""
        for known in list(self._plans):
            if ordinal in known[0]:
                self._plans.pop(known, None)


def _static(others: Any) -> str:
    """The reason why the traced function needs a static number of rows; "" without one."""
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return "XLA"
    if others is not None and others.same_in_loops:
        if any(isinstance(graph, WhileBodyFuncGraph) for graph in _graphs()):
            return "a traced loop under MultiWorkerMirroredStrategy"
    return ""


def _graphs() -> Iterator[Any]:
    """The graph that is traced here, the one around it, and so on."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)
