"""The largest elements."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import choice, index_sets, selection
from grace_tf.ops.backend.carrier import one_row


@register(
    "topk",
    family="sparsification",
    paper="arXiv:1704.05021",
    examples=(
        "topk:ratio=0.1",
        "topk:ratio=1.0",
        "topk:ratio=0.1|values=fp16",
        "topk:ratio=0.1|values=qsgd:bits=4,rounding=nearest",
    ),
)
class TopK(Compressor):
    """Sends the k = max(1, ⌊ratio·n⌋) elements of largest magnitude, exactly: C(x) = x on them,
    else 0.

    Ties go to the lower index.  `ratio` is the fraction kept.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values float32[k], indices int32[`index_sets.index_words(n, k)`], gathered.  The indices
    take about 8.6 bits each at 1 %, where log2 C(n,k)/k, which no code beats, is 8.1:
    5.07k bytes in all.  `topk|values=fp16` takes 3.07k, and any quantiser may take fp16's place.
    Raises: ValueError for a ratio outside (0, 1].
    Paper: Aji and Heafield 2017, Sparse Communication; Stich et al. 2018,
    arXiv:1809.07599.
    Differs: exact selection per variable; the residual (error feedback) is the default memory.
    """

    ratio: float = 0.01

    nonexpansive = True
    homogeneous = True
    exact_parts = ("indices",)
    element_parts = ("values",)

    def __post_init__(self):
        check_fraction("topk", "ratio", self.ratio)

    def wire(self, spec):
        k = self.count(spec)
        words = index_sets.index_words(spec.shape.num_elements(), k)
        return {
            "values": tf.TensorSpec([k], tf.float32),
            "indices": tf.TensorSpec([words], tf.int32),
        }

    def count(self, spec):
        """How many elements of a tensor are sent."""
        return max(1, int(self.ratio * spec.shape.num_elements()))

    def relative_bound(self, spec):
        return 1 - self.count(spec) / spec.shape.num_elements()

    def compress(self, x, ctx):
        k = self.count(ctx.spec)
        values, indices = ops.top_k(tf.reshape(x, [-1]), k)
        return {
            "values": values,
            "indices": index_sets.pack_list(indices, None, [ctx.elements], [k]),
        }

    def decompress(self, payload, ctx):
        return self.decompress_list(payload, ctx)[0]

    def decompress_list(self, payload, ctx):
        return index_sets.without_faults(self._scattered(one_row(payload), 1.0, ctx))

    def aggregate(self, payloads, ctx):
        return index_sets.without_faults(self._scattered(payloads, 1.0, ctx))[0]

    def _scattered(self, payloads, factor, ctx):
        ks, shapes = [self.count(s) for s in ctx.specs], [s.shape for s in ctx.specs]
        parts = payloads["values"], payloads["indices"], None
        return index_sets.scatter_list(*parts, ks, shapes, factor)


def _fusible(compressor, xs):
    """Of composites, those that refine the values alone."""
    inner = getattr(compressor, "inner", ())
    return [part for part, _ in inner] in ([], ["values"]) and choice.runs_here(xs)


@fuses(TopK, NoMemory, Residual, when=_fusible, composites=True)
def in_one_pass(compressor, memory, xs, memories, states, ctx):
    """Selection, compaction, residual and flag together; no dense `sent`."""
    outer = getattr(compressor, "outer", compressor)
    composite = outer is not compressor
    ks = [outer.count(spec) for spec in ctx.specs]
    values, indices, kept, finite = selection.top_k_list(
        xs, residuals_of(memories), ctx.multiplier, ks
    )
    lengths = [spec.shape.num_elements() for spec in ctx.specs]
    payload = {"values": values, "indices": index_sets.pack_list(indices, None, lengths, ks)}
    if composite:
        payload, decoded = compressor.compress_parts(payload, ks, ctx)
        if kept is not None:
            kept = selection.refine_list(kept, indices, values, decoded["values"], ks)
    (reply,) = yield Gather([payload], finite)
    if composite:
        reply = compressor.decompress_parts(reply, ks, ctx)
    means, finite = outer._scattered(reply, 1 / ctx.size, ctx)
    return Outcome(means, settled(memories, kept), states, finite)
