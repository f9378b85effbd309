"""What native operations on lists return: shapes for their outputs, and shapes as attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

Tensors = Sequence[tf.Tensor]
ResidualsOut = list | None


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


def vector(x: tf.Tensor, n: int) -> tf.Tensor:
    x.set_shape([n])
    return x


def encoded(outputs: Sequence, lengths: Sequence[int], residuals: Tensors) -> tuple:
    """An encoder's outputs: parts of these lengths, then residuals_out and finite."""
    *parts, residuals_out, finite = outputs
    parts = shaped_like(parts, [[n] for n in lengths])
    return *parts, residuals_like(residuals_out, residuals), scalar(finite)


def decoded(outputs: Sequence, shapes: Sequence) -> tuple[list[tf.Tensor], tf.Tensor]:
    """A decoder's outputs: (totals, finite)."""
    totals, finite = outputs
    return shaped_like(totals, shapes), scalar(finite)


def dims_of(shapes: Sequence[Sequence[int]]) -> dict:
    """Shapes as attributes of a node, which cannot hold a list of shapes."""
    return {
        "ranks": [len(shape) for shape in shapes],
        "dims": [int(size) for shape in shapes for size in shape],
    }


def totals_of(shapes: Sequence[Sequence[int]]) -> dict:
    """The attributes that tell how many totals a decoder gives, and their shapes."""
    return {"N": len(shapes), **dims_of(shapes)}


def counted(counts: tf.Tensor | None, empty: Sequence[int]) -> dict:
    """How many entries count, as an input and an attribute of a node; of this shape for None."""
    given = tf.zeros(empty, tf.int32) if counts is None else counts
    return {"counts": given, "counted": counts is not None}


def sizes_of(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The numbers of elements of tensors of these shapes."""
    return [math.prod(shape) for shape in shapes]
