"""Products of low rank, on whole lists of tensors.

A tensor of a list is read as a matrix M of `sizes[i]`, (rows, columns, rank), whose factors are
P [rows, rank] and Q [columns, rank]; rank 0 says that it has none and travels dense. The P of all
matrices lie end to end in one tensor, `p` or `basis`, and so do the Q, and the dense tensors.

Native `project` and `reproject` do not give the bits of the reference: they give the same bits on
every instruction set and for any number of threads, but they sum in another order than TensorFlow's
matrix products.
The encoders work on acc_i = xs_i * multiplier + residuals_i, as in `selection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import (
    ResidualsOut,
    Tensors,
    decoded,
    scalar,
    shaped_like,
    totals_of,
    vector,
)
from grace_tf.ops.reference import all_finite
from grace_tf.ops.reference import low_rank as reference
from grace_tf.ops.reference.lists import accs, scaled


class MatrixSize(NamedTuple):
    """The size of one tensor of a list, as a matrix."""

    rows: int
    columns: int
    """A tensor of rank 0 counts as one column."""
    rank: int
    """How many columns P and Q have, at most `rows`. A tensor of rank 0 has no P and Q."""


Sizes = Sequence[MatrixSize]


def matrix_size(shape: tf.TensorShape, rank: int, compression: float = 1.0) -> MatrixSize:
    """The size of a tensor as the matrix [everything else, last axis].

    Its rank is 0 where both factors, of `rank` columns, are not fewer elements than the tensor by
    more than `compression` times.
    """
    n = shape.num_elements()
    if shape.rank >= 2 and n:
        columns = shape[-1]
        rows = n // columns
        rank = min(rank, rows, columns)
        if (rows + columns) * rank * compression < n:
            return MatrixSize(rows, columns, rank)
    return MatrixSize(n, 1, 0)


def payload(sizes: Sizes, dense: tf.Tensor, **factors: tf.Tensor) -> dict[str, tf.Tensor]:
    """The parts of a lane group that are not empty; those of its first lane come first."""
    parts = {**factors, "dense": dense} if sizes[0].rank else {"dense": dense, **factors}
    return {name: part for name, part in parts.items() if part.shape[0]}


def project(
    xs: Tensors,
    residuals: Tensors | None,
    multiplier: float,
    qs: Tensors,
    sizes: Sizes,
    keeps: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """M Q of each acc: (p, dense, the accs, finite).

    qs has a Q for each matrix; dense has the accs without factors; finite is that of all accs.
    With `keeps`, which needs residuals, the accs are there for `reproject`, else an empty list.
    """
    xs, residuals = checked(xs, residuals, sizes)
    if not dispatch.runs_here(xs):
        whole = accs(xs, residuals, multiplier)
        p, dense = reference.project(whole, qs, sizes)
        return p, dense, whole if keeps else [], all_finite(whole)
    p, dense, kept, finite = native._ops().grace_project_list(
        xs=xs,
        residuals=residuals,
        qs=list(qs),
        multiplier=multiplier,
        L=len(xs) if keeps else 0,
        **attributes_of(sizes),
    )
    shapes = [[factor_length(sizes, 0)], [dense_length(sizes)], *(x.shape for x in xs)]
    p, dense, *kept = shaped_like([p, dense, *kept], shapes)
    return p, dense, kept, scalar(finite)


def reproject(
    xs: Tensors, multiplier: float, basis: tf.Tensor, sizes: Sizes, keeps: bool = False
) -> tuple[tf.Tensor, ResidualsOut]:
    """Mᵀ P of each acc = x * multiplier, P being the basis: (q, residuals_out).

    With `keeps` residuals_out_i = acc_i - P (Mᵀ P)ᵀ, zeros if dense; else residuals_out is None.
    """
    xs, _ = checked(xs, None, sizes)
    check_flat(basis, factor_length(sizes, 0), "basis")
    if not dispatch.runs_here(xs):
        whole = accs(xs, [], multiplier)
        q = reference.reproject(whole, basis, sizes)
        if not keeps:
            return q, None
        dense = reference._joined([acc for acc, size in zip(whole, sizes) if not size.rank])
        sent = reference.expand(basis, q, dense, sizes, [x.shape for x in xs])
        return q, [acc - each for acc, each in zip(whole, sent)]
    q, residuals_out = native._ops().grace_reproject_list(
        xs=xs,
        basis=basis,
        multiplier=multiplier,
        M=len(xs) if keeps else 0,
        **attributes_of(sizes),
    )
    q, *residuals_out = shaped_like(
        [q, *residuals_out], [[factor_length(sizes, 1)], *(x.shape for x in xs)]
    )
    return q, residuals_out if keeps else None


def expand(
    basis: tf.Tensor, q: tf.Tensor, dense: tf.Tensor, factor: float, sizes: Sizes, shapes: Sequence
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """P Qᵀ * factor of each matrix, and dense tensors * factor, of these shapes: (totals, finite).

    P is the basis. An element is ((p0 q0 + p1 q1) + p2 q2) + …; finite is that of all totals.
    """
    shapes = arguments.shape_list(shapes)
    check_flat(basis, factor_length(sizes, 0), "basis")
    check_flat(q, factor_length(sizes, 1), "q")
    check_flat(dense, dense_length(sizes), "dense")
    if not dispatch.runs_here([basis, q, dense]):
        return scaled(reference.expand(basis, q, dense, sizes, shapes), factor)
    outputs = native._ops().grace_expand_list(
        basis=basis, q=q, dense=dense, factor=factor, **attributes_of_totals(sizes, shapes)
    )
    return decoded(outputs, shapes)


def orthonormal(p: tf.Tensor, sizes: Sizes) -> tf.Tensor:
    """Orthonormal columns that span those of each P, [the sum of rows * rank].

    They are as many as P has, whatever its rank, and finite for any finite P.
    """
    check_flat(p, factor_length(sizes, 0), "p")
    if not dispatch.runs_here([p]):
        return reference.orthonormal(p, sizes)
    basis = native._ops().grace_orthonormal_list(p=p, **attributes_of(sizes))
    return vector(basis, p.shape[0])


def unit_columns(q: tf.Tensor, sizes: Sizes) -> list[tf.Tensor]:
    """Each Q [columns, rank] with its columns divided by their largest magnitudes.

    Denormals count as zero, and columns of zeros stay.
    """
    check_flat(q, factor_length(sizes, 1), "q")
    if not dispatch.runs_here([q]):
        return reference.unit_columns_list(q, sizes)
    shapes = [[size.columns, size.rank] for size in sizes if size.rank]
    units = native._ops().grace_unit_columns_list(q=q, K=len(shapes), **attributes_of(sizes))
    return shaped_like(units, shapes)


def checked(xs, residuals, sizes: Sizes) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    xs = arguments.float_list(xs, "xs")
    fits = [x.shape.num_elements() for x in xs] == [size.rows * size.columns for size in sizes]
    if not fits:
        raise ValueError(f"The sizes {list(sizes)} do not fit {[x.shape for x in xs]}.")
    return xs, arguments.residual_list(residuals, xs)


def check_flat(flat: tf.Tensor, length: int, name: str) -> None:
    arguments.check_size(arguments.tensor(flat, tf.float32, 1, name), length, name)


def factor_length(sizes: Sizes, axis: int) -> int:
    return sum(size[axis] * size.rank for size in sizes)


def dense_length(sizes: Sizes) -> int:
    return sum(size.rows for size in sizes if not size.rank)


def attributes_of(sizes: Sizes) -> dict:
    """The sizes as attributes of a node."""
    rows, columns, ranks = zip(*sizes)
    return {"rows": list(rows), "columns": list(columns), "ranks": list(ranks)}


def attributes_of_totals(sizes: Sizes, shapes: Sequence[tf.TensorShape]) -> dict:
    """The attributes of a decoder's node: the sizes, and the shapes of the totals."""
    totals = totals_of(shapes)
    return {**totals, "shape_ranks": totals["ranks"], **attributes_of(sizes)}
