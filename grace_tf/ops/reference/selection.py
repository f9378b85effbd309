"""What the operations of `grace_tf.ops.selection` mean, in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import reference
from grace_tf.ops.backend.arguments import Key
from grace_tf.ops.reference import _flush
from grace_tf.ops.reference.low_rank import accs


def _residuals_out(whole, residuals, indices, values, ks):
    """Each acc less its values at the indices; None without residuals."""
    if residuals is None:
        return None
    minus = scatter(values[None], indices[None], None, ks, [acc.shape for acc in whole], 1.0)
    return [acc - sent for acc, sent in zip(whole, minus)]


def top_k_list(xs, residuals, multiplier: float, ks: Sequence[int]):
    whole = accs(xs, residuals, multiplier)
    chosen = [reference.top_k(tf.reshape(acc, [-1]), k) for acc, k in zip(whole, ks)]
    values, indices = (tf.concat(part, 0) for part in zip(*chosen))
    residuals_out = _residuals_out(whole, residuals, indices, values, ks)
    return values, indices, residuals_out, reference.all_finite(whole)


def threshold_list(xs, residuals, multiplier: float, threshold: float, capacities):
    whole = accs(xs, residuals, multiplier)
    parts = [_passing(tf.reshape(x, [-1]), threshold, m) for x, m in zip(whole, capacities)]
    values, indices, counts = (tf.concat(part, 0) for part in zip(*parts))
    residuals_out = _residuals_out(whole, residuals, indices, values, capacities)
    return values, indices, counts, residuals_out, reference.all_finite(whole)


def _passing(x: tf.Tensor, threshold: float, m: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    values, indices = reference.top_k(x, m)
    passes = tf.abs(values) > threshold
    # Static shapes, so that XLA can compile it: what does not pass goes to one place at the end.
    places = tf.where(passes, tf.cumsum(tf.cast(passes, tf.int32)) - 1, m)[:, None]
    values, indices = (tf.scatter_nd(places, part, [m + 1])[:m] for part in (values, indices))
    return values, indices, tf.reduce_sum(tf.cast(passes, tf.int32), keepdims=True)


def _random_indices(shapes: Sequence, ks: Sequence[int], key) -> tf.Tensor:
    keys = [Key(key.seed, key.worker, key.step, v, key.draw) for v in key.variables]
    drawn = [
        reference.random_indices(shape.num_elements(), k, own)
        for shape, k, own in zip(shapes, ks, keys)
    ]
    return tf.concat(drawn, 0)


def random_k_list(xs, residuals, multiplier: float, ks: Sequence[int], key):
    whole = accs(xs, residuals, multiplier)
    indices = _random_indices([acc.shape for acc in whole], ks, key)
    each = zip(whole, tf.split(indices, list(ks)))
    values = tf.concat([tf.gather(tf.reshape(acc, [-1]), own) for acc, own in each], 0)
    residuals_out = _residuals_out(whole, residuals, indices, values, ks)
    return values, residuals_out, reference.all_finite(whole)


def scatter_random_list(values, ks: Sequence[int], shapes, key, factor, scales):
    if scales:
        parts = zip(tf.split(values, list(ks)), scales)
        values = tf.concat([part * scale for part, scale in parts], 0)
    indices = _random_indices(shapes, ks, key)[None]
    return scatter(values[None], indices, None, ks, shapes, factor)


def scatter(values, indices, counts, ks: Sequence[int], shapes, factor) -> list[tf.Tensor]:
    columns = [None] * len(ks) if counts is None else tf.unstack(counts, axis=1)
    parts = [tf.split(part, list(ks), axis=1) for part in (values, indices)]
    totals = [
        reference.scatter_sum(*part, shape.num_elements())
        for *part, shape in zip(*parts, columns, shapes)
    ]
    return [tf.reshape(total * factor, shape) for total, shape in zip(totals, shapes)]


def refine_list(residuals_out, indices, values, decoded, ks: Sequence[int]) -> list[tf.Tensor]:
    lost = tf.split(values - _flush(decoded), list(ks))
    refined = []
    for own, index, more in zip(residuals_out, tf.split(indices, list(ks)), lost):
        flat = tf.tensor_scatter_nd_update(tf.reshape(own, [-1]), index[:, None], more)
        refined.append(tf.reshape(flat, own.shape))
    return refined
