"""Selections of elements, on whole lists of tensors.

Tensors are float32. The encoders work on

    acc_i = xs_i * multiplier + residuals_i

with a Python float as multiplier, 1.0 for no product, and None as residuals for no addition.
Products, sums and differences are TensorFlow's, which count denormals as zeros of their sign. What
they return beside the payload: `residuals_out`, the new residuals, acc minus what is sent, or None
without residuals; and `finite`, a bool scalar, whether every element of every acc is finite.

The decoders multiply every element of every total by `factor`, a number or a float32 scalar, zeros
too; their `finite` says whether every element of every total is finite. On a GPU a wrong index is
no error, because an operation there does not wait for what its kernel finds: the entry is left out
and `finite` is false, so that a training step is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.backend.outputs import (
    ResidualsOut,
    Tensors,
    counted,
    decoded,
    encoded,
    shaped_like,
    totals_of,
)
from grace_tf.ops.reference import selection as reference


def top_k_list(
    xs: Tensors, residuals: Tensors | None, multiplier: float, ks: Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor, ResidualsOut, tf.Tensor]:
    """`ops.top_k` of each acc with its k: (values, indices, residuals_out, finite).

    values is float32 [sum of ks], indices int32 [sum of ks], within each variable and ascending.
    """
    xs, residuals = arguments.encoder_lists(xs, residuals)
    arguments.check_counts(ks, [x.shape for x in xs])
    if not dispatch.runs_here(xs):
        return reference.top_k_list(xs, residuals, multiplier, ks)
    outputs = native._ops().grace_top_k_list(
        xs=xs, residuals=residuals, multiplier=multiplier, ks=list(ks)
    )
    return encoded(outputs, [sum(ks)] * 2, residuals)


def threshold_list(
    xs: Tensors,
    residuals: Tensors | None,
    multiplier: float,
    threshold: float,
    capacities: Sequence[int],
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, ResidualsOut, tf.Tensor]:
    """Of the m largest elements of each acc those with |acc| > threshold, m being its capacity.

    Returns (values, indices, counts, residuals_out, finite): values float32 and indices int32
    [sum of capacities], indices ascending within each variable; counts int32 [N]. A variable's
    entries from its count on are zero. A NaN is among the largest but not above the threshold.
    """
    xs, residuals = arguments.encoder_lists(xs, residuals)
    arguments.check_counts(capacities, [x.shape for x in xs])
    if not threshold >= 0:
        raise ValueError(f"The threshold must be at least 0, not {threshold!r}.")
    if not dispatch.runs_here(xs):
        return reference.threshold_list(xs, residuals, multiplier, threshold, capacities)
    outputs = native._ops().grace_threshold_list(
        xs=xs,
        residuals=residuals,
        multiplier=multiplier,
        threshold=threshold,
        capacities=list(capacities),
    )
    return encoded(outputs, [sum(capacities)] * 2 + [len(xs)], residuals)


def random_k_list(
    xs: Tensors, residuals: Tensors | None, multiplier: float, ks: Sequence[int], key: ListKey
) -> tuple[tf.Tensor, ResidualsOut, tf.Tensor]:
    """Each acc at its k random indices: (values float32 [sum of ks], residuals_out, finite).

    The indices of variable i are `ops.random_indices(n, k, key)` of its stream.
    """
    xs, residuals = arguments.encoder_lists(xs, residuals)
    arguments.check_counts(ks, [x.shape for x in xs])
    arguments.check_list_key(key, len(xs))
    if not dispatch.runs_here(xs):
        return reference.random_k_list(xs, residuals, multiplier, ks, key)
    outputs = native._ops().grace_random_k_list(
        xs=xs, residuals=residuals, multiplier=multiplier, ks=list(ks), **native.streams(key)
    )
    return encoded(outputs, [sum(ks)], residuals)


def scatter_random_list(
    values: tf.Tensor,
    ks: Sequence[int],
    shapes: Sequence,
    key: ListKey,
    factor: float | tf.Tensor,
    scales: Sequence[float] = (),
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """values [sum of ks] at the indices of `random_k_list`, zeros elsewhere, times factor.

    The values of each variable are multiplied by its scale first, unless all scales are 1. Returns
    (totals, finite). A denormal value counts as +0.
    """
    values = arguments.tensor(values, tf.float32, 1, "values")
    factor = arguments.factor_of(factor)
    shapes = arguments.shape_list(shapes)
    arguments.check_counts(ks, shapes)
    arguments.check_size(values, sum(ks), "values")
    arguments.check_list_key(key, len(shapes))
    scales = list(scales) if any(scale != 1.0 for scale in scales) else []
    if not dispatch.runs_here([values]):
        return reference.scatter_random_list(values, ks, shapes, key, factor, scales)
    outputs = native._ops().grace_scatter_random_list(
        values=values,
        factor=factor,
        ks=list(ks),
        scales=scales,
        **totals_of(shapes),
        **native.streams(key),
    )
    return decoded(outputs, shapes)


def scatter_list(
    values: tf.Tensor,
    indices: tf.Tensor,
    counts: tf.Tensor | None,
    ks: Sequence[int],
    shapes: Sequence,
    factor: float | tf.Tensor,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """`ops.scatter_sum` of W workers' parts for each variable, times factor: (totals, finite).

    values is float32 and indices int32 [W, sum of ks]; counts int32 [W, N] says how many of a
    worker's entries for a variable count, None that all do. An index outside its variable, or not
    above the one before, among the entries that count is an InvalidArgumentError that names it.
    """
    values = arguments.tensor(values, tf.float32, 2, "values")
    indices = arguments.tensor(indices, tf.int32, 2, "indices")
    factor = arguments.factor_of(factor)
    shapes = arguments.shape_list(shapes)
    arguments.check_counts(ks, shapes)
    arguments.check_size(values, sum(ks), "values")
    if values.shape != indices.shape:
        raise ValueError(f"values {values.shape} and indices {indices.shape} differ in shape.")
    counts = arguments.workers_counts(counts, values.shape[0], len(shapes))
    if not dispatch.runs_here([values, indices]):
        return reference.scatter(values, indices, counts, ks, shapes, factor)
    outputs = native._ops().grace_scatter_list(
        values=values,
        indices=indices,
        factor=factor,
        ks=list(ks),
        **counted(counts, [0, 0]),
        **totals_of(shapes),
    )
    return decoded(outputs, shapes)


def refine_list(
    residuals_out: Tensors,
    indices: tf.Tensor,
    values: tf.Tensor,
    decoded: tf.Tensor,
    ks: Sequence[int],
) -> list[tf.Tensor]:
    """The residuals of a selection whose values were compressed further.

    residuals_out, as `top_k_list` returned it, gets values - decoded at indices, all three
    [sum of ks], and is otherwise unchanged: in O(k), where nothing else reads it. A decoded zero or
    denormal counts as +0, as in `scatter_list`.
    """
    residuals_out = arguments.float_list(residuals_out, "residuals_out")
    arguments.check_counts(ks, [x.shape for x in residuals_out])
    indices = arguments.tensor(indices, tf.int32, 1, "indices")
    values = arguments.tensor(values, tf.float32, 1, "values")
    decoded = arguments.tensor(decoded, tf.float32, 1, "decoded")
    for name, part in (("indices", indices), ("values", values), ("decoded", decoded)):
        arguments.check_size(part, sum(ks), name)
    if not dispatch.runs_here([*residuals_out, indices]):
        return reference.refine_list(residuals_out, indices, values, decoded, ks)
    refined = native._ops().grace_refine_list(
        residuals_out=residuals_out, indices=indices, values=values, decoded=decoded, ks=list(ks)
    )
    return shaped_like(refined, [x.shape for x in residuals_out])
