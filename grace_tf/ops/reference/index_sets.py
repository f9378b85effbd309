"""What the operations of `grace_tf.ops.index_sets` mean, in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import one_tensor, selection
from grace_tf.ops.reference.words import pack, unpack


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
    return pack(bits[:size], 1)


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
    return tf.concat([pack(tf.reshape(bits, [-1]), 1), upper], 0)


def _unpacked(words: tf.Tensor, n: int, k: int) -> tf.Tensor:
    layout = index_layout(n, k)
    bits = unpack(words[layout.low_words :], layout.upper_bits, 1)
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
        bits = unpack(words[: layout.low_words], k * layout.low, 1)
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

    def unpacked(row):
        parts = tf.split(row, sizes)
        return tf.concat([_unpacked(*each) for each in zip(parts, lengths, ks)], 0)

    # A loop, so that the graph does not grow with the number of workers.
    return tf.map_fn(unpacked, words, fn_output_signature=tf.TensorSpec([sum(ks)], tf.int32))


def scatter_list(values, words, counts, ks, shapes, factor):
    lengths = [shape.num_elements() for shape in shapes]
    indices = unpack_list(words, lengths, ks)
    totals, _ = selection.scatter(values, indices, counts, ks, shapes, factor)
    columns = [None] * len(ks) if counts is None else tf.unstack(counts, axis=1)
    parts = tf.split(indices, list(ks), axis=1)
    faults = [_fault(*each) for each in zip(parts, columns, lengths)]
    totals = _unless_faulty(totals, tf.stack(faults), lengths)
    return totals, one_tensor.all_finite(totals)


def _fault(indices: tf.Tensor, counts: tf.Tensor | None, n: int) -> tf.Tensor:
    """Of the first worker with a fault in indices [W, k]: 1 outside, 2 unordered; or 0."""
    used = tf.fill(indices.shape, True)
    if counts is not None:
        used = tf.range(indices.shape[1]) < counts[:, tf.newaxis]
    outside = tf.reduce_any(used & (indices >= n), axis=1)
    unordered = tf.reduce_any(used[:, 1:] & (indices[:, 1:] <= indices[:, :-1]), axis=1)
    kinds = tf.where(outside, 1, tf.where(unordered, 2, 0))
    return kinds[tf.argmax(tf.cast(kinds > 0, tf.int32))]


def _unless_faulty(
    totals: list[tf.Tensor], faults: tf.Tensor, lengths: Sequence[int]
) -> list[tf.Tensor]:
    """The totals, or the native operation's InvalidArgumentError of the first faulty tensor.

    XLA has no errors: there faulty totals are NaN, which refuses the step.
    """
    sound = tf.reduce_all(faults == 0)
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return [tf.where(sound, total, np.float32(np.nan)) for total in totals]
    sentences = []
    for i, n in enumerate(lengths):
        # An entry outside its tensor is unpacked as n.
        sentences.append(f"Index {n} is outside tensor {i} of the list, which has {n} elements.")
        sentences.append(f"A worker's indices into tensor {i} of the list do not ascend strictly.")
    first = tf.argmax(tf.cast(faults > 0, tf.int32), output_type=tf.int32)
    if tf.executing_eagerly():
        if not sound:
            sentence = sentences[2 * int(first) + int(faults[first]) - 1]
            raise tf.errors.InvalidArgumentError(None, None, sentence)
        return totals
    number = tf.maximum(2 * first + faults[first] - 1, 0)
    with tf.control_dependencies(
        [tf.debugging.Assert(sound, [tf.gather(tf.constant(sentences), number)])]
    ):
        return [tf.identity(total) for total in totals]
