"""`Schedule`: a value for every stage of the training; stages begin at given steps."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping
from typing import Any

from grace_tf.core.hyperparameters import check_fraction, check_integer

WARM = 0.25  # DGC's warm-up begins with this ratio: a sparsity of 75 %
_STAGES = 4  # of the warm-up, before the final ratio


@dataclasses.dataclass(frozen=True)
class Schedule:
    """`values[i]` from step `boundaries[i]` on, counted from 0.

    A hyperparameter or a compressor may be given as a schedule; `grace_tf.schedules` makes them.

    Raises ValueError or TypeError unless the boundaries are 0 and increasing integers after it.
    """

    boundaries: tuple[int, ...]
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        for step in self.boundaries:
            check_integer("A schedule", "the first step of a stage", step, 0)
        increasing = all(a < b for a, b in zip(self.boundaries, self.boundaries[1:]))
        if self.boundaries[:1] != (0,) or not increasing:
            firsts = ", ".join(map(str, self.boundaries)) or "none"
            raise ValueError(
                f"The stages of a schedule begin at step 0 and at increasing steps after it, "
                f"not at {firsts}."
            )

    def at(self, step: int) -> Any:
        """The value of this step."""
        return self.values[bisect.bisect_right(self.boundaries, step) - 1]


def piecewise(values: Mapping[int, Any]) -> Schedule:
    """A schedule from a mapping of the first step of each stage to its value."""
    if not isinstance(values, Mapping):
        raise TypeError(f"A schedule is given as {{first step: value}}, not {values!r}.")
    return Schedule(tuple(values), tuple(values.values()))


def warm_up(steps: int, ratio: float, after: int = 0) -> Schedule:
    """DGC's ratios: from 0.25 down to `ratio`, by equal factors in four equal stages.

    Args:
      steps: the number of steps of the four stages together.
      ratio: the ratio after them.
      after: the number of steps before them, with the ratio 0.25 too.
    Returns: a schedule; its ratios have three digits, as in the paper.
    Raises: ValueError or TypeError for less than 4 steps or a ratio that is not below 0.25.
    """
    check_integer("A warm-up", "its number of steps", steps, _STAGES)
    check_fraction("A warm-up", "its final ratio", ratio)
    if ratio >= WARM:
        raise ValueError(f"A warm-up goes from the ratio {WARM} down, so it cannot end at {ratio}.")
    factor = (ratio / WARM) ** (1 / _STAGES)
    ratios = [float(f"{WARM * factor**i:.3g}") for i in range(_STAGES)]
    firsts = [after + steps * i // _STAGES for i in range(1, _STAGES + 1)]
    return Schedule((0, *firsts), (*ratios, ratio))
