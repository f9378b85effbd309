"""Rows of sparse gradients between processes: their number differs by worker and by step.

It takes one worker's IndexedSlices, one for each lane, and returns those of all workers, each row
once.  TensorFlow ties a collective to one size, so workers gather their row counts first, from
which all know the longest message; then they gather the messages, padded to the next of a few
sizes.  A message is 32-bit words: of every lane the indices, then the values.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Callable

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from grace_tf.transports.base import CollectiveRecord, Keys, Lanes, Tensors, Transport

# Words of one gather: 4 KiB … 16 MiB, each a third or a half more than the one before, so that
# a fifth of a message is padding.  One gather is worth it: many small ones cost 2 ms each.
SIZES = tuple(words << k for k in range(12) for words in (1024, 1536)) + (1024 << 12,)

# What keys are asked for: the collectives, and the counter of the words handed over.
NAMES = ("counts", "words", *(f"rows/{size}" for size in SIZES))

# The same for messages, whatever they hold, whose lengths the caller has compared.
MESSAGES = ("lengths", "words", *(f"messages/{size}" for size in SIZES))

Gather = Callable[[tf.Tensor, str], tf.Tensor]


def all_rows(
    slices: Sequence[tf.IndexedSlices], gather: Gather
) -> tuple[list[tf.IndexedSlices], tf.Tensor]:
    """All workers' rows, lane by lane, and how many words this worker handed over for them.

    `gather(words, name)` gives int32 `[size, n]` for everyone's `[n]`; a name, one of NAMES, comes
    with one n.
    What is static about the slices, all but the number of rows, is equal on all workers.
    """
    given = [tensor for s in slices for tensor in (_narrow(s), s.values)]
    parts = [_to_words(tensor) for tensor in given]
    counts = tf.stack([tf.shape(s.indices)[0] for s in slices])
    table = gather(counts, "counts")  # [size, lanes]
    lengths = tf.repeat(table, 2, axis=1) * [part.shape[1] for part in parts]
    totals = tf.reduce_sum(lengths, 1)
    message = tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
    received, handed = gathered(message, tf.reduce_max(totals), gather, "rows")

    padding = tf.shape(received)[1] - totals
    sizes = tf.concat([lengths, padding[:, None]], 1)
    step = len(parts) + 1
    flat, number = tf.reshape(received, [-1]), table.shape[0] * step
    pieces = tf.split(flat, tf.reshape(sizes, [-1]), num=number)
    rows = tf.repeat(tf.reduce_sum(table, 0), 2)
    found = [
        _from_words(tf.reshape(tf.concat(pieces[i::step], 0), [rows[i], part.shape[1]]), tensor)
        for i, (part, tensor) in enumerate(zip(parts, given))
    ]
    totals = [
        summed(values, tf.cast(indices[:, 0], s.indices.dtype), s.dense_shape)
        for s, indices, values in zip(slices, found[::2], found[1::2])
    ]
    return totals, handed


def summed(values: tf.Tensor, indices: tf.Tensor, shape: tf.Tensor) -> tf.IndexedSlices:
    """The rows with repeated ones added up, in the order in which they come.

    Optimizers scatter rows into a table by kernels that add repeated ones in no fixed order, so
    workers would not end with the same bits.  It runs on the CPU, where the order is fixed.
    """
    with tf.device("/CPU:0"):
        unique, where = tf.unique(indices)
        sums = tf.math.unsorted_segment_sum(values, where, tf.size(unique))
    return tf.IndexedSlices(sums, unique, shape)


class Counters:
    """How many words were handed over for rows: a variable per plan, since every step differs."""

    def __init__(self) -> None:
        self._words: dict[int, ResourceVariable] = {}  # held: traced steps assign to them

    def handed(self, key: int, words: tf.Tensor) -> CollectiveRecord:
        """What to announce for a gather of so many words, of the plan with this key."""
        if key not in self._words:
            with tf.init_scope(), tf.device("/CPU:0"):
                self._words[key] = ResourceVariable(0, trainable=False, name="grace_tf_row_words")
        self._words[key].assign(words)
        return CollectiveRecord("gather", "int32", self._words[key])


def gathered(
    message: tf.Tensor, longest: tf.Tensor, gather: Gather, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Everyone's int32 message with padding behind it, and the length of that.

    `longest` is the length of the longest message, alike on all workers; what is gathered is called
    `<name>/<size>`.
    """
    largest = SIZES[-1]

    def at_once(size: int) -> tf.Tensor:
        return gather(padded(message, size), f"{name}/{size}")

    def in_pieces() -> tf.Tensor:
        # TensorFlow's ring slows down above some 50 MB.
        count = -(-longest // largest)
        pieces = tf.reshape(padded(message, count * largest), [count, largest])
        received = tf.map_fn(
            lambda piece: gather(piece, f"{name}/{largest}"), pieces, parallel_iterations=1
        )
        received = tf.transpose(received, [1, 0, 2])
        return tf.reshape(received, [received.shape[0], count * largest])

    choice = tf.searchsorted(SIZES, longest[None])[0]
    # Every worker knows the longest message, so all take the same branch.
    branches = [functools.partial(at_once, size) for size in SIZES]
    received = tf.switch_case(choice, [*branches, in_pieces])
    return received, tf.shape(received)[1]


def padded(message: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """The message, filled up with zeros to this length."""
    # Cut, since branches that are not taken are traced too, also those too short for the message.
    message = message[:length]
    padded = tf.pad(message, [[0, length - tf.shape(message)[0]]])
    return tf.ensure_shape(padded, [length]) if isinstance(length, int) else padded


def _narrow(slices: tf.IndexedSlices) -> tf.Tensor:
    """The indices as `[rows, 1]`, in 32 bits where the variable's shape allows."""
    small = slices.shape[0] <= tf.int32.max
    return tf.cast(slices.indices, tf.int32 if small else tf.int64)[:, None]


def _to_words(tensor: tf.Tensor) -> tf.Tensor:
    """int32 `[rows, words of a row]`; an odd last half of a row is padded with zero."""
    size = tensor.dtype.size
    if size % 2:
        raise TypeError(f"Rows of {tensor.dtype.name} cannot be sent between processes.")
    count = tensor.shape[1:].num_elements()
    flat = tf.reshape(tensor, [tf.shape(tensor)[0], count])
    if size == 2:
        flat = tf.pad(flat, [[0, 0], [0, count % 2]])
        flat = tf.reshape(flat, [tf.shape(flat)[0], flat.shape[1] // 2, 2])
    words = tf.bitcast(flat, tf.int32)
    return tf.reshape(words, [tf.shape(words)[0], -(-count * size // 4)])


def _from_words(words: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """The rows of `_to_words`, of the dtype and row shape of `like`."""
    size, count = like.dtype.size, like.shape[1:].num_elements()
    rows = tf.shape(words)[0]
    if size > 4:
        words = tf.reshape(words, [rows, count, size // 4])
    values = tf.bitcast(words, like.dtype)
    if size == 2:
        values = tf.reshape(values, [rows, 2 * words.shape[1]])[:, :count]
    return tf.reshape(values, [rows, *like.shape[1:]])


class GathersRows(Transport):
    """Carries rows and messages by its own gathers, one of which may not change its length."""

    def _rows(self, slices: Lanes, key: Keys) -> Lanes:
        totals, words = all_rows(slices[0], self._gatherer(key))
        if self._recording:
            handed = self._rows_handed.handed(key("words"), words)
            self._take_down([CollectiveRecord("gather", "int32", len(totals)), handed])
        return [totals]

    def _messages(self, messages: Tensors, longest: tf.Tensor, key: Keys) -> Tensors:
        received, words = gathered(messages[0], longest, self._gatherer(key), "messages")
        if self._recording:
            self._take_down([self._rows_handed.handed(key("words"), words)])
        return [received]

    def _gatherer(self, key: Keys) -> Gather:
        return lambda words, name: self._gather([words], key(name))[0]

    @functools.cached_property
    def _rows_handed(self) -> Counters:
        return Counters()
