"""The largest elements of the sum over workers."""

import numpy as np
import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.list_compressor import residuals_of, settled
from grace_tf.core.registry import get, register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual
from grace_tf.ops import choice, index_sets, selection
from grace_tf.ops.backend.carrier import one_row


@register(
    "gtopk",
    family="sparsification",
    paper="arXiv:1901.04359",
    examples=("gtopk:ratio=0.1", "gtopk:ratio=1.0"),
)
class GTopK(Compressor):
    """Sends each worker's k = max(1, ⌊ratio·n⌋) largest elements; the aggregate is the k largest of
    their sum: Top_k(Σ_w Top_k(x_w)).

    What a worker sent counts only where the sum was kept, so that the residual takes the rest back
    and nothing is lost.  Ties go to the lower index.  One worker alone has topk.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values float32[k], indices int32[`index_sets.index_words(n, k)`], gathered, as topk:
    5.07k bytes at 1 %.
    Raises: ValueError for a ratio outside (0, 1].
    Paper: Shi et al. 2019, A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification
    for Low Bandwidth Networks: the global selection from what all workers send, and the residual
    that takes back what it drops.
    Differs: the selection is exact.  The paper's tree of pairwise selections receives k·log2 N
    elements instead of k·N, but loses an element's part that one pair drops and another keeps.
    """

    ratio: float = 0.01

    nonexpansive = True
    homogeneous = True

    def __post_init__(self):
        check_fraction("gtopk", "ratio", self.ratio)

    @property
    def _top(self):
        return get("topk", ratio=self.ratio)

    def wire(self, spec):
        return self._top.wire(spec)

    def count(self, spec):
        """How many elements of a tensor are sent, and kept of the sum."""
        return self._top.count(spec)

    def compress(self, x, ctx):
        return self._top.compress(x, ctx)

    def decompress(self, payload, ctx):
        return self._top.decompress(payload, ctx)

    def rounds(self, xs, states, ctx):
        lanes = [ctx.lane(i) for i in range(len(ctx))]
        payloads = [self.compress(x, lane) for x, lane in zip(xs, lanes)]
        replies = yield Gather(payloads)
        totals, sent = [], []
        for mine, reply, lane in zip(payloads, replies, lanes):
            largest = self.compress(self._top.aggregate(reply, lane), lane)
            totals.append(self.decompress(largest, lane))
            if not ctx.needs_sent:
                continue
            own, kept = (
                index_sets.unpack_list(
                    one_row(p)["indices"], [lane.elements], [self.count(lane.spec)]
                )
                for p in (mine, largest)
            )
            values = _where_kept(mine["values"], own[0], kept[0], lane, [self.count(lane.spec)])
            sent.append(self.decompress({**mine, "values": values}, lane))
        return totals, sent or None, list(states)


def _where_kept(values, own, kept, ctx, ks):
    """Values at the indices `own` of a lane group that are among `kept`, zeros for the others."""
    starts = np.cumsum([0, *ctx.lengths[:-1]])
    offset = tf.repeat(tf.constant(starts, tf.int64), ks)
    own, kept = (tf.cast(indices, tf.int64) + offset for indices in (own, kept))
    place = tf.minimum(tf.searchsorted(kept, own, out_type=tf.int64), sum(ks) - 1)
    return tf.where(tf.gather(kept, place) == own, values, 0.0)


@fuses(GTopK, NoMemory, Residual, when=lambda compressor, xs: choice.runs_here(xs))
def in_three_passes(compressor, memory, xs, memories, states, ctx):
    """One read for the selection and the residual, one write and one read of the sums, and every
    mean is written once; the residual takes back in O(k).
    """
    ks = [compressor.count(spec) for spec in ctx.specs]
    values, own, residuals, finite = selection.top_k_list(
        xs, residuals_of(memories), ctx.multiplier, ks
    )
    payload = {"values": values, "indices": index_sets.pack_list(own, None, ctx.lengths, ks)}
    (reply,) = yield Gather([payload], finite)
    parts = reply["values"], reply["indices"], None, ks, ctx.shapes
    sums, finite = index_sets.scatter_list(*parts, 1.0)
    if ctx.size == 1:  # what was selected is all that there is
        return Outcome(sums, settled(memories, residuals), states, finite)
    largest, kept, _, _ = selection.top_k_list(sums, None, 1.0, ks)
    if residuals is not None:
        sent = _where_kept(values, own, kept, ctx, ks)
        residuals = selection.refine_list(residuals, own, values, sent, ks)
    best = one_row({"values": largest, "indices": kept})
    means, finite = selection.scatter_list(
        best["values"], best["indices"], None, ks, ctx.shapes, 1 / ctx.size
    )
    return Outcome(means, settled(memories, residuals), states, finite)
