"""Turns the rows of a table into 32-bit words, compressed, and the words of all workers into rows.

The number of rows that a worker touches differs from step to step, but compressors need static
shapes.  So rows are compressed in chunks of 1024, 32 and 1 rows: first as many of the largest
chunks as fit, then of the next.  No chunk is padded, so no padding enters a quantiser's scale.
Rows of several tables may follow one another.  One chunk may then hold the last rows of a table and
the first rows of the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.context import Context
from grace_tf.core.rounds import Gather
from grace_tf.line import wire

ROWS = (1024, 32, 1)  # each divides the one before it
_ELEMENTS = 1 << 20  # the largest number of elements in a chunk of several rows
_ODD = 0x9E3779B1  # a factor without common divisors with 2^32


def index_dtype(rows: int) -> tf.DType:
    """The dtype of the row numbers of a table of so many rows, on the wire."""
    return tf.int32 if rows <= tf.int32.max else tf.int64


@dataclasses.dataclass(frozen=True)
class Kind:
    """Chunks with the same number of rows: their spec and their buffer on the wire."""

    spec: tf.TensorSpec
    buffer: wire.Buffer

    @property
    def rows(self) -> int:
        return self.spec.shape[0]

    @property
    def words(self) -> int:
        return self.buffer.length


class Chunks:
    """Turns rows of tables into words, compressed by this compressor, and back.

    `shape` is that of all tables end to end, which have rows of one shape; `index` is the dtype of
    their row numbers on the wire.
    Eager steps call a function that is traced once here: eager execution of each operation of each
    chunk would take a second a step.
    """

    def __init__(self, compressor: Compressor, shape: tuple[int, ...], index: tf.DType) -> None:
        self._compressor, self._row = compressor, tuple(shape[1:])
        self._traced: dict[Any, Callable] = {}
        self.index = index
        elements = tf.TensorShape(self._row).num_elements()
        self._kinds = []
        for rows in ROWS:
            if rows == 1 or (rows <= shape[0] and rows * elements <= _ELEMENTS):
                spec = tf.TensorSpec([rows, *self._row], tf.float32)
                (buffer,) = wire.layout([Gather([compressor.wire(spec)])], flagged=False)
                self._kinds.append(Kind(spec, buffer))

    def length(self, counts: tf.Tensor) -> tf.Tensor:
        """The number of words for each of these numbers of rows."""
        total = counts * (self.index.size // 4)
        for kind, number, _ in self._split(counts):
            total += number * kind.words
        return total

    def _split(self, counts: tf.Tensor) -> Iterator[tuple[Kind, tf.Tensor, tf.Tensor]]:
        """(kind, how many chunks of it, the first row in them) for these numbers of rows."""
        start = tf.zeros_like(counts)
        for kind in self._kinds:
            number = (counts - start) // kind.rows
            yield kind, number, start
            start += number * kind.rows

    def encode(
        self, indices: tf.Tensor, values: tf.Tensor, ctx: Context
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """(words, decoded rows) of one worker's rows.

        The rows of the first table come first, then those of the next.  Within a table no row comes
        twice.
        `indices` are of the dtype `index`, `values` float32 `[rows, ...]`; `ctx` is the sender's
        context of the first table.  The decoded rows have the shape of `values`, or are None
        without `ctx.needs_sent`.
        """
        return self._traced_if_eager(self._encode, [indices, values], ctx)

    def decode(
        self, words: tf.Tensor, starts: tf.Tensor, counts: tf.Tensor, ctx: Context
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(indices, values) of all workers' rows, in worker order.

        Worker w's words begin at `words[starts[w]]` and stand for `counts[w]` rows; `ctx` is the
        public context of the first table.
        """
        return self._traced_if_eager(self._decode, [words, starts, counts], ctx)

    def _traced_if_eager(self, what: Callable, tensors: Sequence[tf.Tensor], ctx: Context) -> Any:
        """what(*tensors, ctx)"""
        if not tf.executing_eagerly():
            return what(*tensors, ctx)
        static = dataclasses.replace(ctx, step=0)
        known = (what.__name__, static)
        if known not in self._traced:

            def run(step: tf.Tensor, *tensors: tf.Tensor):
                return what(*tensors, dataclasses.replace(static, step=step))

            signature = [tf.TensorSpec([], tf.int64)]
            signature += [tf.TensorSpec([None, *t.shape[1:]], t.dtype) for t in tensors]
            self._traced[known] = tf.function(run, input_signature=signature, autograph=False)
        return self._traced[known](tf.cast(ctx.step, tf.int64), *tensors)

    def _encode(
        self, indices: tf.Tensor, values: tf.Tensor, ctx: Context
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        words, sent = [tf.reshape(tf.bitcast(indices, tf.int32), [-1])], []
        for kind, number, start in self._split(tf.shape(values)[0]):
            signature = [tf.TensorSpec([kind.words], tf.int32)]
            signature += [kind.spec] * ctx.needs_sent

            def chunk(k: tf.Tensor, kind: Kind = kind, start: tf.Tensor = start):
                first = start + k * kind.rows
                x = tf.ensure_shape(values[first : first + kind.rows], kind.spec.shape)
                chunk_ctx = _at(ctx, kind, first)
                payload = self._compressor.compress(x, chunk_ctx)
                # The values travel as int32, behind the row numbers.
                made = [tf.bitcast(wire.fuse(kind.buffer, [Gather([payload])]), tf.int32)]
                if ctx.needs_sent:
                    made.append(self._compressor.decompress(payload, chunk_ctx.public()))
                return made

            made = tf.map_fn(chunk, tf.range(number), fn_output_signature=signature)
            words.append(tf.reshape(made[0], [-1]))
            sent += [tf.reshape(each, [-1, *self._row]) for each in made[1:]]
        return tf.concat(words, 0), tf.concat(sent, 0) if ctx.needs_sent else None

    def _decode(
        self, words: tf.Tensor, starts: tf.Tensor, counts: tf.Tensor, ctx: Context
    ) -> tuple[tf.Tensor, tf.Tensor]:
        before = tf.cumsum(counts, exclusive=True)  # the number of rows of the workers before
        owner, k = _each(counts)
        width = self.index.size // 4
        places = tf.gather(starts, owner) + k * width
        raw = tf.gather(words, places[:, None] + tf.range(width))
        indices = tf.bitcast(raw, self.index) if width > 1 else raw[:, 0]
        values, places = [], []
        starts += counts * width
        for kind, number, start in self._split(counts):
            owner, k = _each(number)
            first = tf.gather(start, owner) + k * kind.rows

            def chunk(place_and_first, kind: Kind = kind):
                place, first = place_and_first
                replies: list = [[{}]]
                piece = tf.bitcast(tf.slice(words, [place], [kind.words]), wire.CARRIER)
                wire.split(kind.buffer, piece, replies)
                return self._compressor.decompress(replies[0][0], _at(ctx, kind, first))

            where = (tf.gather(starts, owner) + k * kind.words, first)
            decoded = tf.map_fn(chunk, where, fn_output_signature=kind.spec)
            values.append(tf.reshape(decoded, [-1, *self._row]))
            rows = (tf.gather(before, owner) + first)[:, None] + tf.range(kind.rows)
            places.append(tf.reshape(rows, [-1]))
            starts += number * kind.words
        order = tf.math.invert_permutation(tf.concat(places, 0))
        return indices, tf.gather(tf.concat(values, 0), order)


def _each(counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """All pairs (w, k) with k = 0 … counts[w] - 1, as two tensors."""
    owner = tf.repeat(tf.range(tf.shape(counts)[0]), counts)
    before = tf.gather(tf.cumsum(counts, exclusive=True), owner)
    return owner, tf.range(tf.shape(owner)[0]) - before


def _at(ctx: Context, kind: Kind, first: tf.Tensor) -> Context:
    """The context of the chunk that begins with this row; each chunk has its own random draws."""
    seed = (ctx.seed + tf.cast(first, tf.int64) * _ODD) & 0xFFFFFFFF
    return dataclasses.replace(ctx, specs=(kind.spec,), seed=seed)
