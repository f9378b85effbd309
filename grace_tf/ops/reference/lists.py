"""How what an operation means for one tensor becomes what it means for a list of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from grace_tf.ops.reference.arithmetic import flush
from grace_tf.ops.reference.one_tensor import all_finite

Tensors = Sequence[tf.Tensor]


def accs(xs: Tensors, residuals: Tensors | None, multiplier: float) -> list[tf.Tensor]:
    """xs_i * multiplier + residuals_i."""
    xs = list(xs) if multiplier == 1.0 else [x * multiplier for x in xs]
    return [x + r for x, r in zip(xs, residuals)] if residuals else xs


def flat(x: tf.Tensor) -> tf.Tensor:
    """x with one axis."""
    return x if x.shape.rank == 1 else tf.reshape(x, [-1])


def split(values: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """The tensors of these shapes that lie end to end in values."""
    parts = tf.split(values, [shape.num_elements() for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]


def encode_each(
    xs: Tensors, residuals: Tensors | None, multiplier: float, encode: Callable, decode: Callable
) -> tuple:
    """Encodes each acc by itself: the parts end to end, then residuals_out and finite.

    encode(i, acc) gives the tuple of parts of tensor i, acc being flat, and decode(i, parts) the
    elements that the parts stand for, flat too.
    """
    whole = accs(xs, residuals, multiplier)
    each = [encode(i, flat(acc)) for i, acc in enumerate(whole)]
    residuals_out = None
    if residuals:
        residuals_out = [
            acc - tf.reshape(decode(i, parts), acc.shape)
            for i, (acc, parts) in enumerate(zip(whole, each))
        ]
    return *(tf.concat(part, 0) for part in zip(*each)), residuals_out, all_finite(whole)


def sum_each(
    parts: Tensors,
    lengths: Sequence[Sequence[int]],
    shapes: Sequence[tf.TensorShape],
    factor: float | tf.Tensor,
    decode: Callable,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Sums over workers what parts stand for, and multiplies by factor: (totals, finite).

    Each part has a row for each worker and, in a row, for each tensor as many values as lengths
    says. decode(i, parts) gives the elements of tensor i, flat, from one worker's parts of it.
    """
    columns = zip(*(tf.split(part, own, axis=1) for part, own in zip(parts, lengths)))
    totals = []
    for i, (rows, shape) in enumerate(zip(columns, shapes)):

        def add(total, own, i=i):
            return flush(total + decode(i, own))

        totals.append(tf.reshape(tf.foldl(add, rows, tf.zeros([shape.num_elements()])), shape))
    return scaled(totals, factor)


def scaled(totals: Tensors, factor: float | tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """(totals times factor, whether all of them are finite)."""
    if isinstance(factor, tf.Tensor) or factor != 1.0:
        totals = [total * factor for total in totals]
    return list(totals), all_finite(totals)
