"""Carries rows of sparse gradients between processes; their number differs by worker and by step.

It takes one worker's IndexedSlices, one for each lane, and returns those of all workers, each row
once.  TensorFlow ties a collective to one size.  So workers gather their row counts first, from
which all compute the longest message; then they gather the messages, padded to the next of a few
sizes.  A message consists of 32-bit words: for every lane the indices, then the values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from grace_tf.transports.base import CollectiveRecord, Keys, Lanes, Tensors, Transport

# The sizes of a gather in words: 4 KiB … 16 MiB, each a third or a half larger than the one before,
# so that about a fifth of a message is padding.  Several small gathers would cost 2 ms each.
SIZES = tuple(words << k for k in range(12) for words in (1024, 1536)) + (1024 << 12,)

# The names of keys: one for each collective, and one for the counter of words handed over.
NAMES = ("counts", "words", *(f"rows/{size}" for size in SIZES))

# The same for messages of any content, whose lengths the caller has compared.
MESSAGES = ("lengths", "words", *(f"messages/{size}" for size in SIZES))

Gather = Callable[[tf.Tensor, str], tf.Tensor]


def all_rows(
    slices: Sequence[tf.IndexedSlices], gather: Gather
) -> tuple[list[tf.IndexedSlices], tf.Tensor]:
    """All workers' rows, lane by lane, and the number of words that this worker handed over.

    `gather(words, name)` returns int32 `[size, n]` for each worker's `[n]`; each name, one of
    NAMES, always has the same n.  Everything about the slices but the number of rows is static and
    equal on all workers.
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
    """The rows with repeated rows added up, in their order.

    The kernels by which optimizers scatter rows into a table add repeated rows in no fixed order,
    so workers would end with different bits.  This runs on the CPU, where the order is fixed.
    """
    with tf.device("/CPU:0"):
        unique, where = tf.unique(indices)
        sums = tf.math.unsorted_segment_sum(values, where, tf.size(unique))
    return tf.IndexedSlices(sums, unique, shape)


class Counters:
    """The number of words handed over for rows: a variable per plan, since it differs by step."""

    def __init__(self) -> None:
        self._words: dict[int, ResourceVariable] = {}  # held: traced steps assign to them

    def handed(self, key: int, words: tf.Tensor) -> CollectiveRecord:
        """The record of a gather of `words` words, for the plan with this key."""
        if key not in self._words:
            with tf.init_scope(), tf.device("/CPU:0"):
                self._words[key] = ResourceVariable(0, trainable=False, name="grace_tf_row_words")
        self._words[key].assign(words)
        return CollectiveRecord("gather", "int32", self._words[key])


def gathered(
    message: tf.Tensor, longest: tf.Tensor, gather: Gather, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """(the int32 messages of all workers, each padded; their padded length).

    `longest` is the length of the longest message, the same on all workers; the collectives are
    named `<name>/<size>`.
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
    # The message is cut, since branches that never run are traced too, also with shorter lengths.
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
    """A transport that carries rows and messages by its gathers, each of one fixed length."""

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
