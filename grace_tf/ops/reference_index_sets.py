"""What the operations of `grace_tf.ops.index_sets` mean, in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from grace_tf.ops import reference
from grace_tf.ops.reference import _pack, _unpack
from grace_tf.ops.words import packed_words


class IndexLayout(NamedTuple):
    """How a set of at most k of the numbers below n is written."""

    low: int
    """How many low bits an entry has; 0 in a plain bitmap."""
    low_words: int
    upper_bits: int
    plain: bool
    """Whether it is a plain bitmap."""
    words: int
    """Of all."""


def index_layout(n: int, k: int) -> IndexLayout:
    low = (n // k).bit_length() - 1
    low_words, upper_bits = packed_words(k * low, 1), k + ((n - 1) >> low)
    words, plain = low_words + packed_words(upper_bits, 1), packed_words(n, 1)
    if plain <= words:
        return IndexLayout(0, 0, n, True, plain)
    return IndexLayout(low, low_words, upper_bits, False, words)


def _bitmap(places: tf.Tensor, used: tf.Tensor, size: int) -> tf.Tensor:
    """The words of a bitmap of this size; one more place takes what is not used."""
    places = tf.where(used, places, size)[:, tf.newaxis]
    ones = tf.ones([places.shape[0]], tf.int32)
    bits = tf.tensor_scatter_nd_update(tf.zeros([size + 1], tf.int32), places, ones)
    return _pack(bits[:size], 1)


def _packed(indices: tf.Tensor, count: tf.Tensor, n: int, k: int) -> tf.Tensor:
    layout = index_layout(n, k)
    rank = tf.range(k)
    used = rank < count
    if layout.plain:
        return _bitmap(indices, used, n)
    places = tf.bitwise.right_shift(indices, layout.low) + rank
    upper = _bitmap(places, used, layout.upper_bits)
    if not layout.low:
        return upper
    shifts = tf.range(layout.low)
    bits = tf.bitwise.right_shift(tf.where(used, indices, 0)[:, tf.newaxis], shifts) & 1
    return tf.concat([_pack(tf.reshape(bits, [-1]), 1), upper], 0)


def _unpacked(words: tf.Tensor, n: int, k: int) -> tf.Tensor:
    layout = index_layout(n, k)
    bits = _unpack(words[layout.low_words :], layout.upper_bits, 1)
    rank = tf.cumsum(bits) - 1
    # One more entry takes the zeros and what is beyond the last.
    entries = tf.where((bits == 1) & (rank < k), rank, k)[:, tf.newaxis]
    missing = tf.fill([k + 1], layout.upper_bits)
    found = tf.range(layout.upper_bits)
    places = tf.tensor_scatter_nd_update(missing, entries, found)[:k]
    if layout.plain:
        return places
    upper = places - tf.range(k)
    inside = (places < layout.upper_bits) & (upper <= (n - 1) >> layout.low)
    low = tf.zeros([k], tf.int32)
    if layout.low:
        bits = _unpack(words[: layout.low_words], k * layout.low, 1)
        bits = tf.reshape(bits, [k, layout.low])
        low = tf.reduce_sum(tf.bitwise.left_shift(bits, tf.range(layout.low)), axis=1)
    indices = tf.bitwise.left_shift(tf.where(inside, upper, 0), layout.low) | low
    return tf.minimum(tf.where(inside, indices, n), n)


def pack_list(
    indices: tf.Tensor, counts: tf.Tensor | None, lengths: Sequence[int], ks: Sequence[int]
) -> tf.Tensor:
    counts = ks if counts is None else tf.unstack(counts)
    parts = tf.split(indices, list(ks))
    return tf.concat([_packed(*each) for each in zip(parts, counts, lengths, ks)], 0)


def unpack_list(words: tf.Tensor, lengths: Sequence[int], ks: Sequence[int]) -> tf.Tensor:
    sizes = [index_layout(n, k).words for n, k in zip(lengths, ks)]

    def unpack(row):
        parts = tf.split(row, sizes)
        return tf.concat([_unpacked(*each) for each in zip(parts, lengths, ks)], 0)

    # A loop, so that the graph does not grow with the number of workers.
    return tf.map_fn(unpack, words, fn_output_signature=tf.TensorSpec([sum(ks)], tf.int32))


def scatter_list(values, words, counts, ks, shapes, factor) -> list[tf.Tensor]:
    lengths = [shape.num_elements() for shape in shapes]
    indices = tf.split(unpack_list(words, lengths, ks), list(ks), axis=1)
    totals = []
    for i, value in enumerate(tf.split(values, list(ks), axis=1)):
        count = None if counts is None else counts[:, i]
        total = reference.scatter_sum(value, indices[i], count, lengths[i])
        totals.append(tf.reshape(total * factor, shapes[i]))
    return totals
