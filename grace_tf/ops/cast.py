"""Casts to numbers of 16 bits, on whole lists of tensors.

The operations run natively, one node a list, where `choice.runs_here` says so, and else as
TensorFlow's own casts. The terms are those of `grace_tf.ops.selection`.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import choice
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import (
    ResidualsOut,
    Tensors,
    dims_of,
    residuals_like,
    scalar,
    shaped_like,
)
from grace_tf.ops.reference import all_finite
from grace_tf.ops.reference.low_rank import accs

__all__ = ["cast_list", "uncast_list"]


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
    xs = arguments.float_list(xs, "xs")
    residuals = arguments.residual_list(residuals, xs)
    if not choice.runs_here(xs):
        whole = accs(xs, residuals or None, multiplier)
        flat = [acc if acc.shape.rank == 1 else tf.reshape(acc, [-1]) for acc in whole]
        halves = tf.cast(tf.concat(flat, 0), dtype)
        sent = uncast_list(halves, [acc.shape for acc in whole], 1.0)[0]
        residuals_out = [acc - own for acc, own in zip(whole, sent)] if residuals else None
        return halves, residuals_out, all_finite(whole)
    halves, residuals_out, finite = native._ops().grace_cast_list(
        xs=xs, residuals=residuals, multiplier=multiplier, dtype=dtype
    )
    (halves,) = shaped_like([halves], [[sum(x.shape.num_elements() for x in xs)]])
    return halves, residuals_like(residuals_out, residuals), scalar(finite)


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
    if not choice.runs_here([halves]):
        parts = tf.split(tf.cast(halves, tf.float32), [shape.num_elements() for shape in shapes])
        totals = [tf.reshape(part * factor, shape) for part, shape in zip(parts, shapes)]
        return totals, all_finite(totals)
    totals, finite = native._ops().grace_uncast_list(
        halves=halves, factor=factor, N=len(shapes), **dims_of(shapes)
    )
    return shaped_like(totals, shapes), scalar(finite)
