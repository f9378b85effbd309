"""What stands around Keras' `fit` and `train_on_batch`.

In comes the user's call, and the same call goes on to Keras.  While it runs, `trained_model` tells
which model is being trained: an optimizer does not know, and a model holds variables that its
optimizer never sees (frozen layers, BatchNorm's statistics).
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import keras

from grace_tf import agreement
from grace_tf.keras import first_step
from grace_tf.surroundings import several

_models: list[Any] = []  # being trained, the innermost last; replicas trace in other threads


def trained_model() -> Any:
    """The model that `fit` or `train_on_batch` trains now, or None."""
    return _models[-1] if _models else None


def _around(own: Callable) -> Callable:
    @functools.wraps(own)
    def around(self, *args, **kwargs):
        _models.append(self)
        try:
            if several() is not None:
                first_step.agree_before(self, several())
            return own(self, *args, **kwargs)
        finally:
            _models.pop()

    return around


def install() -> None:
    """Puts this around the methods of `keras.Model`."""
    agreement.model_in_training = lambda: first_step.values_of(trained_model())
    for name in ("fit", "train_on_batch"):
        setattr(keras.Model, name, _around(getattr(keras.Model, name)))
