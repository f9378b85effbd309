"""`dgc`: the largest elements, found by a sampled threshold."""

import tensorflow as tf

from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.dgc import MomentumCorrection
from grace_tf.ops import dispatch, index_sets, sampled_top_k
from grace_tf.ops.backend.arguments import ListKey


@register(
    "dgc",
    family="sparsification",
    paper="arXiv:1712.01887",
    memory="dgc",
    examples=(
        "dgc:ratio=0.05",
        "dgc:ratio=0.1,sample=1.0",
        "dgc:ratio=1.0",
        "dgc:ratio=0.1|values=fp16",
    ),
)
class DGC(ListCompressor):
    """Sends the elements beyond a sampled threshold, of these the k = max(1, ⌊ratio·n⌋) largest:
    C(x) = x on them, else 0.

    The threshold is the ⌈s·k/n⌉-th largest magnitude of s elements at equal distances, from a
    random first one on.  s is at least the fraction `sample` of n, and large enough that two of
    them are expected among the k largest; where s would exceed n/3, the selection is exact.
    While fewer than 0.8·k elements pass, the threshold is multiplied by 0.8, at most ten times.
    Variables of fewer than two dimensions travel dense, and at ratio 1 all do.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values float32[k], indices int32[`index_sets.index_words(n, k)`], count int32[1],
    gathered, on every step: 5.5k bytes at 0.1 %; values from `count` on are zero and have no index.
    Raises: ValueError for a ratio or sample outside (0, 1].
    Paper: Lin et al. 2018, Deep Gradient Compression, sections 3.1 and 5 (sampling).  Momentum
    correction, clipping and masking are the memory `dgc`.
    Differs: where more than k elements pass, the precise threshold is always calculated, so that
    the payload has a fixed size; what is left stays in the memory.
    """

    ratio: float = 0.001
    sample: float = 0.01

    nonexpansive = True
    homogeneous = True
    fixed_size = False
    exact_parts = ("indices", "count")
    element_parts = ("values",)

    def __post_init__(self):
        check_fraction("dgc", "ratio", self.ratio)
        check_fraction("dgc", "sample", self.sample)

    def wants(self, spec):
        return spec.shape.rank > 1 and self.ratio < 1

    def wire(self, spec):
        k = self._sampling(spec).k
        words = index_sets.index_words(spec.shape.num_elements(), k)
        return {
            "values": tf.TensorSpec([k], tf.float32),
            "indices": tf.TensorSpec([words], tf.int32),
            "count": tf.TensorSpec([1], tf.int32),
        }

    def _sampling(self, spec):
        n = spec.shape.num_elements()
        return sampled_top_k.sampling_of(n, max(1, int(self.ratio * n)), self.sample)

    def _select(self, xs, residuals, multiplier, momentum, ctx):
        """(payload, the result of the selection) for a lane group."""
        samplings = [self._sampling(spec) for spec in ctx.specs]
        # Without a sample nothing is drawn, so any key will do.
        sampled = any(sampling.stride > 1 for sampling in samplings)
        key = ctx.list_key() if sampled else ListKey(0, 0, 0, ctx.variables, 0)
        found = sampled_top_k.sampled_k_list(xs, residuals, multiplier, samplings, key, momentum)
        ks = [sampling.k for sampling in samplings]
        words = index_sets.pack_list(found.indices, found.counts, ctx.lengths, ks)
        return {"values": found.values, "indices": words, "count": found.counts}, found

    def encode(self, xs, residuals, multiplier, ctx):
        if residuals is None and multiplier != 1.0:
            xs, multiplier = [x * multiplier for x in xs], 1.0
        payload, found = self._select(xs, residuals, multiplier, None, ctx)
        return Encoded(payload, found.residuals_out, found.finite)

    def decode(self, payload, factor, ctx):
        parts = payload["values"], payload["indices"], payload["count"]
        ks = [self._sampling(spec).k for spec in ctx.specs]
        return index_sets.scatter_list(*parts, ks, ctx.shapes, factor)

    def aggregate_list(self, payloads, ctx):
        return index_sets.without_faults(self.decode(payloads, 1.0, ctx))


@fuses(DGC, MomentumCorrection, when=lambda compressor, xs: dispatch.runs_here(xs))
def with_momentum(compressor, memory, xs, memories, states, ctx):
    """Momentum, selection, masking and flag from one read; u and v are written once."""
    momentum = memory.momentum_of(memories, ctx.size)
    residuals = [state["v"] for state in memories]
    payload, found = compressor._select(xs, residuals, ctx.multiplier, momentum, ctx)
    (reply,) = yield Gather([payload], found.finite)
    means, finite = compressor.decode(reply, 1 / ctx.size, ctx)
    next_memories = [{"u": u, "v": v} for u, v in zip(found.states, found.residuals_out)]
    return Outcome(means, next_memories, states, finite)
