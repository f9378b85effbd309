"""What the operations of `grace_tf.ops.sampled_top_k` mean, in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from grace_tf.ops.reference import lists, one_tensor
from grace_tf.ops.reference.arithmetic import (
    INFINITY,
    MAGNITUDE,
    SMALLEST_NORMAL,
    bits_of,
    quotient,
)
from grace_tf.ops.reference.random import random_words
from grace_tf.ops.reference.words import compacted

_LARGEST = float(np.finfo(np.float32).max)
_ROUNDS, _LOWER = 10, 0.8


def clip_factor(x: tf.Tensor, limit: float) -> tf.Tensor:
    norm = one_tensor.block_scales(x, x.shape[0], "l2")[0]
    # The norm of what is finite may overflow; it counts as the largest number then.
    factor = quotient(tf.constant(limit, tf.float32), tf.minimum(norm, _LARGEST))
    return tf.where(norm > tf.constant(limit, tf.float32), factor, 1.0)


def _key(x: tf.Tensor) -> tf.Tensor:
    """|x| as integers: a larger magnitude gives a larger integer."""
    return bits_of(x) & MAGNITUDE


def _start(stride: int, key) -> tf.Tensor:
    """A number below the stride, from the first word of the stream."""
    word = tf.cast(random_words(1, key)[0], tf.int64) & 0xFFFFFFFF
    return tf.cast(tf.bitwise.right_shift(word * stride, tf.constant(32, tf.int64)), tf.int32)


def _floor(acc: tf.Tensor, largest: tf.Tensor, sampling, key) -> tf.Tensor:
    """The smallest key that is sent; `largest` are the keys of the k largest elements."""
    k, stride, size, rank = sampling
    if stride == 1:
        return tf.constant(SMALLEST_NORMAL)
    sample = tf.gather(acc, _start(stride, key) + stride * tf.range(size))
    at_first = tf.math.top_k(_key(sample), rank).values[-1]
    threshold = tf.bitcast(tf.minimum(at_first, INFINITY), tf.float32)
    floors = [tf.maximum(_key(threshold), SMALLEST_NORMAL)]
    for _ in range(_ROUNDS):
        threshold = threshold * _LOWER
        floors.append(tf.maximum(_key(threshold), SMALLEST_NORMAL))
    floors = tf.stack(floors)
    passing = (largest >= floors[:, tf.newaxis]) & (largest <= INFINITY)
    counts = tf.reduce_sum(tf.cast(passing, tf.int32), axis=1)
    few = tf.cast(5 * tf.cast(counts, tf.int64) < 4 * k, tf.int32)
    # Counts grow from round to round, so those of too few come first.
    return floors[tf.minimum(tf.reduce_sum(few), _ROUNDS)]


def _select(acc: tf.Tensor, sampling, key) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(values, indices, count) of one vector."""
    k = sampling.k
    values, indices = one_tensor.top_k(acc, k)
    keys = _key(values)
    passes = (keys >= _floor(acc, keys, sampling, key)) & (keys <= INFINITY)
    values, indices = (compacted(part, passes, k) for part in (values, indices))
    return values, indices, tf.reduce_sum(tf.cast(passes, tf.int32))


def _advanced(xs, residuals, multiplier, momentum):
    """(the next u or None, acc) of each tensor, nothing being sent yet."""
    if momentum is None:
        return None, lists.accs(xs, residuals, multiplier)
    xs = lists.accs(xs, None, multiplier)
    if momentum.limit is not None:
        xs = [x * clip_factor(lists.flat(x), momentum.limit) for x in xs]
    factor = momentum.factor
    us = [factor * u + x for u, x in zip(momentum.states, xs)]
    if not momentum.nesterov:
        return us, [v + u for v, u in zip(residuals, us)]
    # A difference, since graphs would add three tensors in an order of their own.
    return us, [(v + x) - -factor * u for v, u, x in zip(residuals, us, xs)]


def sampled_k_list(xs, residuals, multiplier, samplings: Sequence, key, momentum):
    us, accs = _advanced(xs, residuals, multiplier, momentum)
    parts = [
        _select(lists.flat(acc), sampling, key.stream(i))
        for i, (acc, sampling) in enumerate(zip(accs, samplings))
    ]
    values, indices, counts = zip(*parts)
    finite = one_tensor.all_finite(accs)
    residuals_out = None
    if residuals:
        sent = [
            tf.reshape(
                one_tensor.scatter_sum(v[None], i[None], c[None], a.shape.num_elements()), a.shape
            )
            for (v, i, c), a in zip(parts, accs)
        ]
        residuals_out = [acc - s for acc, s in zip(accs, sent)]
        if momentum and momentum.masked:
            us = [tf.where(s == 0, u, 0.0) for u, s in zip(us, sent)]
    return tf.concat(values, 0), tf.concat(indices, 0), tf.stack(counts), us, residuals_out, finite
