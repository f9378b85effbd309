"""Joins many tensors into one, and splits it again.

Where native operations run, each direction is a single node, whatever the number of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import low_rank


def join(xs: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Concatenates float32 tensors of any shapes.

    Returns: (a tensor of rank 1, in which they lie end to end; a bool, whether all are finite).
    """
    # Of matrices without factors the operations of low rank only copy.
    _, flat, finite = low_rank.project(xs, None, 1.0, [], _sizes([x.shape for x in xs]))
    return flat, finite


def split(
    flat: tf.Tensor, shapes: Sequence[Sequence[int]], factor: float = 1.0
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Splits a tensor of rank 1 into consecutive tensors of these shapes, each times `factor`.

    Returns: (the tensors; a bool, whether all are finite).
    """
    shapes = [tf.TensorShape(shape) for shape in shapes]
    none = tf.zeros([0])
    return low_rank.expand(none, none, flat, factor, _sizes(shapes), shapes)


def _sizes(shapes: Sequence[tf.TensorShape]) -> list[low_rank.MatrixSize]:
    return [low_rank.MatrixSize(shape.num_elements(), 1, 0) for shape in shapes]
