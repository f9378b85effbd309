"""Lets Keras trace the step of a model again in the middle of `fit`, where "auto" asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grace_tf.keras.classes import reducing


def traced_again(model: Any, make: Callable[[Any], Any]) -> Callable | None:
    """The new `train_function` of the model; None where the traced one is kept.

    All workers get the same answer in the same step.

    Args:
      make: `make_train_function` of Keras.
    """
    aggregators = [each._grace for each in reducing(model.optimizer)]
    outdated = [each for each in aggregators if each is not None and each.outdated]
    if not any([each.renew() for each in outdated]):
        return None
    model.train_function = model.train_tf_function = None
    make(model)
    return model.train_function
