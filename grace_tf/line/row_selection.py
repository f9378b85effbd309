"""Which rows of a sparse gradient a worker sends, and what compresses them.

A method that selects elements of a dense tensor selects whole rows of a sparse gradient: of n rows
that a step touches the max(1, ⌊row_share·n⌋) of largest norm.  Each worker selects its own rows.
The memory keeps the others until a later step touches them.
"""

from __future__ import annotations

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.line.settings import DENSE


def coder(compressor: Compressor) -> Compressor | None:
    """What compresses the rows that are sent; None where this compressor does not serve rows."""
    codec = compressor
    if compressor.row_share is not None:
        codec = compressor.row_stage or DENSE[0]
    return codec if codec.elementwise and codec.one_round else None


def sends_all(compressor: Compressor) -> bool:
    """Whether the selection leaves out no row and changes no bit, so that it needs no memory."""
    return compressor.row_share == 1 and compressor.row_stage is None


def largest(rows: tf.IndexedSlices, ratio: float) -> tf.Tensor:
    """The positions in `rows` of those that are sent, the largest norm first: int32 `[k]`.

    k = max(1, ⌊ratio·n⌋) of n rows, 0 of none; ties go to the lowest row number.  `rows` has
    float32 values and no row twice.  Squares are summed in float32, so norms below 2^-63 tie.
    """
    count = tf.shape(rows.indices)[0]
    share = tf.cast(tf.cast(count, tf.float64) * ratio, tf.int32)
    flat = tf.reshape(rows.values, [count, rows.values.shape[1:].num_elements()])
    by_number = tf.argsort(rows.indices)
    # The bits of numbers of one sign have their order, and have one where some are NaN too.
    scores = tf.bitcast(tf.gather(tf.reduce_sum(flat * flat, 1), by_number), tf.int32)
    best = tf.math.top_k(scores, tf.minimum(tf.maximum(share, 1), count)).indices
    return tf.gather(by_number, best)
