"""Gradients as they come from a tape, before the line: which are any, and of what shape.

In come a gradient and its variable; out goes a tensor of static shape, from which plans are made,
or rows (tf.IndexedSlices), which stay rows until a plan says otherwise.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def is_gradient(grad: Any, variable: Any) -> bool:
    """Whether something came for this variable that workers may add up.

    What Keras' float8 layers give for a scale is its next value, which is the worker's own.
    """
    return grad is not None and not getattr(variable, "overwrite_with_gradient", False)


def is_rows(grad: Any) -> bool:
    """Whether a gradient holds some rows of its variable only."""
    return isinstance(grad, tf.IndexedSlices)


def tensor_or_rows(grad: Any, variable: Any) -> tf.Tensor | tf.IndexedSlices:
    """The gradient as a tensor of its variable's shape, unless it is rows."""
    return grad if is_rows(grad) else tensor(grad, variable.shape)


def tensor(grad: Any, shape: Any) -> tf.Tensor:
    """The gradient as one tensor, rows too, of this shape where its own is not static."""
    grad = tf.convert_to_tensor(grad)
    return grad if grad.shape.is_fully_defined() else tf.ensure_shape(grad, shape)
