"""Products of matrices with a basis on either side, on whole lists of tensors.

A tensor of a list is read as a matrix M as in `grace_tf.ops.low_rank`, of `sizes[i]`. It has two
bases of orthonormal columns, A [rows, rank] and B [columns, rank], which lie end to end in `left`
and `right`. Its products are P = M B and Q = Mᵀ A. They stand for

    M - (1 - A Aᵀ) M (1 - B Bᵀ) = (P - A (Aᵀ P)) Bᵀ + A Qᵀ

`remove` and `expand_sides` give the same bits natively and by reference operations, and `alternate`
does not, as `low_rank.project`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from grace_tf import ops
from grace_tf.ops import arguments, lists, low_rank, native
from grace_tf.ops import reference_low_rank as reference
from grace_tf.ops.low_rank import MatrixSize, Sizes
from grace_tf.ops.sparse_lists import Kept, Tensors, kept_list, scalar, shaped_like

__all__ = ["Bases", "Products", "alternate", "expand_sides", "remove", "transposed"]


class Bases(NamedTuple):
    """The bases of all matrices of a list."""

    left: tf.Tensor
    right: tf.Tensor


class Products(NamedTuple):
    """P, Q, and the tensors without factors, of all matrices of a list."""

    p: tf.Tensor
    q: tf.Tensor
    dense: tf.Tensor


def transposed(sizes: Sizes) -> list[MatrixSize]:
    """The sizes of the transposed matrices."""
    return [MatrixSize(s.columns, s.rows, s.rank) if s.rank else s for s in sizes]


def alternate(
    xs: Tensors, residuals: Tensors | None, multiplier: float, bases: Bases, sizes: Sizes
) -> tuple[Products, Kept, tf.Tensor]:
    """P and Q of each acc_i = xs_i * multiplier + residuals_i: (products, kept, finite).

    kept_i is acc_i less what the products stand for, zeros if dense; None without residuals.
    finite is a bool scalar, whether all of every acc is.
    """
    xs, residuals = low_rank.checked(xs, residuals, sizes)
    _check(sizes, left=bases.left, right=bases.right)
    if not lists.runs_here(xs):
        accs = reference.accs(xs, residuals or None, multiplier)
        products = Products(*reference.alternate(accs, *bases, sizes))
        kept = None
        if residuals:
            sent, _ = expand_sides(bases, products, 1.0, sizes, [x.shape for x in xs])
            kept = [acc - each for acc, each in zip(accs, sent)]
        return products, kept, ops.all_finite(accs)
    p, q, dense, kept, finite = native._ops().grace_alternate_list(
        xs=xs,
        residuals=residuals,
        left=bases.left,
        right=bases.right,
        multiplier=multiplier,
        **low_rank.told(sizes),
    )
    lengths = [bases.left.shape, bases.right.shape, [low_rank.dense_length(sizes)]]
    products = Products(*shaped_like([p, q, dense], lengths))
    return products, kept_list(kept, residuals), scalar(finite)


def remove(w: tf.Tensor, basis: tf.Tensor, sizes: Sizes) -> tf.Tensor:
    """w - A (Aᵀ w) for each w [rows, rank] and A of the basis, end to end as these are."""
    _check(sizes, w=w, basis=basis)
    if not lists.runs_here([w, basis]):
        return reference.remove(w, basis, sizes)
    rest = native._ops().grace_remove_list(w=w, basis=basis, **low_rank.told(sizes))
    return native._shaped(rest, w.shape[0])


def expand_sides(
    bases: Bases,
    products: Products,
    factor: float,
    sizes: Sizes,
    shapes: Sequence,
    rest: tf.Tensor | None = None,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """What products, or their sums, stand for, times factor, in these shapes: (totals, finite).

    `rest` is `remove(products.p, bases.left, sizes)`, for who has it already. An element of a total
    is the sum over the columns of the rest, from the left, then over those of Q.
    """
    shapes = arguments.shape_list(shapes)
    _check(sizes, left=bases.left, right=bases.right, p=products.p, q=products.q)
    low_rank.check_flat(products.dense, low_rank.dense_length(sizes), "dense")
    rest = remove(products.p, bases.left, sizes) if rest is None else rest
    _, q, dense = products
    if not lists.runs_here([*bases, rest, q, dense]):
        totals = reference.expand_sides(bases, rest, q, dense, sizes, shapes)
        totals = totals if factor == 1.0 else [total * factor for total in totals]
        return totals, ops.all_finite(totals)
    totals, finite = native._ops().grace_expand_sides_list(
        left=bases.left,
        right=bases.right,
        rest=rest,
        q=q,
        dense=dense,
        N=len(shapes),
        factor=factor,
        shape_ranks=[shape.rank for shape in shapes],
        dims=[size for shape in shapes for size in shape],
        **low_rank.told(sizes),
    )
    return shaped_like(totals, shapes), scalar(finite)


def _check(sizes: Sizes, **flats: tf.Tensor) -> None:
    for name, flat in flats.items():
        axis = 1 if name in ("right", "q") else 0
        low_rank.check_flat(flat, low_rank.factor_length(sizes, axis), name)
