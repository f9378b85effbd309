"""`topk`: the largest elements."""

import tensorflow as tf

from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.list_compressor import Encoded, ListCompressor, compensated, settled
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual
from grace_tf.ops import dispatch, index_sets, selection


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
class TopK(ListCompressor):
    """Sends the k = max(1, ⌊ratio·n⌋) elements of largest magnitude, exactly: C(x) = x on them,
    else 0.

    Ties go to the lower index.  `ratio` is the fraction that is sent.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values float32[k], indices int32[`index_sets.index_words(n, k)`], gathered.  The indices
    take about 8.6 bits each at 1 %, where log2 C(n,k)/k, which no code beats, is 8.1:
    5.07k bytes in all.  `topk|values=fp16` takes 3.07k, and any quantiser may take fp16's place.
    Sparse gradients: of the m rows that a step touches each worker sends the max(1, ⌊s·m⌋) of
    largest norm whole, s = max(ratio, row_ratio), and four bytes with each for its number; the
    residual keeps the others until a step touches them.  Ties go to the lower row number.
    Raises: ValueError for a ratio or row_ratio outside (0, 1].
    Paper: Aji and Heafield 2017, Sparse Communication; Stich et al. 2018,
    arXiv:1809.07599.
    Differs: exact selection per variable; the residual (error feedback) is the default memory;
    rows are selected whole.
    """

    ratio: float = 0.01
    row_ratio: float = 0.25

    nonexpansive = True
    homogeneous = True
    exact_parts = ("indices",)
    element_parts = ("values",)

    def __post_init__(self):
        check_fraction("topk", "ratio", self.ratio)
        check_fraction("topk", "row_ratio", self.row_ratio)

    @property
    def row_share(self):
        return max(self.ratio, self.row_ratio)

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
        return 1 - self.count(spec) / spec.shape.num_elements()

    def encode(self, xs, residuals, multiplier, ctx):
        ks = [self.count(spec) for spec in ctx.specs]
        values, indices, *rest = selection.top_k_list(xs, residuals, multiplier, ks)
        words = index_sets.pack_list(indices, None, ctx.lengths, ks)
        return Encoded({"values": values, "indices": words}, *rest)

    def decode(self, payload, factor, ctx):
        parts = payload["values"], payload["indices"], None
        ks = [self.count(spec) for spec in ctx.specs]
        return index_sets.scatter_list(*parts, ks, ctx.shapes, factor)

    def aggregate_list(self, payloads, ctx):
        return index_sets.without_faults(self.decode(payloads, 1.0, ctx))


def _refines_values(compressor, xs):
    """True for composites that refine only the values."""
    inner = [part for part, _ in getattr(compressor, "inner", ())]
    return inner == ["values"] and dispatch.runs_here(xs)


@fuses(TopK, NoMemory, Residual, when=_refines_values, composites=True)
def with_refined_values(compressor, memory, xs, memories, states, ctx):
    """Selects, compacts, and computes residual and flag in one; refines the residual in O(k)."""
    outer = compressor.outer
    ks = [outer.count(spec) for spec in ctx.specs]
    values, indices, unsent, finite = selection.top_k_list(
        *compensated(memory, xs, memories, ctx), ks
    )
    payload = {"values": values, "indices": index_sets.pack_list(indices, None, ctx.lengths, ks)}
    payload, decoded = compressor.compress_parts(payload, ks, ctx)
    if unsent is not None:
        unsent = selection.refine_list(unsent, indices, values, decoded["values"], ks)
    (reply,) = yield Gather([payload], finite)
    means, finite = outer.decode(compressor.decompress_parts(reply, ks, ctx), 1 / ctx.size, ctx)
    return Outcome(means, settled(memories, unsent), states, finite)
