"""`wangni`: elements drawn with probabilities that suit their size, and made larger accordingly."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from grace_tf import ops
from grace_tf.core.flat_groups import FlatGroup, lane_of_each
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops import index_sets, selection
from grace_tf.ops.reference.arithmetic import quotient

_RUN = 512  # elements that are multiplied by the same number
_LARGEST = 2.0**24  # the weight of a variable's largest element
_SMALLEST_TOP = _LARGEST * 2.0**-127  # of a smaller largest element, the quotient would overflow
_APART = 16  # by how much two points are further apart than an element is wide, beyond rounding
_GOLDEN = 0.6180339887498949


@register(
    "wangni", family="sparsification", paper="arXiv:1710.09854", examples=("wangni:ratio=0.2",)
)
class Wangni(ListCompressor):
    """Sends K = max(1, ⌊ratio·n⌋) elements, drawn with probabilities p that add up to K:
    C(x) = x/p on them, else 0, which is unbiased.

    p = min(1, λ|x|), which of all probabilities with this sum have the least variance.  The draw is
    systematic: of the elements end to end, each as long as its p, those are sent that hold one of
    the points u, u + 1, …, u + K − 1, with one uniform u.  So they are always K, and each is drawn
    with exactly its p.  Where fewer than K elements are not 0, all these are sent.
    E‖C(x) − x‖² ≤ (n/K − 1)·‖x‖², equal where all elements have one size.  The error is large: 3 to
    12 times ‖x‖² at ratio 0.05.  Take `topk`, whose residual keeps what is not sent, unless the
    method must be unbiased and without memory.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values float32[K], indices int32[`index_sets.index_words(n, K)`], gathered, as topk.
    Raises: ValueError for a ratio outside (0, 1].
    Paper: Wangni et al. 2018, Gradient Sparsification for Communication-Efficient Distributed
    Optimization, section 3: the probabilities of algorithm 2, found exactly.
    Differs: the paper draws each element by itself, so that its payloads vary in length.  |x| in p
    is rounded up to a multiple of 2^-24 of the variable's largest, in C too.
    """

    ratio: float = 0.05

    unbiased = True
    homogeneous = True
    exact_parts = ("indices",)
    element_parts = ("values",)

    def __post_init__(self):
        check_fraction("wangni", "ratio", self.ratio)

    def wire(self, spec):
        k = self.count(spec)
        words = index_sets.index_words(spec.shape.num_elements(), k)
        return {
            "values": tf.TensorSpec([k], tf.float32),
            "indices": tf.TensorSpec([words], tf.int32),
        }

    def count(self, spec):
        """The number of elements of a tensor that are sent."""
        return max(1, int(self.ratio * spec.shape.num_elements()))

    def relative_bound(self, spec):
        # With equal probabilities the error is n/K − 1.  The probabilities used here have the least
        # variance, so their error is not larger.
        return spec.shape.num_elements() / self.count(spec) - 1

    def encode(self, xs, residuals, multiplier, ctx):
        ks, group = [self.count(spec) for spec in ctx.specs], FlatGroup(tuple(ctx.lengths), _RUN)
        flat, finite = group.join(xs, residuals, multiplier)
        flat = tf.where(finite, flat, 0.0)  # else what is not finite could be drawn twice
        shapes = [tf.TensorShape([n]) for n in ctx.lengths]
        lanes, _ = group.apart(flat, 1.0, shapes)
        largest, places, _, _ = selection.top_k_list(lanes, None, 1.0, ks)
        slots = _Slots(ks, group)
        weights = _weights(flat, largest, slots, group)
        drawn, rest, spacing = _draw(weights, places, slots, _uniform(ctx))
        x, own = tf.gather(flat, drawn), tf.gather(rest, drawn)
        inverse = spacing / tf.cast(tf.maximum(own, 1), tf.float64)
        values = tf.where(own > 0, x * tf.cast(inverse, tf.float32), x)
        indices = tf.cast(drawn - slots.of(slots.starts), tf.int32)
        words = index_sets.pack_list(indices, None, ctx.lengths, ks)
        return Encoded({"values": values, "indices": words}, None, finite)

    def decode(self, payload, factor, ctx):
        parts = payload["values"], payload["indices"], None
        ks = [self.count(spec) for spec in ctx.specs]
        return index_sets.scatter_list(*parts, ks, ctx.shapes, factor)

    def aggregate_list(self, payloads, ctx):
        return index_sets.without_faults(self.decode(payloads, 1.0, ctx))


class _Slots:
    """The places in a payload, K for each lane.

    Attributes:
      lanes: the lane of each, int32.
      ranks: its number in the lane, from 0 on, int64.
      ks: the number of slots of each lane, int64.
      starts, ends: where each lane begins and ends in the flat group, int64.
    """

    def __init__(self, ks, group):
        self.lanes = lane_of_each(ks)
        self.ks = tf.constant(ks, tf.int64)
        firsts = tf.cumsum(self.ks, exclusive=True)
        self.ranks = tf.range(sum(ks), dtype=tf.int64) - tf.gather(firsts, self.lanes)
        self.ends = tf.constant(np.cumsum(group.filled_lengths), tf.int64)
        self.starts = self.ends - tf.constant(group.filled_lengths, tf.int64)

    def of(self, per_lane):
        """The value of its lane for each slot."""
        return tf.gather(per_lane, self.lanes)

    def least(self, per_slot):
        """The least of the values of each lane's slots."""
        return tf.math.unsorted_segment_min(per_slot, self.lanes, self.ks.shape[0])


def _weights(flat, largest, slots, group):
    """|x| of each element in units of 2^-24 of its lane's largest, rounded up, int64."""
    top = -slots.least(-tf.abs(largest))
    units = tf.where(top < _SMALLEST_TOP, 0.0, quotient(tf.constant(_LARGEST), top))
    rows = tf.reshape(tf.abs(flat), [-1, _RUN])
    rows = tf.math.ceil(rows * tf.gather(units, group.lane_of_chunks())[:, tf.newaxis])
    return tf.reshape(tf.cast(rows, tf.int64), [-1])


def _draw(weights, places, slots, u):
    """The elements to send, and the probabilities with which they were drawn.

    In whole numbers, so that no lane depends on those before it.  Returns (their places in the flat
    group, ascending; the weights of all elements, 0 of those that are always sent; the distance of
    two points for each slot): an element is drawn with the probability weight / distance.
    """
    zero = tf.zeros([1], tf.int64)
    # The largest elements of each lane, in descending order.
    order = tf.cast(slots.lanes, tf.int64) * 2**32
    top = tf.cast(places, tf.int64) + slots.of(slots.starts)
    order = tf.argsort(order - tf.gather(weights, top), stable=True)
    top = tf.gather(top, order)
    own = tf.gather(weights, top)

    # Those are always sent that are longer than the distance of the points for all smaller ones.
    sums = tf.cumsum(weights)
    whole = tf.gather(sums, slots.ends - 1)
    whole = whole - tf.concat([zero, whole[:-1]], 0)
    above = tf.cumsum(own, exclusive=True)
    above -= slots.of(slots.least(above))
    short = (own + _APART) * (slots.of(slots.ks) - slots.ranks) <= slots.of(whole) - above
    always = slots.least(tf.where(short, slots.ranks, slots.of(slots.ks)))
    sent = slots.ranks < slots.of(always)
    left = tf.where(sent, tf.zeros_like(own), own)
    rest = tf.tensor_scatter_nd_update(weights, top[:, tf.newaxis], left)

    # The points among the others.
    sums = tf.cumsum(rest)
    last = tf.gather(sums, slots.ends - 1)
    first = tf.concat([zero, last[:-1]], 0)
    points = tf.cast(tf.maximum(slots.ks - always, 1), tf.float64)
    spacing = slots.of(tf.cast(last - first, tf.float64) / points)
    numbers = tf.cast(slots.ranks - slots.of(always), tf.float64) + slots.of(u)
    points = slots.of(first) + tf.cast(tf.floor(numbers * spacing), tf.int64)
    points = tf.clip_by_value(points, slots.of(first), slots.of(last) - 1)
    found = tf.searchsorted(sums, points, side="right", out_type=tf.int64)
    return tf.sort(tf.where(sent, top, found)), rest, spacing


def _uniform(ctx):
    """A uniform number of each lane, float64.

    One draw is moved on by another distance for each variable, which keeps each number uniform:
    so it takes as many nodes for many lanes as for one.
    """
    words = ops.random_words(2, ctx.lane(0).key()._replace(variable=0))
    high, low = tf.unstack(tf.cast(tf.bitcast(words, tf.uint32), tf.float64))
    drawn = (tf.floor(high * 2.0**-6) * 2.0**26 + tf.floor(low * 2.0**-6)) * 2.0**-52
    moved = np.array([variable * _GOLDEN % 1 for variable in ctx.variables])
    sums = drawn + tf.constant(moved, tf.float64)
    return sums - tf.floor(sums)
