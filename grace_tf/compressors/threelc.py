"""`threelc`: −M, 0 or M for each element, to nearest."""

from __future__ import annotations

import itertools
import math

import numpy as np
import tensorflow as tf

from grace_tf import ops
from grace_tf.core.flat_groups import FlatGroup, cut, filled, lane_of_each
from grace_tf.core.hyperparameters import check_choice, check_integer, check_number
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops import index_sets, selection, signs, two_means, weighted_sum
from grace_tf.ops.backend.words_as_floats import carried, one_row, row
from grace_tf.ops.reference.arithmetic import SMALLEST_SCALE, quotient

_RUN = 512  # elements that are compared with one number, where there are no blocks
_CAPACITIES = ((1.75, 0.03), (1.5, 0.08), (1.0, 0.15))  # from this s on
_PLACES = np.float32([[81], [27], [9], [3], [1]])  # of five trits in a byte
_TRITS = np.float32([*itertools.product((-1, 0, 1), repeat=5)])
_ZEROS = 121.0  # the byte of five zeros


@register(
    "threelc",
    family="hybrid",
    paper="arXiv:1802.07389",
    examples=(
        "threelc:s=1.5",
        "threelc:s=1.75,block=512",
        "threelc:coding=quartic",
        "threelc:s=1.5,block=64,coding=quartic",
    ),
)
class ThreeLC(ListCompressor):
    """Sends −1, 0 or 1 for each element and a scale: C(x) = M·round(x/M), M = s·max|x|, half to 0.

    M is of the variable, or with `block` of each run of so many elements: a single large element
    else keeps all others from being sent.  1 ≤ s < 2, and a larger s sends less: those with
    |x| > M/2.  C(x) is 0 where M is below 2^-110.
    With `coding="sparse"` the elements that are not 0 are sent as an index set and signs, at most
    k = max(1, ⌊c·n⌋), c = 0.15 from s = 1 on, 0.08 from 1.5 and 0.03 from 1.75: the largest, in
    their blocks' units.  The others stay in the residual.  `coding="quartic"` sends all: five of
    −1, 0 and 1 in a byte.
    An error is never larger than its element, but large: 0.92·‖x‖² of a normal gradient in a step.
    With the residual the error of the sum of 50 gradients is 0.0035 of its square
    (docs/fidelity.md).  Take stc to send less: with ratio=0.1 its error is 0.57·‖x‖² in a step and
    0.0051 of the sum's square, at three quarters of the bytes.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: scale float32[1], or float32[⌈n/block⌉]; sparse: signs int32[⌈k/32⌉], indices
    int32[`index_sets.index_words(n, k)`], count int32[1]: 0.066·n bytes at s = 1.5;
    quartic: trits int32[⌈n/20⌉], n/5 bytes; gathered.
    Raises: ValueError or TypeError for s outside [1, 2), a block that is no multiple of 32, or
    another coding.
    Paper: Lim, Andersen, Kaminsky 2019, 3LC: Lightweight and Effective Traffic Compression for
    Distributed Machine Learning, sections 3.1 (s) and 3.2 (quartic encoding).
    Differs: payloads have a fixed size, so there is no run-length coding of zeros after the
    quartic one, and the five elements of a byte are neighbours, not from five distant fifths;
    the index set takes the place of both; the blocks are an addition.
    """

    s: float = 1.0
    block: int | None = None
    coding: str = "sparse"

    nonexpansive = True
    homogeneous = True
    elementwise = property(lambda self: self.coding == "quartic")
    fixed_size = property(lambda self: self.coding == "quartic")
    exact_parts = property(
        lambda self: ("trits",) if self.coding == "quartic" else ("signs", "indices", "count")
    )

    @property
    def divides_at(self):
        # A word has the trits of 20 elements; an index set is of the whole variable.
        divisible = self.block and self.coding == "quartic"
        return math.lcm(self.block, 20) if divisible else None

    def __post_init__(self):
        check_number("threelc", "s", self.s)
        if not 1 <= self.s < 2:
            raise ValueError(f"threelc: s is at least 1 and below 2, not {self.s!r}.")
        if self.block is not None:
            check_integer("threelc", "block", self.block, 32)
            if self.block % 32:
                raise ValueError(f"threelc: block is a multiple of 32 or none, not {self.block!r}.")
        check_choice("threelc", "coding", self.coding, ("sparse", "quartic"))

    def most(self, spec):
        """The number of elements of a tensor that fit into a sparse payload."""
        capacity = next(c for least, c in _CAPACITIES if self.s >= least)
        return max(1, int(capacity * spec.shape.num_elements()))

    def wire(self, spec):
        n, k = spec.shape.num_elements(), self.most(spec)
        scale = tf.TensorSpec([-(-n // self.block) if self.block else 1], tf.float32)
        if self.coding == "quartic":
            return {"scale": scale, "trits": tf.TensorSpec([-(-n // 20)], tf.int32)}
        return {
            "scale": scale,
            "signs": tf.TensorSpec([ops.packed_words(k, 1)], tf.int32),
            "indices": tf.TensorSpec([index_sets.index_words(n, k)], tf.int32),
            "count": tf.TensorSpec([1], tf.int32),
        }

    def encode(self, xs, residuals, multiplier, ctx):
        group = self._group(ctx)
        flat, finite = group.join(xs, residuals, multiplier)
        rows = tf.reshape(flat, [-1, group.width])
        scales = self._scales(flat, group)
        inverse = tf.where(tf.equal(scales, 0), 0.0, quotient(tf.ones([]), scales))
        units = rows * self._of_rows(inverse, group)
        if self.coding == "quartic":
            payload = {"scale": scales, "trits": self._trits(units, group)}
        else:
            units, _ = group.apart(tf.reshape(units, [-1]), 1.0, ctx.shapes)
            payload = {"scale": scales, **self._chosen(units, ctx)}
        unsent = None
        if residuals is not None:
            whole, _ = group.apart(flat, 1.0, ctx.shapes)
            sent, _ = self.decode(one_row(payload), 1.0, ctx.public())
            unsent = weighted_sum.mix_list(sent, -1.0, whole, 1.0)
        return Encoded(payload, unsent, finite)

    def decode(self, payload, factor, ctx):
        if self.coding == "quartic":
            return self._sum_of_trits(payload, factor, ctx)
        ks = [self.most(spec) for spec in ctx.specs]
        parts = [payload[name] for name in ("signs", "indices", "count")]
        scales = payload["scale"]
        if self.block is None:
            means = tf.reshape(tf.stack([scales, -scales], 2), [scales.shape[0], -1])
            return two_means.scatter_means_list(means, *parts, ks, ctx.shapes, factor)
        values = self._values(scales, *parts[:2], ks, ctx)
        return index_sets.scatter_list(values, *parts[1:], ks, ctx.shapes, factor)

    def aggregate_list(self, payloads, ctx):
        return index_sets.without_faults(self.decode(payloads, 1.0, ctx))

    def _group(self, ctx):
        return FlatGroup(tuple(ctx.lengths), self.block or _RUN)

    def _scales(self, flat, group):
        """M of each block, or of each lane."""
        largest = ops.block_scales(flat, group.width, "max")
        if not self.block:
            lanes = group.lane_of_chunks()
            largest = tf.math.unsorted_segment_max(largest, lanes, len(group.lengths))
        scales = largest * self.s
        return tf.where(scales < SMALLEST_SCALE, 0.0, scales)

    def _of_rows(self, scales, group):
        """The numbers of blocks or lanes, for each row of the flat group."""
        rows = scales if self.block else tf.gather(scales, group.lane_of_chunks())
        return rows[:, tf.newaxis]

    def _chosen(self, units, ctx):
        """The signs and places of what is not 0, from x/M."""
        ks = [self.most(spec) for spec in ctx.specs]
        values, places, count, _, _ = selection.threshold_list(units, None, 1.0, 0.5, ks)
        own = tf.split(values, ks) if len(ks) > 1 else [values]
        words = index_sets.pack_list(places, count, ctx.lengths, ks)
        return {"signs": signs.sign_list(own, 1.0)[0], "indices": words, "count": count}

    def _values(self, scales, words, indices, ks, ctx):
        """M or −M for each entry of each worker's index sets, float32 [workers, entries]."""
        group, lanes = self._group(ctx), lane_of_each(ks)
        indices = index_sets.unpack_list(indices, ctx.lengths, ks)
        # An entry that does not count may be outside.
        blocks = tf.minimum(indices // self.block, tf.gather(group.chunks, lanes) - 1)
        scales = tf.gather(scales, blocks + tf.gather(group.first_chunks, lanes), batch_dims=1)
        firsts = tf.cumsum(ks, exclusive=True)
        number = tf.range(sum(ks)) - tf.gather(firsts, lanes)
        starts = tf.cumsum([ops.packed_words(k, 1) for k in ks], exclusive=True)
        word = tf.gather(starts, lanes) + number // 32
        own = carried(lambda part: tf.gather(part, word, axis=1), words)
        positive = tf.equal(tf.bitwise.right_shift(own, number % 32) & 1, 1)
        return tf.where(positive, scales, -scales)

    def _trits(self, units, group):
        trits = cut(tf.reshape(tf.round(units), [-1]), group.filled_lengths, group.lengths)
        trits = filled(trits, group.lengths, [20 * -(-n // 20) for n in group.lengths])
        bytes_ = tf.matmul(tf.reshape(trits, [-1, 5]), _PLACES) + _ZEROS
        return tf.bitcast(tf.reshape(tf.cast(bytes_, tf.uint8), [-1, 4]), tf.int32)

    def _sum_of_trits(self, payload, factor, ctx):
        group, workers = self._group(ctx), payload["trits"].shape[0]

        def decoded(w):
            own = row(payload, w)
            bytes_ = tf.cast(tf.reshape(tf.bitcast(own["trits"], tf.uint8), [-1]), tf.int32)
            trits = tf.gather(tf.constant(_TRITS), tf.minimum(bytes_, len(_TRITS) - 1))
            lengths = [20 * -(-n // 20) for n in group.lengths]
            trits = cut(tf.reshape(trits, [-1]), lengths, group.lengths)
            trits = filled(trits, group.lengths, group.filled_lengths)
            rows = tf.reshape(trits, [-1, group.width])
            return tf.reshape(rows * self._of_rows(own["scale"], group), [-1])

        total = decoded(0)
        if workers > 1:
            # A loop, so that the graph does not grow with the number of workers.
            _, total = tf.while_loop(
                lambda w, _: w < workers,
                lambda w, sum_: (w + 1, sum_ + decoded(w)),
                (tf.constant(1), total),
            )
        return group.apart(total, factor, ctx.shapes)
