"""Casts to numbers of 16 bits, on whole lists of tensors.

The reference is TensorFlow's own cast. Arguments and results are as in `grace_tf.ops.selection`.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import ResidualsOut, Tensors, decoded, encoded, totals_of
from grace_tf.ops.reference import lists


def _check_half(dtype: tf.DType) -> None:
    if dtype not in (tf.float16, tf.bfloat16):
        raise TypeError(f"Halves are float16 or bfloat16, not {dtype.name}.")


def cast_list(
    xs: Tensors, residuals: Tensors | None, multiplier: float, dtype: tf.DType
) -> tuple[tf.Tensor, ResidualsOut, tf.Tensor]:
    """Each acc as float16 or bfloat16: (halves [elements of all], residuals_out, finite).

    As `tf.cast`: to nearest, ties to even; what is too large becomes infinite, which leaves an
    infinity in residuals_out. `finite` is that of acc, not of the halves. Every NaN stays a NaN.
    """
    _check_half(dtype)
    xs, residuals = arguments.encoder_lists(xs, residuals)
    if not dispatch.runs_here(xs):
        return lists.encode_each(
            xs,
            residuals,
            multiplier,
            lambda _, acc: (tf.cast(acc, dtype),),
            lambda _, halves: tf.cast(*halves, tf.float32),
        )
    outputs = native._ops().grace_cast_list(
        xs=xs, residuals=residuals, multiplier=multiplier, dtype=dtype
    )
    return encoded(outputs, [sum(x.shape.num_elements() for x in xs)], residuals)


def uncast_list(
    halves: tf.Tensor, shapes: Sequence, factor: float | tf.Tensor
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """float32 tensors of these shapes from float16 or bfloat16 [n], times factor: (totals, finite).

    The product counts a denormal float32, as a small bfloat16 is, as a zero of its sign.
    """
    halves = tf.convert_to_tensor(halves)
    _check_half(halves.dtype)
    halves = arguments.tensor(halves, halves.dtype, 1, "halves")
    factor = arguments.factor_of(factor)
    shapes = arguments.shape_list(shapes)
    arguments.check_size(halves, sum(shape.num_elements() for shape in shapes), "halves")
    if not dispatch.runs_here([halves]):
        return lists.scaled(lists.split(tf.cast(halves, tf.float32), shapes), factor)
    outputs = native._ops().grace_uncast_list(halves=halves, factor=factor, **totals_of(shapes))
    return decoded(outputs, shapes)
