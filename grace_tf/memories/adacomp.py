"""`adacomp`: accumulated gradients, of which each bin sends those that the last step made large."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from grace_tf.core.hyperparameters import check_integer
from grace_tf.core.memory import Memory
from grace_tf.core.registry import register
from grace_tf.ops import weighted_sum


@register(
    "adacomp", family="error feedback", paper="arXiv:1712.02679", examples=("adacomp:bin=50",)
)
class AdaComp(Memory):
    """Compresses ±S where the last gradient made an element as large as its bin's largest, else 0:
    G = R + x, H = G + x; x' = S·sign(G) where |H| ≥ max |G| over the bin; R ← G − sent.

    Bins are runs of `bin` elements of one variable; S is the mean of its bins' max |G|.  A bin
    sends few elements where the last gradient is small in comparison with R, and many where it is
    large.  So the number of elements to send follows the gradients, and the compressor needs room
    for them.  Elements for which it has no room stay in R.
    State: residual, which is R, float32, the variable's shape.  The sum of the gradients is that of
    what was sent, plus R, up to rounding.
    Raises: TypeError or ValueError for a bin that is no integer of at least 1; ValueError (at
    construction of the door) for a compressor that is not nonexpansive.
    Paper: Chen et al. 2018, AdaComp, algorithms 1 and 2.
    Differs: S is of the variable, whatever the compressor sends.
    """

    bin: int = 500

    requires_nonexpansive = True
    forgets = True  # a residual is compressed as ±S, not as it is

    def __post_init__(self):
        check_integer("adacomp", "bin", self.bin, 1)

    def init_state(self, spec):
        return {"residual": tf.zeros(spec.shape, tf.float32)}

    def compensate(self, x, state, ctx):
        (compensated,), (carry,) = self._compensated([x], [state], ctx)
        return compensated, carry

    def settle(self, carry, sent, total, state, ctx):
        return total, {"residual": carry - sent}

    def compensate_list(self, xs, states, ctx):
        return self._compensated(xs, states, ctx)

    def _compensated(self, xs, states, ctx):
        """What is compressed, and G: a list of one gives the bits that it gives among others."""
        old = [state["residual"] for state in states]
        sums = weighted_sum.mix_list(xs, 1.0, old, 1.0)
        bins = [-(-n // self.bin) for n in ctx.lengths]
        fills = [self.bin * count - n for count, n in zip(bins, ctx.lengths)]
        grown, last = self._binned(sums, fills), self._binned(xs, fills)
        largest = tf.reduce_max(tf.abs(grown), 1)
        lanes = np.repeat(np.arange(len(xs), dtype=np.int32), bins)
        of_lanes = tf.math.unsorted_segment_sum(largest, lanes, len(xs))
        scales = tf.gather(of_lanes * (1 / np.array(bins, np.float32)), lanes)
        # NaN is less than nothing, so that it is chosen and seen.
        held = tf.abs(grown + last) < largest[:, None]
        masked = tf.where(held, 0.0, tf.sign(grown) * scales[:, None])
        sizes = [size for pair in zip(ctx.lengths, fills) for size in pair]
        pieces = tf.split(tf.reshape(masked, [-1]), sizes)[::2]
        return [tf.reshape(each, shape) for each, shape in zip(pieces, ctx.shapes)], sums

    def settle_list(self, carries, sent, totals, states, ctx):
        kept = weighted_sum.mix_list(carries, 1.0, sent, -1.0)
        return list(totals), [{"residual": each} for each in kept]

    def _binned(self, xs: Sequence[tf.Tensor], fills: Sequence[int]) -> tf.Tensor:
        """The bins of all variables, one a row; the last of each variable is filled up with 0."""
        pieces = [
            piece
            for x, fill in zip(xs, fills)
            for piece in (tf.reshape(x, [-1]), tf.zeros([fill], tf.float32))
        ]
        return tf.reshape(tf.concat(pieces, 0), [-1, self.bin])
