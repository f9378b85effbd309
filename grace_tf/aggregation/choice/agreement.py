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
    """The exchanges of one Aggregator."""

    def __init__(self) -> None:
        self._label = ""
        self._count = 0  # of the exchanges so far

    def name(self, label: str) -> None:
        """Sets the name that the messages of this Aggregator carry, the same on all workers.

        Only the first call has an effect: later, one worker may trace a step again, with another
        plan, while the other workers do not.
        """
        self._label = self._label or label

    def largest(self, measured: Sequence[float]) -> list[float]:
        """Returns a list: the number at index i is the largest `measured[i]` of all workers.

        The call waits until all workers have called it.  If `measured[i]` is NaN on one worker, the
        result at index i is NaN.

        Raises RuntimeError if a worker is lost, late or not connected.
        """
        line = lifeline.current()
        if not line.joined(0.0 if line.warned else line.patience):
            line.check()
            raise RuntimeError(
                f"Worker {line.rank} of {line.size} is not connected to all other workers, and "
                '"auto" must tell them what it has measured: let workers reach each other at any '
                "port, or name a method."
            )
        self._count += 1
        key = (self._label, self._count)
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
