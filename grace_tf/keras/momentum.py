"""Refuses a momentum of the optimizer beside the momentum of a memory."""

from __future__ import annotations

import warnings
from typing import Any

from grace_tf.core.specs import spec_of
from grace_tf.keras.optimizers import parts
from grace_tf.line.settings import Settings


def refuse_second_momentum(optimizer: Any, wanted: Settings) -> None:
    """Raises ValueError where a memory and the optimizer, or an inner one, both have a momentum.

    Optimizers that smooth gradients in another way, such as Adam, get a warning.
    """
    memories = [memory for _, _, memory in wanted.routes if memory.has_momentum]
    if not memories:
        return
    spec = spec_of(memories[0])
    for each in (optimizer, *parts(optimizer)):
        name = type(each).__name__
        momentum = _number(each, "momentum")
        if momentum:
            raise ValueError(
                f"The memory {spec!r} has a momentum of its own, so that {name} must have none: "
                f"write {name}(..., momentum=0.0) and give its {momentum:.6g} to the memory, as in "
                f'memory="{memories[0].name}:momentum={momentum:.6g}".'
            )
        if _number(each, "beta_1"):
            warnings.warn(
                f"The memory {spec!r} has a momentum of its own, and {name} smooths its aggregates "
                f'once more by beta_1; memory="residual" leaves that to {name} alone.',
                stacklevel=4,
            )


def _number(optimizer: Any, name: str) -> float:
    """A hyperparameter's value, in legacy optimizers a variable or function perhaps; 0 if none."""
    value = getattr(optimizer, name, None)
    value = value() if callable(value) else value
    return 0.0 if value is None else float(value)
