"""`Agreement`: exchanges numbers with the other workers, and returns the largest ones.

A list of numbers comes in.  The list that goes out has, at each index, the largest number of all
workers.  It is the same on all workers, so all of them make the same decision from it.  The numbers
travel over the lifeline, not through collectives.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

from grace_tf.transports.lifeline import lifeline

_TOPIC = "measured"

_heard: dict[tuple[str, int], dict[int, list[float]]] = collections.defaultdict(dict)


class Agreement:
    """The exchanges of one Aggregator.

    Attributes:
      label: identifies the Aggregator's plan.  It is the same on all workers.
    """

    def __init__(self) -> None:
        self.label = ""
        self._count = 0  # of all workers so far

    def largest(self, measured: Sequence[float]) -> list[float]:
        """Returns a list: the number at index i is the largest `measured[i]` of all workers.

        The call waits until all workers have called it.  If `measured[i]` is NaN on one worker, the
        result at index i is NaN.

        Raises RuntimeError if a worker is lost or late.
        """
        line = lifeline.current()
        self._count += 1
        key = (self.label, self._count)
        line.on(_TOPIC, _hear)
        line.tell(_TOPIC, [*key, [repr(float(each)) for each in measured]])
        line.until(lambda: len(_heard[key]) == line.size - 1, line.patience)
        with line.changed:
            heard = _heard[key]
            silent = [w for w in range(line.size) if w != line.rank and w not in heard]
            if silent:
                line.check()
                raise RuntimeError(
                    f"Worker {silent[0]} of {line.size} did not tell what it has measured within "
                    f"{line.patience:g} s: all workers must take the same steps."
                )
            return joined([measured, *_heard.pop(key).values()])


def joined(table: Sequence[Sequence[float]]) -> list[float]:
    """The largest number of each column; NaN where a row has NaN."""
    return [math.nan if any(map(math.isnan, each)) else max(each) for each in zip(*table)]


def _hear(worker: int, message: list) -> None:
    label, number, measured = message
    _heard[str(label), int(number)][worker] = [float(each) for each in measured]
