"""Two hops replace a gather: each worker adds up one chunk of all payloads and sends all the sum.

It takes the payloads of a gather and the context of their group.  It returns one payload, that of
the sum over workers, as if a single worker had sent it.  A worker sends about twice the size of its
payload, whatever the number of workers; in a gather it sends its payload to each of the others.

    payload → chunks at block boundaries → AllToAll → decoded and added up in worker order
            → compressed again → Gather → the chunks of all workers, end to end

The owner of a chunk also decodes its own second payload, as all others do, so all workers end with
the same bits.  The error of the second compression counts as not sent by the owner: its memory
takes it back.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.context import Context
from grace_tf.core.memory import Memory
from grace_tf.core.rounds import AllToAll, Gather, Outcome, Payload, Rounds
from grace_tf.ops.backend.words_as_floats import CARRIER, as_carrier, from_carrier, row

FEWEST = 4  # workers: from here on two hops send at most about half of what a gather sends
_FEWEST_OF_VOTES = 5  # workers, for votes: their second hop may take two rows, for ties
SMALLEST = 64 << 10  # bytes of a group's payload; below, a second wait costs more than it saves
COARSEST = 3.0  # bits an element: the least where a memory stores the error of the second hop

_OVERFLOW = "two_hops.overflow"  # a part of the second hop that belongs to no method


def possible(compressor: Compressor, memory: Memory) -> bool:
    """Whether sums of payloads may be compressed again: blocks decode alone, and a memory that
    uses `sent` can take back the error."""
    again = compressor.recompressible and compressor.divides_at is not None
    return again and compressor.one_round and (memory.takes_back or not memory.needs_sent)


def taken(
    compressor: Compressor,
    memory: Memory,
    specs: Sequence[tf.TensorSpec],
    size: int,
    exchange: str,
) -> bool:
    """Whether a group of these tensors takes two hops between `size` workers.

    With `exchange="auto"` it does where that is `possible`, there are at least FEWEST workers (one
    more for votes) and SMALLEST bytes, and, with a memory that takes back, COARSEST bits an
    element.  "two_hop" sets none of these limits; "gather" means no hops.  A group that has no
    chunk for every worker is gathered.
    """
    if size == 1 or exchange == "gather" or not possible(compressor, memory):
        return False
    if exchange == "auto" and not _pays(compressor, memory, specs, size):
        return False
    return division_of(compressor, tuple(specs), size).for_all


def _pays(
    compressor: Compressor, memory: Memory, specs: Sequence[tf.TensorSpec], size: int
) -> bool:
    nbytes = compressor.group_nbytes(specs)
    elements = sum(spec.shape.num_elements() for spec in specs)
    # The owner's residual gets the error of a sum of N gradients.  A coarse method sends only a
    # small part of a residual in each step, so the residual grows with N, and training suffers.
    coarse = memory.takes_back and 8 * nbytes < COARSEST * elements
    fewest = FEWEST if compressor.aggregates == "sum" else _FEWEST_OF_VOTES
    return size >= fewest and nbytes >= SMALLEST and not coarse


def in_two_hops(rounds: Rounds, compressor: Compressor, memory: Memory, ctx: Context) -> Rounds:
    """The rounds of a group, with its gather replaced; yields and returns as `rounds` does.

    Args:
      rounds: of a compressor and memory for which this is `possible`.
      ctx: the sender's context of the group.
    """
    request = next(rounds)
    division = division_of(compressor, ctx.specs, ctx.size)
    lengths, hop = division.lengths, division.context(ctx)
    dtypes = {n: request.payloads[0][n].dtype for n in lengths}
    whole = {n: _joined([as_carrier(p[n]) for p in request.payloads]) for n in lengths}
    (received,) = yield AllToAll([{n: _rows(whole[n], lengths[n]) for n in whole}], request.finite)
    chunk = {n: received[n][:, : lengths[n][ctx.worker]] for n in whole}
    payloads = {n: from_carrier(chunk[n], dtypes[n]) for n in whole}
    sums = compressor.aggregate_list(payloads, hop.public())
    again = compressor.recompress_list(sums, hop)
    # A sum of finite numbers may be infinite, and some methods would decode that to finite numbers.
    overflow = tf.cast(~ops.all_finite(sums), CARRIER)[None]
    parts = {n: _padded(as_carrier(again[n]), max(lengths[n])) for n in whole}
    (replies,) = yield Gather([{**parts, _OVERFLOW: overflow}])
    total = {n: _whole(replies[n], lengths[n]) for n in whole}
    outcome = _finished(rounds, _split(total, request.payloads))
    finite = ops.all_finite(outcome.aggregates) if outcome.finite is None else outcome.finite
    finite &= tf.reduce_all(replies[_OVERFLOW] == 0)
    outcome = dataclasses.replace(outcome, finite=finite)
    if memory.takes_back:
        sent = compressor.decompress_list(row(again, 0), hop.public())
        lost = [each - back for each, back in zip(sums, sent)]
        outcome = _taken_back(outcome, memory, division.pieces[ctx.worker], ctx.specs, lost)
    return outcome


class Piece(NamedTuple):
    """A run of elements of one lane, which one worker adds up for all."""

    lane: int
    start: int
    stop: int

    @property
    def spec(self) -> tf.TensorSpec:
        return tf.TensorSpec([self.stop - self.start], tf.float32)


class Division:
    """The chunk of each worker in a group: runs of about equal length, cut at block boundaries.

    It depends only on the compressor, the specs and the number of workers.

    Attributes:
      pieces: `pieces[w]` are the runs that worker w owns, in the order of lanes; may be empty.
      lengths: `lengths[part][w]` is the number of elements of a payload part in its chunk.
    """

    def __init__(self, compressor: Compressor, specs: Sequence[tf.TensorSpec], size: int) -> None:
        self.pieces = _divided(
            [spec.shape.num_elements() for spec in specs], size, compressor.divides_at
        )
        wires = [[compressor.wire(piece.spec) for piece in mine] for mine in self.pieces]
        self.lengths = {
            part: [sum(wire[part].shape[0] for wire in mine) for mine in wires]
            for part in compressor.wire(specs[0])
        }

    @property
    def for_all(self) -> bool:
        """Whether every worker owns something."""
        return all(self.pieces)

    def context(self, ctx: Context) -> Context:
        """The context of the sender's chunk: lanes of one axis, and draws of its own."""
        mine = self.pieces[ctx.worker]
        return dataclasses.replace(
            ctx.hop(),
            specs=tuple(piece.spec for piece in mine),
            variables=tuple(ctx.variables[piece.lane] for piece in mine),
            multiplier=1.0,
        )


@functools.lru_cache(maxsize=256)
def division_of(compressor: Compressor, specs: tuple[tf.TensorSpec, ...], size: int) -> Division:
    """The `Division`, cached, since every eager step needs it again."""
    return Division(compressor, specs, size)


def _divided(counts: Sequence[int], size: int, block: int) -> list[list[Piece]]:
    owned: list[list[Piece]] = [[] for _ in range(size)]
    total, before = sum(counts), 0
    for lane, n in enumerate(counts):
        start = 0
        for w in range(size):
            wanted = total * (w + 1) // size - before
            # The nearest block boundary of this lane.
            stop = min(n, max(start, (wanted + block // 2) // block * block))
            if w == size - 1:
                stop = n
            if stop > start:
                owned[w].append(Piece(lane, start, stop))
            start = stop
        before += n
    return owned


def _finished(rounds: Rounds, replies: Sequence[Payload]) -> Outcome:
    try:
        rounds.send(replies)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("A method of one round asks for another.")


def _taken_back(
    outcome: Outcome,
    memory: Memory,
    pieces: Sequence[Piece],
    specs: Sequence[tf.TensorSpec],
    lost: Sequence[tf.Tensor],
) -> Outcome:
    memories = list(outcome.memories)
    for piece, each in zip(pieces, lost):
        spec = specs[piece.lane]
        n = spec.shape.num_elements()
        if each.shape[0] < n:
            each = tf.pad(each, [[piece.start, n - piece.stop]])
        each = tf.reshape(each, spec.shape)
        memories[piece.lane] = memory.take_back(memories[piece.lane], each)
    return dataclasses.replace(outcome, memories=memories)


def _joined(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def _rows(part: tf.Tensor, lengths: Sequence[int]) -> tf.Tensor:
    """The chunks of a part as rows `[workers, the longest]`, filled up with zeros."""
    longest = max(lengths)
    if min(lengths) < longest:
        filled = []
        for chunk in tf.split(part, lengths):
            filled += [chunk, tf.zeros([longest - chunk.shape[0]], part.dtype)]
        part = tf.concat(filled, 0)
    return tf.reshape(part, [len(lengths), longest])


def _padded(rows: tf.Tensor, length: int) -> tf.Tensor:
    """The rows of a worker's chunk end to end, each filled up with zeros to this length."""
    missing = length - rows.shape[1]
    rows = tf.pad(rows, [[0, 0], [0, missing]]) if missing else rows
    return tf.reshape(rows, [-1])


def _whole(gathered: tf.Tensor, lengths: Sequence[int]) -> tf.Tensor:
    """The part `[rows, n]` of the whole group, from the chunks `[workers, rows * the longest]`."""
    longest = max(lengths)
    rows = gathered.shape[1] // longest
    if min(lengths) == longest and rows == 1:
        return tf.reshape(gathered, [1, -1])
    sizes = [size for n in lengths for _ in range(rows) for size in (n, longest - n)]
    chunks = tf.split(tf.reshape(gathered, [-1]), sizes)[::2]
    return tf.stack([tf.concat(chunks[row::rows], 0) for row in range(rows)])


def _split(total: Payload, asked: Sequence[Payload]) -> list[Payload]:
    """The reply in the form of the request: one payload for each lane, or one for the group."""
    replies = [{} for _ in asked]
    for name, whole in total.items():
        lengths = [payload[name].shape[0] for payload in asked]
        parts = tf.split(whole, lengths, 1) if len(asked) > 1 else [whole]
        for reply, payload, part in zip(replies, asked, parts):
            reply[name] = from_carrier(part, payload[name].dtype)
    return replies
