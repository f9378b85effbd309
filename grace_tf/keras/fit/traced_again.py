"""Lets Keras trace the step of a model again in the middle of `fit`, where "auto" asks for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from grace_tf.aggregation.choice.rest import Call
from grace_tf.keras.classes import reducing
from grace_tf.keras.fit import steps
from grace_tf.keras.optimizers import innermost


def call_of(model: Any, tuner: Any) -> Call:
    """The call of `fit` that trains this model and takes the steps of this tuner."""
    taken = steps.now()
    if taken is None:
        return Call()
    # A model may make its train_function in a way of its own, which does not ask.
    asks = model is not None and getattr(model.train_function, "counts_steps", False)
    again = asks and any(each.chooses_by(tuner) for each in _aggregators(model))
    # `fit` counts batches.  With gradient accumulation several batches make one step.
    optimizer = innermost(getattr(model, "optimizer", None))
    batches = getattr(optimizer, "gradient_accumulation_steps", None) or 1
    planned = math.inf if taken.planned is None else taken.planned // batches
    return Call(planned, taken.done // batches, again)


def _aggregators(model: Any) -> list[Any]:
    """The Aggregators of the model's own optimizer.

    An Aggregator in a `train_step` is not among them.
    """
    found = [] if model is None else [each._grace for each in reducing(model.optimizer)]
    return [each for each in found if each is not None]


def traced_again(model: Any, make: Callable[[Any], Any]) -> Callable | None:
    """The new `train_function` of the model; None where the traced one is kept.

    All workers get the same answer in the same step.

    Args:
      make: `make_train_function` of Keras.
    """
    outdated = [each for each in _aggregators(model) if each.outdated]
    if not any([each.renew() for each in outdated]):
        return None
    model.train_function = model.train_tf_function = None
    make(model)
    return model.train_function
