"""`gtopk`: the largest elements of the sum over workers."""

import numpy as np
import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.list_compressor import compensated, settled
from grace_tf.core.registry import get, register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual
from grace_tf.ops import dispatch, index_sets, selection
from grace_tf.ops.backend.words_as_floats import one_row


@register(
    "gtopk",
    family="sparsification",
    paper="arXiv:1901.04359",
    examples=("gtopk:ratio=0.1", "gtopk:ratio=1.0"),
)
class GTopK(Compressor):
    """Sends each worker's k = max(1, ⌊ratio·n⌋) largest elements; the aggregate is the k largest of
    their sum: Top_k(Σ_w Top_k(x_w)).

    An element counts as sent only where its sum was selected; the residual takes the others back,
    so nothing is lost.  Ties go to the lower index.  With one worker it is topk.
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
        """The number of elements that a worker sends, and that are selected of the sum."""
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
            ks = [self.count(lane.spec)]
            sent_at, selected = (
                index_sets.unpack_list(one_row(p)["indices"], [lane.elements], ks)
                for p in (mine, largest)
            )
            values = _where_selected(mine["values"], sent_at[0], selected[0], lane, ks)
            sent.append(self.decompress({**mine, "values": values}, lane))
        return totals, sent or None, list(states)


def _where_selected(values, sent_at, selected, ctx, ks):
    """The values whose index, in `sent_at`, is among `selected`; zeros for the others."""
    starts = np.cumsum([0, *ctx.lengths[:-1]])
    offset = tf.repeat(tf.constant(starts, tf.int64), ks)
    sent_at, selected = (tf.cast(each, tf.int64) + offset for each in (sent_at, selected))
    place = tf.minimum(tf.searchsorted(selected, sent_at, out_type=tf.int64), sum(ks) - 1)
    return tf.where(tf.gather(selected, place) == sent_at, values, 0.0)


@fuses(GTopK, NoMemory, Residual, when=lambda compressor, xs: dispatch.runs_here(xs))
def in_three_passes(compressor, memory, xs, memories, states, ctx):
    """Reads the gradients once for selection and residual, writes and reads the sums once, writes
    every mean once; the residual takes unselected elements back in O(k).
    """
    ks = [compressor.count(spec) for spec in ctx.specs]
    values, sent_at, residuals, finite = selection.top_k_list(
        *compensated(memory, xs, memories, ctx), ks
    )
    payload = {"values": values, "indices": index_sets.pack_list(sent_at, None, ctx.lengths, ks)}
    (reply,) = yield Gather([payload], finite)
    parts = reply["values"], reply["indices"], None, ks, ctx.shapes
    sums, finite = index_sets.scatter_list(*parts, 1.0)
    if ctx.size == 1:  # the sum is this worker's own selection
        return Outcome(sums, settled(memories, residuals), states, finite)
    largest, selected, _, _ = selection.top_k_list(sums, None, 1.0, ks)
    if residuals is not None:
        sent = _where_selected(values, sent_at, selected, ctx, ks)
        residuals = selection.refine_list(residuals, sent_at, values, sent, ks)
    best = one_row({"values": largest, "indices": selected})
    means, finite = selection.scatter_list(
        best["values"], best["indices"], None, ks, ctx.shapes, 1 / ctx.size
    )
    return Outcome(means, settled(memories, residuals), states, finite)
