"""A momentum is kept once: by the memory or by the optimizer."""

from __future__ import annotations

import warnings
from typing import Any

from grace_tf.core.specs import spec_of
from grace_tf.keras.optimizers import parts
from grace_tf.line.settings import Settings


def refuse_second_momentum(optimizer: Any, wanted: Settings) -> None:
    """Raises ValueError where a memory and the optimizer, or one that it has, both have a momentum.

    Optimizers that smooth gradients in another way, as Adam does, are served with a warning.
    """
    memories = [memory for _, _, memory in wanted.routes if memory.has_momentum]
    if not memories:
        return
    spec = spec_of(memories[0])
    for each in (optimizer, *parts(optimizer)):
        name = type(each).__name__
        own = _number(each, "momentum")
        if own:
            raise ValueError(
                f"The memory {spec!r} has a momentum of its own, so that {name} must have none: "
                f"write {name}(..., momentum=0.0) and give its {own:.6g} to the memory, as in "
                f'memory="{memories[0].name}:momentum={own:.6g}".'
            )
        if _number(each, "beta_1"):
            warnings.warn(
                f"The memory {spec!r} has a momentum of its own, and {name} smooths its aggregates "
                f'once more by beta_1; memory="residual" leaves that to {name} alone.',
                stacklevel=4,
            )


def _number(optimizer: Any, name: str) -> float:
    """A hyperparameter, which legacy optimizers may hold as a variable or a function; 0 if none."""
    value = getattr(optimizer, name, None)
    value = value() if callable(value) else value
    return 0.0 if value is None else float(value)
