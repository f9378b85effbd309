"""`Auto`: several compressors, of which a training takes the fastest on its own network."""

from __future__ import annotations

import dataclasses
from typing import Any

from grace_tf.core.scheduled import Scheduled
from grace_tf.core.specs import head


@dataclasses.dataclass(frozen=True)
class Auto(Scheduled):
    """What `wrap(optimizer, "auto")` chooses from: its arms are the stages, in their order.

    A stage is found by its number, where that of a schedule is found by the step.  The first
    `BASELINES` arms are those that a choice must beat: no compression, and half the bytes.
    `quality` says which further arms there are, `levels[arm]` the least quality that admits an arm;
    it is "" for the first ones.
    """

    quality: str = "safe"
    levels: tuple[str, ...] = ()

    chosen = True
    BASELINES = 2

    @property
    def scout(self) -> int:
        """The number of the method that a training times first: the last one of `safe`."""
        safe = self.levels[self.BASELINES]
        return max(arm for arm, level in enumerate(self.levels) if level == safe)

    def then(self, **parts: Any) -> Scheduled:
        raise ValueError("auto chooses among whole methods, so it has no parts to compress.")

    def __str__(self) -> str:
        return head("auto", {} if self.quality == "safe" else {"quality": self.quality})
