"""`Guard`: excludes methods of "auto" whose error or residual is too large.

The error and the residual of a measured step come in, each the largest of all workers.  A reason to
exclude the method for the rest of the training goes out, or None.  The guard does not depend on
clocks or on the number of the worker.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from grace_tf.aggregation.measure.alarms import GROWING, LARGE

# A method is excluded after STRIKES measured steps in a row whose error is above SLACK times the
# bound, or after one above FAR times the bound.  An estimated error may be a few percent off.
SLACK, STRIKES, FAR = 1.1, 3, 4.0


@dataclasses.dataclass
class _Record:
    """What the last measured steps of a method have shown."""

    high: int = 0  # steps in a row whose error was above the bound
    growing: int = 0  # steps in a row in which the residual grew
    residual: float = math.nan  # of the last one


class Guard:
    """The records of the arms of one training.  An arm is one of the methods that "auto" may use.

    Args:
      most: by arm, the largest vNMSE that is allowed; None where a memory makes up for it.
      quality: as text for a sentence.
    """

    def __init__(self, most: Sequence[float | None], quality: str) -> None:
        self._most, self._quality = most, quality
        self._records: dict[int, _Record] = {}

    def judge(
        self, arm: int, error: float, residual: float, largest: float | None = None
    ) -> str | None:
        """Says why this arm must not be used any more; None if it may be used.

        Args:
          arm: its number.
          error: the vNMSE of a measured step; NaN where it is unknown.
          residual: ‖residual‖ / ‖gradient‖ of that step; NaN without a residual.
          largest: the residual that the method's own theory allows; None where it says nothing.
        """
        record = self._records.setdefault(arm, _Record())
        most = self._most[arm]
        if most is not None and not math.isnan(error):
            record.high = record.high + 1 if error > SLACK * most else 0
            if error > FAR * most or record.high == STRIKES:
                times = "" if error > FAR * most else f", {STRIKES} times one after the other"
                return (
                    f"the vNMSE of its mean is {error:.2g}, above the {most:g} that "
                    f"quality={self._quality} allows{times}"
                )
        if not math.isnan(residual):
            record.growing = record.growing + 1 if residual > record.residual else 0
            record.residual = residual
            if record.growing >= GROWING and residual > max(LARGE, largest or 0.0):
                return f"its residual is {residual:.3g} times the gradient and still grows"
        return None

    def forget(self, but: int | None = None) -> None:
        """Deletes the records of all arms except `but`."""
        self._records = {arm: each for arm, each in self._records.items() if arm == but}

    def saved(self, arm: int | None) -> tuple[int, int, int]:
        """Returns an arm's record as three integers, for `resume`; three zeros without a record."""
        record = self._records.get(arm)
        if record is None:
            return 0, 0, 0
        return record.high, record.growing, int(np.float64(record.residual).view(np.int64))

    def resume(self, arm: int | None, saved: Sequence[int]) -> None:
        """Deletes all records, then restores this arm's from the integers that `saved` returned."""
        self.forget()
        if arm is not None and any(saved):
            high, growing, residual = map(int, saved)
            self._records[arm] = _Record(high, growing, float(np.int64(residual).view(np.float64)))
