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
      about: a program that calls `fit` again and again, or does not know the number, is taken to be
        half-way.
      at_most: infinite where nobody knows.
      again: whether the call of `fit` can trace its step again.
    """

    about: float
    at_most: float
    again: bool


# Returns the call of `fit` that takes the steps of a tuner.
call_of: Callable[[Any], Call] = lambda tuner: Call()  # noqa: E731


def fewest_planned(call: Call, agreement: Agreement) -> float:
    """The steps of the call, of the worker that plans fewest."""
    (most,) = agreement.largest([-call.steps])
    return -most


def rest_of(call: Call, taken: int, agreement: Agreement) -> Rest:
    """What is left after so many steps of the training, for the worker that knows of fewest."""
    before, known = taken - call.done, math.isfinite(call.steps)
    about = max(call.steps - call.done, before) if known else taken
    at_most = call.steps - call.done if known and before <= 0 else math.inf
    fewest, most, never = agreement.largest([-about, -at_most, not call.again])
    return Rest(-fewest, -most, not never)
