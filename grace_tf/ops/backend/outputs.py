"""What native operations on lists return: shapes for their outputs, and shapes as attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue

Tensors = Sequence[tf.Tensor]
ResidualsOut = list | None


def shaped_like(outputs: Tensors, shapes: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    # The C API's shape functions cannot read the attributes that tell the shapes.
    for output, shape in zip(outputs, shapes):
        output.set_shape(shape)
    if len(outputs):
        tell_shapes(outputs[0])
    return list(outputs)


def tell_shapes(output: tf.Tensor) -> None:
    """Writes the shapes of all outputs of a graph's node on the node, once they are known.

    TensorFlow's optimiser reads them there.  Where a node may still learn a shape, it infers all
    shapes of the node again for each input that has learnt one, which takes seconds for a thousand.
    """
    if tf.executing_eagerly():
        return
    node = output.op
    shapes = [each.shape for each in node.outputs]
    if all(shape.is_fully_defined() for shape in shapes):
        listed = AttrValue.ListValue(shape=[shape.as_proto() for shape in shapes])
        node._set_attr("_output_shapes", AttrValue(list=listed))


def residuals_like(residuals_out: Tensors, residuals: Tensors) -> ResidualsOut:
    return shaped_like(residuals_out, [r.shape for r in residuals]) if residuals else None


def scalar(x: tf.Tensor) -> tf.Tensor:
    x.set_shape([])
    tell_shapes(x)
    return x


def vector(x: tf.Tensor, n: int) -> tf.Tensor:
    x.set_shape([n])
    tell_shapes(x)
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
