"""What native operations on lists return: shapes for their outputs, and shapes as attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

import tensorflow as tf

Tensors = Sequence[tf.Tensor]
ResidualsOut = Optional[list]


def shaped_like(outputs: Tensors, shapes: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    # The C API's shape functions cannot read the attributes that tell the shapes.
    for output, shape in zip(outputs, shapes):
        output.set_shape(shape)
    return list(outputs)


def residuals_like(residuals_out: Tensors, residuals: Tensors) -> ResidualsOut:
    return shaped_like(residuals_out, [r.shape for r in residuals]) if residuals else None


def scalar(x: tf.Tensor) -> tf.Tensor:
    x.set_shape([])
    return x


def dims_of(shapes: Sequence[Sequence[int]]) -> dict:
    """Shapes as attributes of a node, which cannot hold a list of shapes."""
    return {
        "ranks": [len(shape) for shape in shapes],
        "dims": [int(size) for shape in shapes for size in shape],
    }


def sizes_of(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The numbers of elements of tensors of these shapes."""
    return [math.prod(shape) for shape in shapes]
