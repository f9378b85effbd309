"""Reads and writes the bytes of variables in pieces of bounded size; never copies a whole model.

Variables are cut into boxes of elements that are contiguous in memory; lists of boxes travel
together.  Everything here is eager.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

PIECE_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class Box:
    """The elements of a variable from `begin` on, `size` along each axis."""

    variable: tf.Variable
    begin: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.size) * self.variable.dtype.size

    @property
    def _whole(self) -> bool:
        return self.size == tuple(self.variable.shape)

    def read(self) -> np.ndarray:
        """The bytes of this piece of the variable, copied: uint8 `[nbytes]`."""
        if self._whole:
            array = np.asarray(self.variable.numpy())
        else:
            held = getattr(self.variable, "_primary", self.variable)  # of a distributed one
            # The tensor shares the variable's memory; only what is sliced from it is copied.
            value = tf.raw_ops.ReadVariableOp(resource=held.handle, dtype=self.variable.dtype)
            array = tf.slice(value, self.begin, self.size).numpy()
        return array.reshape(-1).view(np.uint8)

    def write(self, data: np.ndarray) -> None:
        """Sets these elements from the bytes that `read` has returned."""
        # A copy, since a variable may go on using the memory of the assigned array.
        array = data.copy().view(self.variable.dtype.as_numpy_dtype).reshape(self.size)
        if self._whole:
            self.variable.assign(array)
            return
        end = [first + count for first, count in zip(self.begin, self.size)]
        for held in getattr(self.variable, "_values", (self.variable,)):
            tf.raw_ops.ResourceStridedSliceAssign(
                ref=held.handle, begin=self.begin, end=end, strides=[1] * len(end), value=array
            )
            # Without this, every later read of the variable would copy all of it.
            tf.raw_ops.DisableCopyOnRead(resource=held.handle)


def boxes(variable: tf.Variable, limit: int = PIECE_BYTES) -> Iterator[Box]:
    """All of a variable in boxes of at most `limit` bytes, in the order of its memory."""
    shape = tuple(variable.shape)
    for begin, size in _cut(shape, (), max(1, limit // variable.dtype.size)):
        yield Box(variable, begin, size)


def packed(variables: Iterable[tf.Variable], limit: int = PIECE_BYTES) -> Iterator[list[Box]]:
    """All of the variables, in lists of boxes of at most `limit` bytes together."""
    piece: list[Box] = []
    left = limit
    for variable in variables:
        for box in boxes(variable, limit):
            if piece and box.nbytes > left:
                yield piece
                piece, left = [], limit
            piece.append(box)
            left -= box.nbytes
    if piece:
        yield piece


def _cut(
    shape: tuple[int, ...], begin: tuple[int, ...], limit: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(begin, size) of boxes of at most `limit` elements, where the first axes are fixed."""
    axis, ones = len(begin), (1,) * len(begin)
    if math.prod(shape[axis:]) <= limit:
        yield begin + (0,) * (len(shape) - axis), ones + shape[axis:]
        return
    row, rest = math.prod(shape[axis + 1 :]), (0,) * (len(shape) - axis - 1)
    if row > limit:
        for i in range(shape[axis]):
            yield from _cut(shape, (*begin, i), limit)
        return
    rows = limit // row
    for i in range(0, shape[axis], rows):
        count = min(rows, shape[axis] - i)
        yield (*begin, i, *rest), (*ones, count, *shape[axis + 1 :])
