"""Gradients as they come from a tape: which are there, and of what shape.

A gradient and its variable become one tensor of static shape, or rows, and the spec from which
plans are made.
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
    """Whether a gradient is sparse: rows of a table."""
    return isinstance(grad, tf.IndexedSlices)


def spec_of(grad: tf.Tensor | tf.IndexedSlices, variable: Any) -> tf.TensorSpec:
    """Shape and dtype of what `gradient_of` gave, as if it were dense."""
    return tf.TensorSpec(variable.shape if is_rows(grad) else grad.shape, grad.dtype)


def gradient_of(grad: Any, variable: Any) -> tf.Tensor | tf.IndexedSlices:
    """The gradient: rows, or one tensor; of its variable's shape where it has none itself."""
    if is_rows(grad):
        if grad.dense_shape is not None:
            return grad
        shape = tf.constant(tuple(variable.shape), tf.int64)
        return tf.IndexedSlices(grad.values, grad.indices, shape)
    grad = tf.convert_to_tensor(grad)
    if grad.shape.is_fully_defined():
        return grad
    return tf.ensure_shape(grad, variable.shape)


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
