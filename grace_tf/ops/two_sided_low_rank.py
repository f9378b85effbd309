"""Products of matrices with a basis on either side, on whole lists of tensors.

A tensor of a list is read as a matrix M as in `grace_tf.ops.low_rank`, of `sizes[i]`. It has two
bases of orthonormal columns, A [rows, rank] and B [columns, rank], which lie end to end in `left`
and `right`. Its products are P = M B and Q = Mᵀ A. They stand for

    M - (1 - A Aᵀ) M (1 - B Bᵀ) = (P - A (Aᵀ P)) Bᵀ + A Qᵀ

Native `alternate` does not give the bits of the reference, as `low_rank.project`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from grace_tf.ops import dispatch, low_rank
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import (
    ResidualsOut,
    Tensors,
    decoded,
    residuals_like,
    scalar,
    shaped_like,
    vector,
)
from grace_tf.ops.low_rank import MatrixSize, Sizes
from grace_tf.ops.reference import all_finite
from grace_tf.ops.reference import low_rank as reference
from grace_tf.ops.reference.lists import accs, scaled


class Bases(NamedTuple):
    """The bases of all matrices of a list."""

    left: tf.Tensor
    right: tf.Tensor


class Products(NamedTuple):
    """P, Q, and the tensors without factors, of all matrices of a list."""

    p: tf.Tensor
    q: tf.Tensor
    dense: tf.Tensor


def bases(factors: Tensors, sizes: Sizes) -> Bases:
    """The bases of the columns of P and of Q, which `low_rank.orthonormal` says more of.

    factors has a tensor for each matrix: P [rows, rank] and then Q [columns, rank], flat.
    """
    if not factors:
        return Bases(tf.zeros([0]), tf.zeros([0]))
    matrices = [size for size in sizes if size.rank]
    for i, (each, size) in enumerate(zip(factors, matrices)):
        low_rank.check_flat(each, (size.rows + size.columns) * size.rank, f"factors {i}")
    if not dispatch.runs_here(factors):
        return Bases(*reference.bases(factors, sizes, _transposed(sizes)))
    found = native._ops().grace_bases_list(factors=list(factors), **low_rank.attributes_of(sizes))
    return Bases(*shaped_like(found, [[low_rank.factor_length(sizes, axis)] for axis in (0, 1)]))


def turned(products: Products, bases: Bases, step: tf.Tensor, sizes: Sizes) -> list[tf.Tensor]:
    """P and then Q of each matrix, flat; one of them is freed of what its basis has of it.

    In even steps that is Q, in odd ones P: with w of either and its basis A, w - A (Aᵀ w).
    """
    p, q, _ = products
    _check(sizes, left=bases.left, right=bases.right, p=p, q=q)
    matrices = [size for size in sizes if size.rank]
    if not matrices:
        return []
    if not dispatch.runs_here([p, q, *bases]):
        return reference.turned(p, q, *bases, step, sizes, _transposed(sizes))
    factors = native._ops().grace_turn_list(
        p=p,
        q=q,
        left=bases.left,
        right=bases.right,
        step=tf.cast(step, tf.int64),
        K=len(matrices),
        **low_rank.attributes_of(sizes),
    )
    return shaped_like(factors, [[(s.rows + s.columns) * s.rank] for s in matrices])


def _transposed(sizes: Sizes) -> list[MatrixSize]:
    """The sizes of the transposed matrices."""
    return [MatrixSize(s.columns, s.rows, s.rank) if s.rank else s for s in sizes]


def alternate(
    xs: Tensors, residuals: Tensors | None, multiplier: float, bases: Bases, sizes: Sizes
) -> tuple[Products, ResidualsOut, tf.Tensor]:
    """P and Q of each acc_i = xs_i * multiplier + residuals_i: (products, residuals_out, finite).

    residuals_out_i is acc_i less what the products stand for, zeros if dense; residuals_out is None
    without residuals. finite is a bool scalar, whether all of every acc is.
    """
    xs, residuals = low_rank.checked(xs, residuals, sizes)
    _check(sizes, left=bases.left, right=bases.right)
    if not dispatch.runs_here(xs):
        whole = accs(xs, residuals, multiplier)
        products = Products(*reference.alternate(whole, *bases, sizes))
        residuals_out = None
        if residuals:
            sent, _ = expand_sides(bases, products, 1.0, sizes, [x.shape for x in xs])
            residuals_out = [acc - each for acc, each in zip(whole, sent)]
        return products, residuals_out, all_finite(whole)
    p, q, dense, residuals_out, finite = native._ops().grace_alternate_list(
        xs=xs,
        residuals=residuals,
        left=bases.left,
        right=bases.right,
        multiplier=multiplier,
        **low_rank.attributes_of(sizes),
    )
    lengths = [bases.left.shape, bases.right.shape, [low_rank.dense_length(sizes)]]
    products = Products(*shaped_like([p, q, dense], lengths))
    return products, residuals_like(residuals_out, residuals), scalar(finite)


def remove(w: tf.Tensor, basis: tf.Tensor, sizes: Sizes) -> tf.Tensor:
    """w - A (Aᵀ w) for each w [rows, rank] and A of the basis, end to end as these are."""
    _check(sizes, w=w, basis=basis)
    if not dispatch.runs_here([w, basis]):
        return reference.remove(w, basis, sizes)
    rest = native._ops().grace_remove_list(w=w, basis=basis, **low_rank.attributes_of(sizes))
    return vector(rest, w.shape[0])


def expand_sides(
    bases: Bases,
    products: Products,
    factor: float,
    sizes: Sizes,
    shapes: Sequence,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """What products, or their sums, stand for, times factor, in these shapes: (totals, finite).

    An element of a total is a sum, from the left, over the columns of P - A (Aᵀ P) and then of Q.
    """
    shapes = arguments.shape_list(shapes)
    _check(sizes, left=bases.left, right=bases.right, p=products.p, q=products.q)
    low_rank.check_flat(products.dense, low_rank.dense_length(sizes), "dense")
    p, q, dense = products
    rest = remove(p, bases.left, sizes)
    if not dispatch.runs_here([*bases, rest, q, dense]):
        return scaled(reference.expand_sides(bases, rest, q, dense, sizes, shapes), factor)
    outputs = native._ops().grace_expand_sides_list(
        left=bases.left,
        right=bases.right,
        rest=rest,
        q=q,
        dense=dense,
        factor=factor,
        **low_rank.attributes_of_totals(sizes, shapes),
    )
    return decoded(outputs, shapes)


def _check(sizes: Sizes, **flats: tf.Tensor) -> None:
    for name, flat in flats.items():
        axis = 1 if name in ("right", "q") else 0
        low_rank.check_flat(flat, low_rank.factor_length(sizes, axis), name)
