"""Warnings for a residual that grows without bound and for an error that is too large.

Each warning is given once and says what to do.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any

from grace_tf.line.plan import Plan

GROWING = 3  # consecutive samples in which the residual must have grown
LARGE = 10.0  # in gradient norms; there is no warning for a smaller residual


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a method's own theory allows.

    Attributes:
      vnmse: the largest error to expect; None if a memory corrects the error in later steps.
      residual: the largest residual to expect, in gradient norms; None if there is no bound.
    """

    vnmse: float | None
    residual: float | None


def limits_of(plan: Plan) -> Limits:
    """What the theory of a plan's methods allows.

    A nonexpansive method with E‖x − C(x)‖² ≤ β‖x‖² and β < 1 keeps ‖e‖ ≤ 2·√β/(1 − β)·G where no
    gradient is larger than G (Karimireddy et al. 2019, lemma 3).
    """
    groups = [group for group in plan.groups if not group.dense]
    bounds = [
        bound
        for group in groups
        for spec in group.specs
        if (bound := group.compressor.relative_bound(spec)) is not None
    ]
    remembered = any(group.memory.remembers for group in groups)
    contracting = [2 * math.sqrt(bound) / (1 - bound) for bound in bounds if bound < 1]
    return Limits(
        None if remembered or not groups else max([1.0, *bounds]),
        max(contracting) if contracting else None,
    )


class Alarms:
    """The warnings of a training.  Each kind is given once for each Aggregator."""

    def __init__(self) -> None:
        self._residuals: dict[int, list[float]] = collections.defaultdict(list)
        self._told: set[tuple[int, str]] = set()

    def of(self, number: int, metrics: Any, limits: Limits) -> list[str]:
        """Returns the warnings that a new measurement calls for; the list is often empty.

        Args:
          number: which Aggregator of the training was measured.
          metrics: the measurement, with `step`, `vnmse` and `residual`.
          limits: of the methods that the Aggregator uses.
        """
        sentences = []
        if metrics.residual is not None:
            last = self._residuals[number]
            last.append(metrics.residual)
            del last[: -GROWING - 1]
            grows = len(last) > GROWING and all(a < b for a, b in zip(last, last[1:]))
            if last[-1] > max(LARGE, limits.residual or 0) and grows:
                sentences += self._once(
                    *(number, "residual"),
                    f"At step {metrics.step} the residual is {last[-1]:.3g} times the gradient and "
                    f"still grows: more waits to be sent than the method sends; send more in a "
                    f"step (a larger ratio, rank or number of bits), or let the residual forget "
                    f'(memory="residual:decay=0.9").',
                )
        if metrics.vnmse is not None and limits.vnmse is not None and metrics.vnmse > limits.vnmse:
            sentences += self._once(
                *(number, "vnmse"),
                f"At step {metrics.step} the aggregated gradient has a vNMSE of "
                f"{metrics.vnmse:.3g}, above the {limits.vnmse:.3g} that its method allows: it is "
                "mostly noise; take more bits or a larger ratio, or a method with a residual.",
            )
        return sentences

    def _once(self, number: int, kind: str, sentence: str) -> list[str]:
        if (number, kind) in self._told:
            return []
        self._told.add((number, kind))
        return [sentence]
