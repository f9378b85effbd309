"""MinMaxSketch (SketchML, section 3.3): the low bits of ids, with collisions, in fewer bits still.

A sketch stands for the low bits of the ids of k entries, which their indices name; the high bits
are not in it. It has `rows` tables of `columns` cells of the low bits. Each entry has one cell in
each row, by a hash of its index. A cell holds the least number that was put into it, or the largest
possible one if none was, and an entry is looked up as the largest of its cells: so never as more
than it was, and exactly if in some row no lesser one has met it.

With a, b and so on from 64 random bits each, one pair for each row, drawn from a stream that all
workers share, and v the number of the variable, the cell of index i is

    floor(columns * h / 2^32), h = the upper half of (a * (v * 2^31 + i) + b) mod 2^64

The parts of the tensors of a list lie one after another. All of it is plain TensorFlow, with as
many nodes for a list as for one tensor, in O(rows * k).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from grace_tf import ops
from grace_tf.ops import index_sets, quantiles
from grace_tf.ops import reference_quantiles as reference
from grace_tf.ops.quantiles import id_bits
from grace_tf.ops.reference import _flush, _pack, _unpack
from grace_tf.ops.words import packed_words


class Tables(NamedTuple):
    """The sketches of a list of tensors."""

    rows: int
    columns: tuple[int, ...]
    """Of each tensor; multiples of 32, so that tables are whole words."""
    bits: int
    """Of a cell."""
    ks: tuple[int, ...]
    """How many entries each tensor has."""
    variables: tuple[int, ...]

    @property
    def words(self) -> int:
        """The words of all cells."""
        return self.rows * sum(self.columns) // 32 * self.bits


def _cells(indices: tf.Tensor, key: ops.Key, tables: Tables) -> tf.Tensor:
    """The cells int32 [W, rows, K] of entries with the indices int32 [W, K]."""
    rows, total = tables.rows, sum(tables.ks)
    words = tf.reshape(tf.cast(ops.random_words(4 * rows, key), tf.int64), [4, rows, 1])
    words &= 0xFFFFFFFF
    half = tf.constant(32, tf.int64)
    times = tf.bitwise.left_shift(words[0], half) | words[1]
    plus = tf.bitwise.left_shift(words[2], half) | words[3]
    starts = [rows * sum(tables.columns[:i]) for i in range(len(tables.columns))]
    told = [[v << 31 for v in tables.variables], tables.columns, starts]
    told = tf.repeat(tf.constant(told, tf.int64), tables.ks, axis=1)
    told.set_shape([3, total])
    variables, columns, starts = tf.unstack(told)
    numbers = (tf.cast(indices, tf.int64) + variables)[:, tf.newaxis]
    upper = tf.bitwise.right_shift(times * numbers + plus, half) & 0xFFFFFFFF
    column = tf.bitwise.right_shift(upper * columns, half)
    row = tf.range(rows, dtype=tf.int64)[:, tf.newaxis]
    return tf.cast(starts + row * columns + column, tf.int32)


def insert(low: tf.Tensor, indices: tf.Tensor, key: ops.Key, tables: Tables) -> tf.Tensor:
    """The words int32 [tables.words] of sketches of the low bits int32 [K] of entries."""
    cells = tf.reshape(_cells(indices[tf.newaxis], key, tables), [-1, 1])
    size = tables.rows * sum(tables.columns)
    empty = tf.fill([size], (1 << tables.bits) - 1)
    each = tf.tile(low, [tables.rows])
    return _pack(tf.tensor_scatter_nd_min(empty, cells, each), tables.bits)


def query(words: tf.Tensor, indices: tf.Tensor, key: ops.Key, tables: Tables) -> tf.Tensor:
    """The low bits int32 [W, K] that W workers' sketches [W, tables.words] hold for entries."""
    workers, size = words.shape[0], tables.rows * sum(tables.columns)
    held = _unpack(tf.reshape(words, [-1]), workers * size, tables.bits)
    held = tf.reshape(held, [workers, size])
    found = tf.gather(held, _cells(indices, key, tables), batch_dims=1)
    return tf.reduce_max(found, axis=1)


class Entries(NamedTuple):
    """How the selected elements of a list of tensors are sent."""

    lengths: tuple[int, ...]
    """Of the tensors."""
    ks: tuple[int, ...]
    """How many entries each has."""
    buckets: int
    tables: Tables | None
    """The tables that carry the low bits of ids; None where all bits are sent as they are."""

    @property
    def high(self) -> int:
        """How many bits of each id are sent as they are."""
        return id_bits(self.buckets) - (self.tables.bits if self.tables else 0)

    @property
    def words(self) -> dict[str, int]:
        """How many words each part has, but the means."""
        words = {
            "ids": sum(packed_words(k, self.high) for k in self.ks),
            "indices": sum(map(index_sets.index_words, self.lengths, self.ks)),
        }
        return {**words, "cells": self.tables.words} if self.tables else words


def entries_of(
    lengths: Sequence[int],
    ratio: float,
    buckets: int,
    variables: Sequence[int],
    sketched: tuple[int, float, int] | None,
) -> Entries:
    """The entries of tensors of which this fraction is sent.

    sketched: rows, cells of a row for each entry, and how many ids have the same high bits; None
      for no sketch.
    """
    ks, tables = tuple(max(1, int(ratio * n)) for n in lengths), None
    if sketched:
        rows, each, span = sketched
        columns = tuple(32 * packed_words(math.ceil(each * k), 1) for k in ks)
        tables = Tables(rows, columns, span.bit_length() - 1, ks, tuple(variables))
    return Entries(tuple(lengths), ks, buckets, tables)


def _unpacked(words: tf.Tensor, bits: int, ks: Sequence[int]) -> tf.Tensor:
    """The codes int32 [W, K] in words [W, the words of each tensor's codes]."""
    workers, groups = words.shape[0], sum(packed_words(k, 1) for k in ks)
    codes = _unpack(tf.reshape(words, [-1]), workers * groups * 32, bits)
    valid = [min(32, k - at) for k in ks for at in range(0, k, 32)]
    mask = tf.range(32) < tf.constant(valid)[:, tf.newaxis]
    codes = tf.boolean_mask(tf.reshape(codes, [workers, groups, 32]), mask, axis=1)
    return tf.ensure_shape(codes, [workers, sum(ks)])


def _of_list(ids: tf.Tensor, entries: Entries) -> tf.Tensor:
    """Ids of each tensor as numbers among the buckets of all."""
    starts = [entries.buckets * i for i in range(len(entries.ks))]
    starts = tf.repeat(tf.constant(starts), entries.ks)
    return tf.minimum(ids, entries.buckets - 1) + tf.ensure_shape(starts, [sum(entries.ks)])


def encode(
    values: tf.Tensor, indices: tf.Tensor, key: ops.Key | None, entries: Entries
) -> dict[str, tf.Tensor]:
    """The payload of values float32 [K] at ascending indices int32 [K]: means and `words`.

    With sketches, which alone need a key, the means are those of the entries that are looked up in
    each bucket.
    """
    tables, ks = entries.tables, entries.ks
    span = 1 << tables.bits if tables else 1
    parts = tf.split(values, ks)
    words, means, _, _ = quantiles.encode_list(parts, None, 1.0, entries.buckets, span)
    packed = index_sets.pack_list(indices, None, entries.lengths, ks)
    if tables is None:
        return {"means": means, "ids": words, "indices": packed}
    bits = id_bits(entries.buckets)
    ids = _unpacked(words[tf.newaxis], bits, ks)[0]
    cells = insert(ids & (span - 1), indices, key, tables)
    low = query(cells[tf.newaxis], indices[tf.newaxis], key, tables)[0]
    found = _of_list((ids & -span) + low, entries)
    means = reference.means_of(values, found, len(ks) * entries.buckets)
    high = tf.reshape(tf.reshape(words, [-1, bits])[:, tables.bits :], [-1])
    return {"means": means, "ids": high, "indices": packed, "cells": cells}


def decode(
    payloads: dict[str, tf.Tensor],
    key: ops.Key | None,
    entries: Entries,
    indices: tf.Tensor | None = None,
) -> tf.Tensor:
    """The values float32 [W, K] of W workers' entries, from a row of each part for each worker.

    The indices are unpacked where they are not given, int32 [W, K].
    """
    tables, ks = entries.tables, entries.ks
    words, means = payloads["ids"], payloads["means"]
    if tables is None:
        # The tensors of all workers as those of one, so that the graph does not grow with them.
        workers, rows = words.shape[0], (tf.reshape(part, [1, -1]) for part in (words, means))
        shapes = [[k] for k in ks] * workers
        values, _ = quantiles.decode_list(*rows, shapes, 1.0, entries.buckets)
        return tf.reshape(tf.concat(values, 0), [workers, sum(ks)])
    if indices is None:
        indices = index_sets.unpack_list(payloads["indices"], entries.lengths, ks)
    low = query(payloads["cells"], indices, key, tables)
    high = tf.bitwise.left_shift(_unpacked(words, entries.high, ks), tables.bits)
    return _flush(tf.gather(means, _of_list(high | low, entries), batch_dims=1))
