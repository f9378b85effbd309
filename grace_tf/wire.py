"""From payloads to flat buffers and back.

One buffer per kind of collective and dtype.  `Gather` and `AllToAll` parts of every dtype become
32-bit words (TensorFlow's gather has no 8-bit types): float32 and int32 are reinterpreted, 16-bit
floats are packed two to a word, little-endian, an odd last half padded with zero.  `Sum` and
`Max` parts keep their dtype. Buffers are the concatenation of their parts in the order of (group,
lane, part); the first buffer of a bucket's first round ends in one more element, the flag: 0, or
1 where the sender met a non-finite value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from grace_tf.core.rounds import AllToAll, Gather, Max, Payload, Request, Sum

VERSION = 1  # changes whenever the meaning of any buffer does; compared at the first step

KINDS: dict[type[Request], str] = {Sum: "sum", Max: "max", Gather: "gather", AllToAll: "all_to_all"}


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where one payload part lies: its group, lane, name and spec; its length in the buffer."""

    group: int
    lane: int
    part: str
    shape: tuple[int, ...]
    dtype: str
    length: int


@dataclasses.dataclass
class Buffer:
    """One collective's worth of slots; `flagged` buffers end in the flag."""

    kind: str
    dtype: str
    slots: list[Slot]
    flagged: bool = False

    @property
    def length(self) -> int:
        return sum(slot.length for slot in self.slots) + self.flagged


def layout(requests: Sequence[Request | None], flagged: bool) -> list[Buffer]:
    """The buffers of one round of a bucket: `requests[g]` is group g's, None where it has finished.

    Depends on kinds, names, shapes and dtypes only, so it is the same on every worker.
    """
    buffers: dict[tuple[str, str], Buffer] = {}
    for g, request in enumerate(requests):
        if request is None:
            continue
        kind = KINDS[type(request)]
        for i, payload in enumerate(request.payloads):
            for name, part in payload.items():
                words = kind in ("gather", "all_to_all")
                dtype = "int32" if words else part.dtype.name
                inner = part.shape[-1]
                length = -(-inner * part.dtype.size // 4) if words else inner
                slot = Slot(g, i, name, tuple(part.shape), part.dtype.name, length)
                buffers.setdefault((kind, dtype), Buffer(kind, dtype, [])).slots.append(slot)
    if flagged:
        if not buffers:
            buffers["sum", "float32"] = Buffer("sum", "float32", [])
        next(iter(buffers.values())).flagged = True
    return list(buffers.values())


def fuse(buffer: Buffer, requests: Sequence[Request | None], flag: tf.Tensor) -> tf.Tensor:
    """This worker's tensor for a buffer: rank 1, or `[size, n]` for an all-to-all."""
    parts = []
    for slot in buffer.slots:
        part = requests[slot.group].payloads[slot.lane][slot.part]
        parts.append(part if buffer.kind in ("sum", "max") else _to_words(part))
    if buffer.flagged:
        last = tf.cast(flag, buffer.dtype)[None]
        parts.append(
            tf.tile(last[None], [parts[0].shape[0], 1]) if buffer.kind == "all_to_all" else last
        )
    return parts[0] if len(parts) == 1 else tf.concat(parts, -1)


def split(buffer: Buffer, reply: tf.Tensor, replies: list[list[Payload]]) -> tf.Tensor | None:
    """Puts a buffer's reply into `replies[group][lane][part]`; returns whether any flag was up."""
    leading = () if buffer.kind in ("sum", "max") else (reply.shape[0],)
    lengths = [slot.length for slot in buffer.slots] + [1] * buffer.flagged
    pieces = tf.split(reply, lengths, axis=-1) if len(lengths) > 1 else [reply]
    for slot, piece in zip(buffer.slots, pieces):
        if leading:
            piece = _from_words(piece, slot.shape[-1], tf.as_dtype(slot.dtype))
        replies[slot.group][slot.lane][slot.part] = piece
    return tf.reduce_any(pieces[-1] > 0) if buffer.flagged else None


def _to_words(part: tf.Tensor) -> tf.Tensor:
    if part.dtype.size == 4:
        return part if part.dtype == tf.int32 else tf.bitcast(part, tf.int32)
    if part.dtype.size != 2:
        raise ValueError(
            f"A gathered payload part has 16 or 32 bits an element, not {part.dtype.name}."
        )
    odd = part.shape[-1] % 2
    if odd:
        part = tf.pad(part, [[0, 0]] * (part.shape.rank - 1) + [[0, 1]])
    return tf.bitcast(tf.reshape(part, [*part.shape[:-1], part.shape[-1] // 2, 2]), tf.int32)


def _from_words(words: tf.Tensor, inner: int, dtype: tf.DType) -> tf.Tensor:
    if dtype.size == 4:
        return words if dtype == tf.int32 else tf.bitcast(words, dtype)
    halves = tf.bitcast(words, dtype)  # [..., words, 2]
    return tf.reshape(halves, [*words.shape[:-1], 2 * words.shape[-1]])[..., :inner]
