"""Compressors that change with the step: one frozen compressor for each stage.

A `Scheduled` is made from hyperparameters of which some are schedules, or from compressors with the
steps at which they begin.  It holds plain compressors and the first step of each.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from grace_tf.core import compressor as contract
from grace_tf.core.compressor import Compressor
from grace_tf.core.memory import Memory
from grace_tf.core.schedule import Schedule, warm_up
from grace_tf.core.specs import head, with_firsts, with_stages
from grace_tf.core.then import Then

# Keys of a spec, and keywords, that every method takes beside its hyperparameters.
KEYS = ("warmup", "dense")


@dataclasses.dataclass(frozen=True)
class Stage:
    """The compressor that is used from step `first` on, and its memory."""

    first: int
    compressor: Compressor
    memory: Memory


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """A compressor for every step; `wrap` and the other entry points take it as a compressor.

    `stages` are in the order of their steps; no stage equals the one before it.
    """

    stages: tuple[Stage, ...]

    chosen = False  # whether a training chooses among the stages, and steps do not

    @staticmethod
    def of(stages: Sequence[tuple[int, Compressor | Scheduled, Memory]]) -> Scheduled:
        """Makes it from (first step, compressor, memory); a `Scheduled` among them is unfolded."""
        found: list[Stage] = []
        ends = [first for first, _, _ in stages[1:]] + [None]
        for (first, compressor, memory), end in zip(stages, ends):
            if isinstance(compressor, Scheduled):
                if compressor.chosen:
                    raise ValueError(
                        f"{compressor} chooses by itself and is no stage of a schedule."
                    )
                inner = [compressor.stage(first)]
                inner += [stage for stage in compressor.stages if stage.first > first]
                own = [(max(first, s.first), s.compressor, s.memory) for s in inner]
            else:
                own = [(first, compressor, memory)]
            for step, c, m in own:
                different = not found or (c, m) != (found[-1].compressor, found[-1].memory)
                if different and (end is None or step < end):
                    found.append(Stage(step, c, m))
        return Scheduled(tuple(found))

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The first steps of the stages."""
        return tuple(stage.first for stage in self.stages)

    def stage(self, step: int) -> Stage:
        """The stage of this step."""
        return self.stages[bisect.bisect_right(self.boundaries, step) - 1]

    def at(self, step: int) -> Compressor:
        """The compressor of this step."""
        return self.stage(step).compressor

    def then(self, **parts: Any) -> Scheduled:
        """Compresses parts of every stage's payload further, as `Compressor.then` does."""
        return contract.compose(self, parts)

    def remembering(self, memory: Memory | None) -> Scheduled:
        """The same stages with this memory in each of them; unchanged for None."""
        if memory is None:
            return self
        return Scheduled.of([(s.first, s.compressor, memory) for s in self.stages])

    def __str__(self) -> str:
        """The spec of an equal schedule: of hyperparameters where only these change."""
        compressors = [stage.compressor for stage in self.stages]
        outers = [getattr(c, "outer", c) for c in compressors]
        parts = {getattr(c, "inner", ()) for c in compressors}
        if len({type(outer) for outer in outers}) > 1 or len(parts) > 1:
            return with_firsts(zip(compressors, self.boundaries))
        fields = {}
        for field in dataclasses.fields(outers[0]):
            values = [getattr(outer, field.name) for outer in outers]
            schedule = _changes(self.boundaries, values)
            if schedule != field.default:
                fields[field.name] = schedule
        return with_stages(head(outers[0].name, fields), parts.pop())


def _changes(boundaries: Sequence[int], values: Sequence[Any]) -> Any:
    """The values as a schedule, or the only one."""
    changes = [i for i, value in enumerate(values) if not i or value != values[i - 1]]
    if len(changes) == 1:
        return values[0]
    return Schedule(tuple(boundaries[i] for i in changes), tuple(values[i] for i in changes))


def unscheduled(compressor: Compressor | Scheduled) -> Compressor:
    """Returns the compressor itself; raises ValueError for a schedule."""
    if isinstance(compressor, Scheduled):
        raise ValueError(f"{compressor} changes with the step: name the compressor of one stage.")
    return compressor


def plain_stages(
    name: str, given: Mapping[str, Any], parameters: Mapping[str, Any]
) -> tuple[int, list[tuple[int, dict[str, Any]]]]:
    """Hyperparameters, of which some may be schedules, stage by stage.

    Args:
      name: the method's name, for messages.
      given: hyperparameters, and the keys in `KEYS`.
      parameters: the method's hyperparameters with their defaults.
    Returns: (dense, stages): the number of uncompressed steps that come first, and
      (first step, plain hyperparameters) of each stage.
    Raises: TypeError or ValueError for a warm-up where there is no ratio, or a scheduled one.
    """
    given = dict(given)
    dense, warm = given.pop("dense", 0), given.pop("warmup", 0)
    for key, count in (("dense", dense), ("warmup", warm)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise TypeError(f"{name}: {key} is a number of steps, not {count!r}.")
    if warm:
        if "ratio" not in parameters:
            raise TypeError(f"{name} has no ratio, and warmup is a schedule of the ratio.")
        final = given.get("ratio", parameters["ratio"])
        if isinstance(final, Schedule):
            raise TypeError(f"{name}: ratio is a schedule already, so warmup cannot make it one.")
        given["ratio"] = warm_up(warm, final, after=dense)
    scheduled = [value for value in given.values() if isinstance(value, Schedule)]
    firsts = sorted({0, *(first for value in scheduled for first in value.boundaries)})
    stages = [
        (first, {k: v.at(first) if isinstance(v, Schedule) else v for k, v in given.items()})
        for first in firsts
    ]
    return dense, stages


def joined(stages: Sequence[tuple[int, Any, Any]]) -> tuple[Compressor | Scheduled, Memory]:
    """(`Scheduled.of(stages)`, the last memory); the plain compressor where all are the same."""
    made = Scheduled.of(stages)
    last = made.stages[-1]
    return made if len(made.stages) > 1 else last.compressor, last.memory


def composite(outer: Any, inner: Sequence[tuple[str, Any]], memory: Any) -> Scheduled:
    """The composite of compressors of which some are scheduled, with `memory(compressor)` each."""
    every = [outer, *(stage for _, stage in inner)]
    firsts = {first for each in every if isinstance(each, Scheduled) for first in each.boundaries}

    def at(each: Any, first: int) -> Compressor:
        return each.at(first) if isinstance(each, Scheduled) else each

    stages = []
    for first in sorted(firsts):
        base, parts = at(outer, first), tuple((part, at(each, first)) for part, each in inner)
        made = Then(base.outer, base.inner + parts) if isinstance(base, Then) else Then(base, parts)
        stages.append((first, made, memory(made)))
    return Scheduled.of(stages)
