"""MinMaxSketch (SketchML, section 3.3): the low bits of ids, with collisions, in fewer bits still.

A sketch stands for the low bits of the ids of k entries, which their indices name; the high bits
are not in it. It has `rows` tables of `columns` cells of the low bits. Each entry has one cell in
each row, by a hash of its index. A cell holds the smallest number that was put into it; an empty
cell holds the largest possible number. An entry is looked up as the largest number in its cells. So
the result is never larger than the entry's number, and it is exact if in one of the rows no smaller
number shares the entry's cell.

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

import numpy as np
import tensorflow as tf

from grace_tf.ops import dispatch, index_sets
from grace_tf.ops.backend.arguments import Key
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.backend.words_as_floats import carried, one_row
from grace_tf.ops.codes import quantiles
from grace_tf.ops.codes.quantiles import id_bits
from grace_tf.ops.reference import quantiles as reference
from grace_tf.ops.reference.arithmetic import flush
from grace_tf.ops.reference.words import pack, unpack


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
    def cells(self) -> int:
        """How many there are."""
        return self.rows * sum(self.columns)

    @property
    def words(self) -> int:
        """The words of all cells."""
        return self.cells // 32 * self.bits


def _owners(ks: Sequence[int]) -> tf.Tensor:
    """Which tensor of the list each entry belongs to, int32 [K]."""
    firsts = np.cumsum(ks[:-1], dtype=np.int64)[:, np.newaxis]
    begins = tf.scatter_nd(firsts, np.ones(len(firsts), np.int32), [sum(ks)])
    return tf.cumsum(begins)


def cells_of(indices: tf.Tensor, key: Key, tables: Tables) -> tf.Tensor:
    """The cells int32 [W, rows, K] of entries with the indices int32 [W, K]."""
    rows = tables.rows
    words = tf.bitcast(dispatch.chosen().random_words(4 * rows, key), tf.uint32)
    words = tf.unstack(tf.reshape(tf.cast(words, tf.int64), [4, rows, 1]))
    half = tf.constant(32, tf.int64)
    times = tf.bitwise.left_shift(words[0], half) | words[1]
    plus = tf.bitwise.left_shift(words[2], half) | words[3]
    starts = [rows * sum(tables.columns[:i]) for i in range(len(tables.columns))]
    each = tf.constant([[v << 31 for v in tables.variables], tables.columns, starts], tf.int64)
    variables, columns, starts = tf.unstack(tf.gather(each, _owners(tables.ks), axis=1))
    numbers = tf.expand_dims(tf.cast(indices, tf.int64) + variables, 1)
    upper = tf.bitwise.right_shift(times * numbers + plus, half) & 0xFFFFFFFF
    column = tf.bitwise.right_shift(upper * columns, half)
    row = tf.constant(np.arange(rows)[:, np.newaxis])
    return tf.cast(starts + row * columns + column, tf.int32)


def insert(low: tf.Tensor, cells: tf.Tensor, tables: Tables) -> tf.Tensor:
    """The words int32 [tables.words] of sketches of the low bits int32 [K] of entries.

    cells: those of the entries, `cells_of`, of one worker.
    """
    cells = tf.reshape(cells, [-1, 1])
    empty = tf.fill([tables.cells], (1 << tables.bits) - 1)
    each = tf.tile(low, [tables.rows])
    return pack(tf.tensor_scatter_nd_min(empty, cells, each), tables.bits)


def query(words: tf.Tensor, cells: tf.Tensor, tables: Tables) -> tf.Tensor:
    """The low bits int32 [W, K] that W workers' sketches [W, tables.words] hold for entries."""
    workers = words.shape[0]
    held = unpack(tf.reshape(words, [-1]), workers * tables.cells, tables.bits)
    held = tf.reshape(held, [workers, tables.cells])
    return tf.reduce_max(tf.gather(held, cells, batch_dims=1), axis=1)


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
    Raises: ValueError for tables of 2^31 cells or more.
    """
    ks, tables = tuple(max(1, int(ratio * n)) for n in lengths), None
    if sketched:
        rows, each, span = sketched
        columns = tuple(32 * packed_words(math.ceil(each * k), 1) for k in ks)
        tables = Tables(rows, columns, span.bit_length() - 1, ks, tuple(variables))
        if tables.cells > tf.int32.max:
            raise ValueError(
                f"A sketch of the ids of {sum(ks)} elements would have {tables.cells} cells, and "
                "has fewer than 2^31: take fewer rows or columns, or a lower ratio."
            )
    return Entries(tuple(lengths), ks, buckets, tables)


def _unpacked(words: tf.Tensor, bits: int, ks: Sequence[int], owners: tf.Tensor) -> tf.Tensor:
    """The codes int32 [W, K] in words [W, the words of each tensor's codes]."""
    workers, groups = words.shape[0], [packed_words(k, 1) for k in ks]
    codes = unpack(tf.reshape(words, [-1]), workers * sum(groups) * 32, bits)
    codes = tf.reshape(codes, [workers, sum(groups) * 32])
    # Before the codes of a tensor lies the padding of the last words of all tensors before it.
    filled = np.cumsum([0, *(32 * g - k for g, k in zip(groups, ks))][:-1])
    places = tf.range(sum(ks)) + tf.gather(tf.constant(filled, tf.int32), owners)
    return tf.gather(codes, places, axis=1)


def _means(means: tf.Tensor, ids: tf.Tensor, owners: tf.Tensor, buckets: int) -> tf.Tensor:
    """The values float32 [W, K] that the ids int32 [W, K] of each tensor's entries name."""
    places = tf.minimum(ids, buckets - 1) + owners * buckets
    return flush(tf.gather(means, places, batch_dims=1))


def encode(
    values: tf.Tensor,
    indices: tf.Tensor,
    key: Key | None,
    entries: Entries,
    needs_sent: bool = False,
) -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
    """The payload of values float32 [K] at ascending indices int32 [K]: means and `words`.

    With sketches, which alone need a key, the means are those of the entries that are looked up in
    each bucket.  Also returns the values that the payload stands for; None without `needs_sent`.
    """
    tables, ks = entries.tables, entries.ks
    span = 1 << tables.bits if tables else 1
    parts = tf.split(values, ks)
    words, means, _, _ = quantiles.encode_list(parts, None, 1.0, entries.buckets, span)
    packed = index_sets.pack_list(indices, None, entries.lengths, ks)
    if tables is None:
        payload = {"means": means, "ids": words, "indices": packed}
        if not needs_sent:
            return payload, None
        rows = one_row(payload)
        return payload, _plain(rows["ids"], rows["means"], entries)[0]
    bits, owners = id_bits(entries.buckets), _owners(ks)
    ids = _unpacked(words[tf.newaxis], bits, ks, owners)[0]
    cells = cells_of(indices[tf.newaxis], key, tables)
    held = insert(ids & (span - 1), cells, tables)
    found = (ids & -span) + query(held[tf.newaxis], cells, tables)[0]
    places = tf.minimum(found, entries.buckets - 1) + owners * entries.buckets
    means = reference.means_of(values, places, len(ks) * entries.buckets)
    high = tf.reshape(tf.reshape(words, [-1, bits])[:, tables.bits :], [-1])
    payload = {"means": means, "ids": high, "indices": packed, "cells": held}
    return payload, flush(tf.gather(means, places)) if needs_sent else None


def decode(payloads: dict[str, tf.Tensor], key: Key | None, entries: Entries) -> tf.Tensor:
    """The values of all entries, float32 [W, K]; each part has one row for each of W workers."""
    tables, ks = entries.tables, entries.ks
    words, means = payloads["ids"], payloads["means"]
    if tables is None:
        return _plain(words, means, entries)
    indices, owners = index_sets.unpack_list(payloads["indices"], entries.lengths, ks), _owners(ks)
    low = query(payloads["cells"], cells_of(indices, key, tables), tables)
    high = tf.bitwise.left_shift(_unpacked(words, entries.high, ks, owners), tables.bits)
    return _means(means, high | low, owners, entries.buckets)


def _plain(words: tf.Tensor, means: tf.Tensor, entries: Entries) -> tf.Tensor:
    """The values float32 [W, K] whose ids are all in the words, a row for each worker."""
    ks = entries.ks
    if not dispatch.runs_here([words, means]):
        owners = _owners(ks)
        return _means(means, _unpacked(words, entries.high, ks, owners), owners, entries.buckets)
    # The tensors of all workers as those of one, so that the graph does not grow with them.
    workers = words.shape[0]
    rows = (carried(lambda part: tf.reshape(part, [1, -1]), part) for part in (words, means))
    values, _ = quantiles.decode_list(*rows, [[k] for k in ks] * workers, 1.0, entries.buckets)
    return tf.reshape(tf.concat(values, 0), [workers, sum(ks)])
