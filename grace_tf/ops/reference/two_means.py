"""What the operations of `grace_tf.ops.two_means` mean, in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import index_sets
from grace_tf.ops.reference.arithmetic import MAGNITUDE, SMALLEST_NORMAL, bits_of, pairwise_sum
from grace_tf.ops.reference.lists import encode_each
from grace_tf.ops.reference.one_tensor import scatter_sum
from grace_tf.ops.reference.words import pack, unpack

Parts = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]


def _shares(sizes: Sequence[tf.Tensor], k: int) -> list[tf.Tensor]:
    """The number of elements sent of each side, given the sizes of both sides."""
    positive, negative = (tf.cast(size, tf.int64) for size in sizes)
    total = positive + negative
    # With no elements at all there is nothing to divide by.
    share = (2 * k * positive + total) // (2 * tf.maximum(total, 1))
    few = total <= k
    shares = tf.where(few, positive, share), tf.where(few, negative, k - share)
    return [tf.cast(each, tf.int32) for each in shares]


def encode(x: tf.Tensor, k: int) -> Parts:
    """(means [2], signs [packed_words(k, 1)], indices [k], count [1]) of float32 x [n]."""
    n, bits = x.shape[0], bits_of(x)
    keys = bits & MAGNITUDE
    normal = keys >= SMALLEST_NORMAL
    sides = [normal & (bits >= 0), normal & (bits < 0)]
    shares = _shares([tf.reduce_sum(tf.cast(side, tf.int32)) for side in sides], k)
    chosen = []
    for side, share in zip(sides, shares):
        largest = tf.math.top_k(tf.where(side, keys, 0), k).indices
        chosen.append(tf.where(tf.range(k) < share, largest, n))
    indices = tf.sort(tf.concat(chosen, 0))[:k]
    count = shares[0] + shares[1]
    used = tf.range(k) < count
    indices = tf.where(used, indices, 0)
    values = tf.where(used, tf.gather(x, indices), 0.0)
    rows = tf.stack([tf.where(values > 0, values, 0.0), tf.where(values < 0, values, 0.0)])
    sizes = tf.cast(tf.maximum(tf.stack(shares), 1), tf.float64)
    means = tf.cast(pairwise_sum(tf.cast(rows, tf.float64)) / sizes, tf.float32)
    return means, pack(tf.cast(values > 0, tf.int32), 1), indices, count[tf.newaxis]


def decode(means: tf.Tensor, signs: tf.Tensor, k: int) -> tf.Tensor:
    """The values of the entries, float32 [k]."""
    return tf.where(unpack(signs, k, 1) == 1, means[0], means[1])


def encode_list(xs: Sequence[tf.Tensor], residuals, multiplier: float, ks: Sequence[int]):
    def encode_one(i, acc):
        return encode(acc, ks[i])

    def decode_one(i, parts):
        means, signs, indices, count = parts
        values = decode(means, signs, ks[i])[None]
        return scatter_sum(values, indices[None], count, xs[i].shape.num_elements())

    return encode_each(xs, residuals, multiplier, encode_one, decode_one)


def decode_list(means: tf.Tensor, signs: tf.Tensor, ks: Sequence[int]) -> tf.Tensor:
    means = tf.split(means, [2] * len(ks))
    signs = tf.split(signs, [packed_words(k, 1) for k in ks])
    return tf.concat([decode(*each) for each in zip(means, signs, ks)], 0)


def scatter_list(means, signs, words, counts, ks, shapes, factor):
    # A loop, so that the graph does not grow with the number of workers.
    values = tf.map_fn(
        lambda own: decode_list(*own, ks),
        (means, signs),
        fn_output_signature=tf.TensorSpec([sum(ks)], tf.float32),
    )
    return index_sets.scatter_list(values, words, counts, ks, shapes, factor)
