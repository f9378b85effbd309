"""Reads gradients as a tape returns them: which exist, their shapes, and whether they are rows.

It turns a gradient and its variable into one tensor of static shape, or rows, and the spec from
which plans are made.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def is_gradient(grad: Any, variable: Any) -> bool:
    """Whether this variable has a gradient that workers may add up.

    For a scale, Keras' float8 layers return its next value instead, which workers must not add up.
    """
    return grad is not None and not getattr(variable, "overwrite_with_gradient", False)


def is_rows(grad: Any) -> bool:
    """Whether a gradient is sparse: rows of a table."""
    return isinstance(grad, tf.IndexedSlices)


def spec_of(grad: tf.Tensor | tf.IndexedSlices, variable: Any) -> tf.TensorSpec:
    """Shape and dtype of what `gradient_of` gave, as if it were dense."""
    return tf.TensorSpec(variable.shape if is_rows(grad) else grad.shape, grad.dtype)


def gradient_of(grad: Any, variable: Any) -> tf.Tensor | tf.IndexedSlices:
    """The gradient as rows or one tensor; without a static shape it gets its variable's.

    Raises TypeError if `grad` is no dense tensor or rows of numbers, ValueError if its shape does
    not fit the variable.
    """
    if is_rows(grad) and not (tf.is_tensor(grad.values) and tf.is_tensor(grad.indices)):
        # Keras takes NumPy's arrays there, too.
        parts = map(tf.convert_to_tensor, (grad.values, grad.indices))
        grad = tf.IndexedSlices(*parts, grad.dense_shape)
    _check(grad, variable)
    if is_rows(grad):
        if grad.dense_shape is not None:
            return grad
        shape = tf.constant(tuple(variable.shape), tf.int64)
        return tf.IndexedSlices(grad.values, grad.indices, shape)
    grad = tf.convert_to_tensor(grad)
    if grad.shape.is_fully_defined():
        return grad
    return tf.ensure_shape(grad, variable.shape)


def _check(grad: Any, variable: Any) -> None:
    if isinstance(grad, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(
            f"The gradient of {_name(variable)} is a {type(grad).__name__}, but gradients are "
            "dense tensors or tf.IndexedSlices: make it one of these."
        )
    values = grad.values if is_rows(grad) else tf.convert_to_tensor(grad)
    if not (values.dtype.is_floating or values.dtype.is_integer or values.dtype.is_complex):
        raise TypeError(
            f"The gradient of {_name(variable)} has the dtype {values.dtype.name}, but gradients "
            "are numbers."
        )
    # The first axis of rows counts the rows, not those of the table.
    wanted = tf.TensorShape(variable.shape)
    rows = is_rows(grad) and bool(wanted.rank)
    if not values.shape.is_compatible_with([None, *wanted[1:]] if rows else wanted):
        raise ValueError(
            f"The gradient of {_name(variable)} has {'rows of ' * rows}the shape "
            f"{tuple(values.shape[1:] if rows else values.shape)}, but the variable has "
            f"{tuple(wanted)}: give the gradients in the order of the variables."
        )


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or getattr(plain(variable), "name", "a tensor"))


def plain(variable: Any) -> Any:
    """The tf.Variable that a Keras 3 variable holds; a tf.Variable is returned unchanged."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "_value", variable)


def local(variable: Any) -> Any:
    """A distributed variable's first component in this process; other variables unchanged."""
    return getattr(variable, "_primary", variable)


def has_value(variable: Any) -> bool:
    """Whether the variable can be read: False where the step that makes it is still traced."""
    with tf.init_scope():
        return bool(local(plain(variable)).is_initialized())


def device_of(variable: Any) -> str | None:
    """The name of the variable's device; None where it has none."""
    device = getattr(variable, "device", None)
    return device if isinstance(device, str) and device else None
