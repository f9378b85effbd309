"""Gradients as they come from a tape, before the line: which are any, and of what shape.

In come a gradient and its variable; out goes one tensor of static shape, from which plans are made.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def is_gradient(grad: Any, variable: Any) -> bool:
    """Whether something came for this variable that workers may add up.

    What Keras' float8 layers give for a scale is its next value, which is the worker's own.
    """
    return grad is not None and not getattr(variable, "overwrite_with_gradient", False)


def dense_gradient(grad: Any, variable: Any) -> tf.Tensor:
    """The gradient as one tensor, IndexedSlices too, of its variable's shape where it has none."""
    grad = tf.convert_to_tensor(grad)
    if grad.shape.is_fully_defined():
        return grad
    return tf.ensure_shape(grad, variable.shape)
