"""Packs payloads into flat buffers, one for each kind of collective and dtype, and unpacks replies.

`Gather` and `AllToAll` parts of every dtype become 32-bit words (TensorFlow's gather has no 8-bit
types): float32 and int32 are reinterpreted, 64-bit numbers are two words, 16-bit floats are packed
two to a word, little-endian, and zero pads an odd last half of a group.  Words travel as float32,
whatever their bits mean, because TensorFlow keeps the int32 tensors of many operations in the
host's memory, so a GPU would have to copy them.  `Sum` and `Max` parts keep their dtype.  A buffer
concatenates its parts in the order of (group, part, lane); the first buffer of a bucket's first
round ends in one more element, the flag: 0, or 1 where the sender has a non-finite value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from grace_tf.core.rounds import AllToAll, Gather, Max, Payload, Request, Sum
from grace_tf.ops.backend.words_as_floats import CARRIER, as_carrier, from_carrier, one_row

VERSION = 6  # of the meaning of buffers; workers compare it at the first step

KINDS: dict[type[Request], str] = {Sum: "sum", Max: "max", Gather: "gather", AllToAll: "all_to_all"}


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where one payload part of a lane group lies: the pieces of that name, end to end.

    Piece i belongs to payload `lanes[i]` and has `sizes[i]` elements of its dtype; `length` is the
    number of elements of the slot in the buffer.
    """

    group: int
    part: str
    dtype: str
    lanes: tuple[int, ...]
    sizes: tuple[int, ...]
    length: int


@dataclasses.dataclass
class Buffer:
    """The slots of one collective; `flagged` buffers end in the flag."""

    kind: str
    dtype: str
    slots: list[Slot]
    flagged: bool = False

    @property
    def length(self) -> int:
        return sum(slot.length for slot in self.slots) + self.flagged

    @property
    def words(self) -> bool:
        """Whether parts travel as 32-bit words."""
        return self.kind in ("gather", "all_to_all")


def layout(requests: Sequence[Request | None], flagged: bool) -> list[Buffer]:
    """The buffers of one round of a bucket: `requests[g]` is group g's, None where it has finished.

    They depend on kinds, names, shapes and dtypes only, so they are the same on every worker.
    """
    buffers: dict[tuple[str, str], Buffer] = {}
    for g, request in enumerate(requests):
        if request is None:
            continue
        kind = KINDS[type(request)]
        pieces: dict[tuple[str, tf.DType], list[tuple[int, int]]] = {}
        for i, payload in enumerate(request.payloads):
            for name, part in payload.items():
                pieces.setdefault((name, part.dtype), []).append((i, part.shape[-1]))
        for (name, part_dtype), found in pieces.items():
            lanes, sizes = zip(*found)
            length, dtype = sum(sizes), part_dtype.name
            if kind in ("gather", "all_to_all"):
                length, dtype = -(-length * part_dtype.size // 4), CARRIER.name
            slot = Slot(g, name, part_dtype.name, lanes, sizes, length)
            buffers.setdefault((kind, dtype), Buffer(kind, dtype, [])).slots.append(slot)
    if flagged:
        if not buffers:
            buffers["sum", "float32"] = Buffer("sum", "float32", [])
        next(iter(buffers.values())).flagged = True
    return list(buffers.values())


def fuse(buffer: Buffer, requests: Sequence[Request | None]) -> tf.Tensor:
    """This worker's tensor for a buffer: rank 1, or `[size, n]` for an all-to-all."""
    parts = []
    for slot in buffer.slots:
        pieces = [requests[slot.group].payloads[lane][slot.part] for lane in slot.lanes]
        parts += _to_words(pieces) if buffer.words else pieces
    if buffer.flagged:
        last = tf.cast(~all_finite(requests), buffer.dtype)[None]
        parts.append(
            tf.tile(last[None], [parts[0].shape[0], 1]) if buffer.kind == "all_to_all" else last
        )
    return parts[0] if len(parts) == 1 else tf.concat(parts, -1)


def all_finite(requests: Sequence[Request | None]) -> tf.Tensor:
    """Whether all that this worker compresses in a bucket is finite."""
    flags = [r.finite for r in requests if r and r.finite is not None]
    return flags[0] if len(flags) == 1 else tf.reduce_all(tf.convert_to_tensor(flags, tf.bool))


def received_alone(request: Request) -> list[Payload]:
    """The reply to a request where there is no other worker."""
    if not isinstance(request, Gather):
        return list(request.payloads)
    return [one_row(payload) for payload in request.payloads]


def split(buffer: Buffer, reply: tf.Tensor, replies: list[list[Payload]]) -> tf.Tensor | None:
    """Puts a buffer's reply into `replies[group][lane][part]`.

    Returns a bool scalar, whether the flags of all workers are 0; None where there is no flag.
    """
    lengths = [length for slot in buffer.slots for length in _lengths(buffer, slot)]
    lengths += [1] * buffer.flagged
    pieces = iter(tf.split(reply, lengths, axis=-1) if len(lengths) > 1 else [reply])
    for slot in buffer.slots:
        parts = [next(pieces) for _ in _lengths(buffer, slot)]
        if buffer.words:
            parts = _from_words(parts, slot.sizes, tf.as_dtype(slot.dtype))
        for lane, piece in zip(slot.lanes, parts):
            replies[slot.group][lane][slot.part] = piece
    return tf.reduce_all(next(pieces) == 0) if buffer.flagged else None


def _lengths(buffer: Buffer, slot: Slot) -> Sequence[int]:
    """The lengths of the pieces of a slot; of packed halves, of the one run of them."""
    size = tf.as_dtype(slot.dtype).size
    if not buffer.words:
        return slot.sizes
    return (slot.length,) if size == 2 else tuple(n * size // 4 for n in slot.sizes)


def _to_words(pieces: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    dtype = pieces[0].dtype
    if dtype.size == 4:
        return [as_carrier(p) for p in pieces]
    if dtype.size == 8:
        return [
            tf.reshape(tf.bitcast(p, CARRIER), [*p.shape[:-1], 2 * p.shape[-1]]) for p in pieces
        ]
    if dtype.size != 2:
        raise ValueError(
            f"A gathered payload part has 16, 32 or 64 bits an element, not {dtype.name}."
        )
    run = pieces[0] if len(pieces) == 1 else tf.concat(pieces, -1)
    if run.shape[-1] % 2:
        run = tf.pad(run, [[0, 0]] * (run.shape.rank - 1) + [[0, 1]])
    return [tf.bitcast(tf.reshape(run, [*run.shape[:-1], run.shape[-1] // 2, 2]), CARRIER)]


def _from_words(words: list[tf.Tensor], sizes: Sequence[int], dtype: tf.DType) -> list[tf.Tensor]:
    if dtype.size == 4:
        return [from_carrier(w, dtype) for w in words]
    if dtype.size == 8:
        pairs = [tf.reshape(w, [*w.shape[:-1], w.shape[-1] // 2, 2]) for w in words]
        return [tf.bitcast(pair, dtype) for pair in pairs]
    halves = tf.bitcast(words[0], dtype)  # [..., words, 2]
    run = tf.reshape(halves, [*words[0].shape[:-1], 2 * words[0].shape[-1]])[..., : sum(sizes)]
    return tf.split(run, list(sizes), axis=-1) if len(sizes) > 1 else [run]
