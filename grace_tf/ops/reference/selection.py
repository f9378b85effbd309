"""What the operations of `grace_tf.ops.selection` mean, in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.reference import one_tensor
from grace_tf.ops.reference.arithmetic import flush
from grace_tf.ops.reference.lists import encode_each, scaled
from grace_tf.ops.reference.random import random_indices
from grace_tf.ops.reference.words import compacted


def _sent(xs: Sequence[tf.Tensor]) -> Callable:
    """decode(i, parts) of `encode_each`, for the parts values, indices and perhaps a count."""

    def decode(i, parts):
        values, indices, *counts = parts
        n, counts = xs[i].shape.num_elements(), counts[0] if counts else None
        return one_tensor.scatter_sum(values[None], indices[None], counts, n)

    return decode


def top_k_list(xs, residuals, multiplier: float, ks: Sequence[int]):
    def encode(i, acc):
        return one_tensor.top_k(acc, ks[i])

    return encode_each(xs, residuals, multiplier, encode, _sent(xs))


def threshold_list(xs, residuals, multiplier: float, threshold: float, capacities):
    def encode(i, acc):
        return _passing(acc, threshold, capacities[i])

    return encode_each(xs, residuals, multiplier, encode, _sent(xs))


def _passing(x: tf.Tensor, threshold: float, m: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    values, indices = one_tensor.top_k(x, m)
    passes = tf.abs(values) > threshold
    values, indices = (compacted(part, passes, m) for part in (values, indices))
    return values, indices, tf.reduce_sum(tf.cast(passes, tf.int32), keepdims=True)


def random_k_list(xs, residuals, multiplier: float, ks: Sequence[int], key: ListKey):
    def encode(i, acc):
        indices = random_indices(acc.shape[0], ks[i], key.stream(i))
        return tf.gather(acc, indices), indices

    values, _, *rest = encode_each(xs, residuals, multiplier, encode, _sent(xs))
    return values, *rest


def scatter_random_list(values, ks: Sequence[int], shapes, key: ListKey, factor, scales):
    if scales:
        parts = zip(tf.split(values, list(ks)), scales)
        values = tf.concat([part * scale for part, scale in parts], 0)
    drawn = [
        random_indices(shape.num_elements(), k, key.stream(i))
        for i, (shape, k) in enumerate(zip(shapes, ks))
    ]
    return scatter(values[None], tf.concat(drawn, 0)[None], None, ks, shapes, factor)


def scatter(values, indices, counts, ks: Sequence[int], shapes, factor):
    columns = [None] * len(ks) if counts is None else tf.unstack(counts, axis=1)
    parts = [tf.split(part, list(ks), axis=1) for part in (values, indices)]
    totals = [
        tf.reshape(one_tensor.scatter_sum(*part, shape.num_elements()), shape)
        for *part, shape in zip(*parts, columns, shapes)
    ]
    return scaled(totals, factor)


def refine_list(residuals_out, indices, values, decoded, ks: Sequence[int]) -> list[tf.Tensor]:
    lost = tf.split(values - flush(decoded), list(ks))
    refined = []
    for own, index, more in zip(residuals_out, tf.split(indices, list(ks)), lost):
        flat = tf.tensor_scatter_nd_update(tf.reshape(own, [-1]), index[:, None], more)
        refined.append(tf.reshape(flat, own.shape))
    return refined
