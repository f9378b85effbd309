"""Signs with levels, on whole lists of tensors: one bit an element, and means that bits stand for.

Elements that share their levels make a cell: `block` consecutive elements of one tensor, all of
it, or a column of it as the matrix [everything else, last axis]. With one side, a cell's level is
the mean of |x|; bit 1 stands for it and bit 0 for its negative. With two sides, a cell has a level
for bit 0 and one for bit 1: the mean of the elements with that bit, 0 where there is none. Bits are
those of `grace_tf.ops.pack_signs`. A denormal counts as 0, and so does a level below 2^-110.

The sums of the means have one order, in float64. Of blocks and tensors: chunks of 2048 elements,
from the first on. Of columns: chunks of 32 rows. A chunk is filled up with zeros to a power of two
and summed by halves, the upper half onto the lower, until one is left; and so are the sums of the
chunks. One-sided sums are multiplied by the float64 reciprocal of their number of elements,
two-sided ones are divided by it.

The encoders work on acc_i = xs_i * multiplier + residuals_i, as in `selection`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from grace_tf.ops import dispatch, signs
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import (
    ResidualsOut,
    Tensors,
    decoded,
    encoded,
    scalar,
    shaped_like,
    totals_of,
    vector,
)
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import all_finite, lists
from grace_tf.ops.reference import scaled_signs as reference


class Cells(NamedTuple):
    """Which elements share levels, and how many levels they have."""

    sides: int
    """1 or 2."""
    block: int | None = None
    """The elements of a cell, a power of two of at least 32; None: all of a tensor."""
    by_column: bool = False
    """Whether columns are the cells instead. A tensor of fewer than two axes is one column."""

    def columns(self, shape: Sequence[int]) -> int:
        """The columns of a tensor of this shape, 1 where it is not cut by columns."""
        return int(shape[-1]) if self.by_column and len(shape) > 1 else 1

    def count(self, shape: Sequence[int]) -> int:
        """The number of cells of a tensor of this shape, an int."""
        n, columns = math.prod(shape), self.columns(shape)
        return columns if columns > 1 or not self.block else arguments.count_blocks(n, self.block)


class ScaledSigns(NamedTuple):
    """What `scaled_sign_list` gives."""

    words: tf.Tensor
    """int32 [the sum of packed_words(n_i, 1)]."""
    levels: list[tf.Tensor]
    """One for each side, those of bit 1 last: float32 [the sum of the tensors' cells]."""
    residuals_out: ResidualsOut
    """acc_i minus what its bits stand for; None without residuals."""
    finite: tf.Tensor
    """A bool scalar: whether every element of every acc is finite."""


def scaled_sign_list(
    xs: Tensors, residuals: Tensors | None, multiplier: float, cells: Cells
) -> ScaledSigns:
    """The signs and levels of each acc, in one or two passes over memory.

    Raises ValueError and TypeError for what is no list of float32 tensors with their residuals.
    """
    xs, residuals = arguments.encoder_lists(xs, residuals)
    _check(cells)
    if not dispatch.runs_here(xs):
        words, *levels, residuals_out, finite = reference.encode(xs, residuals, multiplier, cells)
        return ScaledSigns(words, levels, residuals_out, finite)
    shapes = [x.shape for x in xs]
    words, levels, *rest = native._ops().grace_scaled_sign_list(
        xs=xs,
        residuals=residuals,
        S=cells.sides,
        multiplier=multiplier,
        **_attributes(cells, shapes),
    )
    size, count = _sizes(cells, shapes)
    lengths = [size] + [count] * cells.sides
    words, *levels, residuals_out, finite = encoded([words, *levels, *rest], lengths, residuals)
    return ScaledSigns(words, levels, residuals_out, finite)


def sum_scaled_sign_list(
    words: tf.Tensor, levels: Tensors, shapes: Sequence, factor: float | tf.Tensor, cells: Cells
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """What the workers' signs and levels stand for, summed, times factor: (totals, finite).

    words is int32 [W, n], levels are float32 [W, m], a row of each for a worker; factor is a number
    or a float32 scalar. The sum is ((0 + d_0) + d_1) + …; where it is denormal it counts as 0.
    """
    words = arguments.tensor(words, tf.int32, 2, "words")
    levels = [arguments.tensor(each, tf.float32, 2, "levels") for each in levels]
    factor = arguments.factor_of(factor)
    shapes = arguments.shape_list(shapes)
    _check(cells)
    size, count = _sizes(cells, shapes)
    arguments.check_size(words, size, "words")
    if [each.shape for each in levels] != [[words.shape[0], count]] * cells.sides:
        raise ValueError(
            f"levels must be {cells.sides} tensors of shape {[words.shape[0], count]}, not of "
            f"{[each.shape for each in levels]}."
        )
    if not dispatch.runs_here([words, *levels]):
        return reference.decode(words, levels, shapes, factor, cells)
    outputs = native._ops().grace_sum_scaled_sign_list(
        words=words, levels=levels, factor=factor, **totals_of(shapes), **_attributes(cells, shapes)
    )
    return decoded(outputs, shapes)


def momentum_sign_list(
    xs: Tensors, momenta: Tensors, multiplier: float, beta: float
) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """Moving averages and their signs, in one pass: (words, averages, finite).

    averages_i = momenta_i * beta + (xs_i * multiplier) * (1 - beta), in float32; words are those of
    `signs.sign_list` of the averages, finite is that of the averages.
    """
    xs = arguments.float_list(xs, "xs")
    momenta = arguments.residual_list(momenta, xs)
    if not dispatch.runs_here(xs):
        averages = reference.averages(lists.accs(xs, None, multiplier), momenta, beta)
        return signs.sign_list(averages, 1.0)[0], averages, all_finite(averages)
    words, averages, finite = native._ops().grace_momentum_sign_list(
        xs=xs, momenta=momenta, multiplier=multiplier, beta=beta, rest=1 - beta
    )
    size = sum(packed_words(x.shape.num_elements(), 1) for x in xs)
    averages = shaped_like(averages, [x.shape for x in xs])
    return vector(words, size), averages, scalar(finite)


def check_block(block: int | None) -> bool:
    """Whether `block` may be the number of elements of a cell."""
    return block is None or (block >= 32 and block & (block - 1) == 0)


def _check(cells: Cells) -> None:
    if cells.sides not in (1, 2):
        raise ValueError(f"There are 1 or 2 sides, not {cells.sides}.")
    if not check_block(cells.block):
        raise ValueError(f"A block is a power of two of at least 32, not {cells.block}.")


def _sizes(cells: Cells, shapes: Sequence) -> tuple[int, int]:
    """How many words and cells tensors of these shapes have."""
    words = sum(packed_words(math.prod(shape), 1) for shape in shapes)
    return words, sum(cells.count(shape) for shape in shapes)


def _attributes(cells: Cells, shapes: Sequence) -> dict:
    """The cells as attributes of a node."""
    return {"block": cells.block or 0, "columns": [cells.columns(shape) for shape in shapes]}
