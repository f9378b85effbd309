"""Notes which callback sets `model.stop_training`, so that another worker's error can name it."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from grace_tf.keras.flavours import Flavour, is_a

_NAME = "stop_training"

_stopped_by: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


class _StopTraining:
    """The attribute `stop_training` of a Model, which notes who sets it."""

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self
        try:
            return vars(model)[_NAME]
        except KeyError:
            raise AttributeError(_NAME) from None

    def __set__(self, model: Any, value: Any) -> None:
        vars(model)[_NAME] = value
        if value:
            _stopped_by[model] = _callback_in(sys._getframe())

    def __delete__(self, model: Any) -> None:
        del vars(model)[_NAME]


def _callback_in(frame: FrameType | None) -> str:
    """The class of the callback that Keras is calling here, or "a callback"."""
    while frame is not None:
        if is_a(frame.f_locals.get("self"), "callbacks.CallbackList"):
            callback = frame.f_locals.get("callback")
            return "a callback" if callback is None else type(callback).__name__
        frame = frame.f_back
    return "a callback"


def stopped_by(model: Any) -> str:
    """The class of the callback that has set the model's `stop_training`; "" where it is False."""
    return _stopped_by.get(model, "a callback") if model.stop_training else ""


def install(keras: Flavour) -> None:
    """Replaces the attribute `stop_training` of the class Model of a Keras."""
    keras.module.Model.stop_training = _StopTraining()
