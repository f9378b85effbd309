"""Joins many tensors into one tensor, and splits such a tensor into many.

With the native operations, joining is one node of the graph, and so is splitting, for any number of
tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import low_rank


def join(xs: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Concatenates the elements of float32 tensors of any shapes.

    Returns: (a tensor of rank 1 with all elements in order; a bool, whether all are finite).
    """
    # Of matrices without factors the operations of low rank only copy.
    _, flat, _, finite = low_rank.project(xs, None, 1.0, [], _sizes([x.shape for x in xs]))
    return flat, finite


def split(
    flat: tf.Tensor, shapes: Sequence[Sequence[int]], factor: float = 1.0
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Cuts a tensor of rank 1 into tensors of these shapes, and multiplies them by `factor`.

    The first tensor gets the first elements of `flat`, the next one those that follow, and so on.

    Returns: (the tensors; a bool, whether all are finite).
    """
    shapes = [tf.TensorShape(shape) for shape in shapes]
    none = tf.zeros([0])
    return low_rank.expand(none, none, flat, factor, _sizes(shapes), shapes)


def _sizes(shapes: Sequence[tf.TensorShape]) -> list[low_rank.MatrixSize]:
    return [low_rank.MatrixSize(shape.num_elements(), 1, 0) for shape in shapes]
