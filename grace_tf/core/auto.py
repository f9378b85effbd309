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
    `quality` says which further arms there are.  `scouts` are the numbers of two methods, of which
    a training uses one and times it first.  With the quality "safe", the second, whose error is
    smaller, is used where payloads travel in two hops, since these compress twice.
    """

    quality: str = "safe"
    scouts: tuple[int, int] = (0, 0)

    chosen = True
    BASELINES = 2

    def scout(self, two_hops: bool) -> int:
        """The number of the method that is timed first."""
        return self.scouts[two_hops and self.quality == "safe"]

    def arms(self, two_hops: bool) -> tuple[int, ...]:
        """The numbers of the arms to choose from: all of them, but of the scouts only one."""
        scout = self.scout(two_hops)
        return tuple(a for a in range(len(self.stages)) if a == scout or a not in self.scouts)

    def then(self, **parts: Any) -> Scheduled:
        raise ValueError("auto chooses among whole methods, so it has no parts to compress.")

    def __str__(self) -> str:
        return head("auto", {} if self.quality == "safe" else {"quality": self.quality})
