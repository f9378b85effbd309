"""How many steps of a training are left: `rest_of`, from the call of `fit` that takes a step.

grace_tf.keras sets `call_of`, by which a tuner asks for that call.  The answer is the same on all
workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from grace_tf.aggregation.choice.agreement import Agreement


class Call(NamedTuple):
    """A call of `fit`.

    Attributes:
      steps: of the whole call; infinite where the number is not known.
      done: steps of the call before this one.
      again: whether the call can trace its step again.
    """

    steps: float = math.inf
    done: int = 0
    again: bool = False


class Rest(NamedTuple):
    """The steps of a training that are left.

    Attributes:
      about: an estimate.  Where `fit` is called again and again, or its number of steps is not
        known, as many steps are expected as were taken so far.
      at_most: the largest possible number; infinite where it is not known.
      again: whether the call of `fit` can trace its step again.
    """

    about: float
    at_most: float
    again: bool


# Returns the call of `fit` that takes the steps of a tuner.
call_of: Callable[[Any], Call] = lambda tuner: Call()  # noqa: E731


def fewest_planned(call: Call, agreement: Agreement) -> float:
    """The number of steps of the call, on the worker that plans the fewest."""
    (most,) = agreement.largest([-call.steps])
    return -most


def rest_of(call: Call, taken: int, agreement: Agreement) -> Rest:
    """The steps that are left.  If workers differ, the smallest number of all workers counts.

    Args:
      taken: the number of steps of this training in this process so far.
    """
    before, known = taken - call.done, math.isfinite(call.steps)
    about = max(call.steps - call.done, before) if known else taken
    at_most = call.steps - call.done if known and before <= 0 else math.inf
    fewest, most, never = agreement.largest([-about, -at_most, not call.again])
    return Rest(-fewest, -most, not never)
