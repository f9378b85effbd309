"""What lies behind the variables of Keras and tf.distribute."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def plain(variable: Any) -> Any:
    """The tf.Variable that a Keras 3 variable holds; a tf.Variable is returned unchanged."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "_value", variable)


def local(variable: Any) -> Any:
    """The first component in this process of a distributed variable; another variable itself."""
    return getattr(variable, "_primary", variable)


def has_value(variable: Any) -> bool:
    """Whether the variable can be read; not where it was made in a step that is still traced."""
    with tf.init_scope():
        return bool(local(plain(variable)).is_initialized())


def device_of(variable: Any) -> str | None:
    """The name of the variable's device, None where it has none of its own."""
    device = getattr(variable, "device", None)
    return device if isinstance(device, str) and device else None
