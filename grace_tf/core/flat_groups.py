"""A lane group as one flat tensor, in chunks of equally many elements.

For methods that are made of TensorFlow's own operations: the number of their nodes does not depend
on the number of lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from grace_tf.ops import low_rank
from grace_tf.ops.backend.words_as_floats import carried
from grace_tf.ops.low_rank import MatrixSize


class FlatGroup(NamedTuple):
    """The lanes of a group end to end, each filled up with zeros to whole chunks."""

    lengths: tuple[int, ...]
    """The lanes' numbers of elements."""
    width: int
    """The elements of a chunk; 1 where nothing is filled up."""

    @property
    def chunks(self) -> list[int]:
        """The number of chunks of each lane."""
        return [-(-n // self.width) for n in self.lengths]

    @property
    def first_chunks(self) -> list[int]:
        """The number of each lane's first chunk in the group."""
        return np.cumsum([0, *self.chunks[:-1]]).tolist()

    @property
    def filled_lengths(self) -> list[int]:
        """The lanes' numbers of elements with those that fill them up."""
        return [self.width * count for count in self.chunks]

    def join(
        self, xs: Sequence[tf.Tensor], residuals: Sequence[tf.Tensor] | None, multiplier: float
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """xs_i * multiplier + residuals_i of all lanes: (flat, a bool: all of it is finite)."""
        _, flat, _, finite = low_rank.project(xs, residuals, multiplier, [], self._whole)
        return filled(flat, self.lengths, self.filled_lengths), finite

    def apart(
        self, flat: tf.Tensor, factor: float, shapes: Sequence[tf.TensorShape]
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The lanes of what `join` returned, times factor: (tensors, a bool: all is finite)."""
        flat = cut(flat, self.filled_lengths, self.lengths)
        return low_rank.expand(tf.zeros([0]), tf.zeros([0]), flat, factor, self._whole, shapes)

    def lane_of_chunks(self) -> tf.Tensor:
        """The number of the lane of each chunk, int32."""
        return lane_of_each(self.chunks)

    @property
    def _whole(self) -> list[MatrixSize]:
        """Matrices that travel dense, end to end."""
        return [MatrixSize(n, 1, 0) for n in self.lengths]


def filled(flat: tf.Tensor, lengths: Sequence[int], filled_lengths: Sequence[int]) -> tf.Tensor:
    """Parts of these lengths end to end, each filled up with zeros."""
    missing = [more - n for n, more in zip(lengths, filled_lengths)]
    if not any(missing):
        return flat

    def fill(part):
        zeros = tf.split(tf.zeros([sum(missing)], part.dtype), missing)
        pairs = zip(tf.split(part, list(lengths)), zeros, missing)
        return tf.concat([own for *pair, more in pairs for own in pair[: 1 + bool(more)]], 0)

    return carried(fill, flat)


def cut(flat: tf.Tensor, filled_lengths: Sequence[int], lengths: Sequence[int]) -> tf.Tensor:
    """The inverse of `filled`: the first of each part, end to end."""
    if list(lengths) == list(filled_lengths):
        return flat
    sizes = [n for own, all_ in zip(lengths, filled_lengths) for n in (own, all_ - own)]
    return carried(lambda part: tf.concat(tf.split(part, sizes)[::2], 0), flat)


def lane_of_each(counts: Sequence[int]) -> tf.Tensor:
    """counts[i] times the number i for each i, int32."""
    # In int64, whose reshapes inside searchsorted run on a GPU too.
    ends = np.cumsum(counts, dtype=np.int64)
    each = tf.range(ends[-1], dtype=tf.int64)
    return tf.cast(tf.searchsorted(ends, each, side="right", out_type=tf.int64), tf.int32)
