"""Notes which callback has set the learning rate last, so that an error can name it.

A look at the rate follows each of the user's callbacks, where epochs begin and end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grace_tf.aggregation.consistency import weight_drift
from grace_tf.keras.flavours import callback
from grace_tf.line.inputs import local, plain

_rate: float | None = None  # at the last look
_set_by = ""  # "" where no callback has set it since `fit` began, or it is not known


class _Look:
    """Looks at the rate after the calls of another callback; before all others without one."""

    def __init__(self, after: Any = None) -> None:
        super().__init__()
        self._after = after

    def on_epoch_begin(self, epoch, logs=None):
        self._look()

    def on_epoch_end(self, epoch, logs=None):
        self._look()

    def _look(self) -> None:
        global _rate, _set_by
        rate = _rate_of(self.model.optimizer)
        if rate != _rate and self._after is not None:
            _set_by = type(self._after).__name__
        _rate = rate


def looking(model: Any, callbacks: Sequence[Any]) -> list[Any]:
    """These callbacks of a call of `fit`, with looks at the learning rate between them."""
    global _set_by
    _set_by = ""
    looks = ((one, callback(_Look, model, one)) for one in callbacks)
    return [callback(_Look, model), *(each for pair in looks for each in pair)]


def _rate_of(optimizer: Any) -> float | None:
    """The optimizer's learning rate; None where it is no variable, as with a schedule."""
    rate = getattr(optimizer, "learning_rate", None)
    rate = None if rate is None else local(plain(rate))
    return float(rate.numpy()) if isinstance(rate, tf.Variable) else None


def install() -> None:
    """Gives the comparison of the workers' settings the name of the callback."""
    weight_drift.rate_set_by = lambda: _set_by
