"""The largest elements, found by a sampled threshold."""

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.dgc import MomentumCorrection
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import choice, index_sets, sampled_top_k
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.backend.carrier import one_row


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
class DGC(Compressor):
    """Sends the elements beyond a sampled threshold, of these the k = max(1, ⌊ratio·n⌋) largest:
    C(x) = x on them, else 0.

    The threshold is the ⌈s·k/n⌉-th largest magnitude of s elements at equal distances, from a
    random first one on.  They are at least the fraction `sample` of all, and so many that two are
    expected among the k largest; where that is more than a third of all, the selection is exact.
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

    def compress(self, x, ctx):
        (sampling,) = samplings = [self._sampling(ctx.spec)]
        # Without a sample nothing is drawn, so any key serves.
        key = ctx.list_key() if sampling.stride > 1 else ListKey(0, 0, 0, ctx.variables, 0)
        found = sampled_top_k.sampled_k_list([x], None, 1.0, samplings, key)
        return self._payload(found, ctx)

    def _payload(self, found, ctx):
        sizes, ks = zip(*((s.shape.num_elements(), self._sampling(s).k) for s in ctx.specs))
        words = index_sets.pack_list(found.indices, found.counts, sizes, ks)
        return {"values": found.values, "indices": words, "count": found.counts}

    def _scattered(self, payloads, factor, ctx):
        ks, shapes = [self._sampling(s).k for s in ctx.specs], [s.shape for s in ctx.specs]
        parts = payloads["values"], payloads["indices"], payloads["count"]
        return index_sets.scatter_list(*parts, ks, shapes, factor)

    def decompress(self, payload, ctx):
        return self.decompress_list(payload, ctx)[0]

    def decompress_list(self, payload, ctx):
        return index_sets.without_faults(self._scattered(one_row(payload), 1.0, ctx))

    def aggregate(self, payloads, ctx):
        (total,) = index_sets.without_faults(self._scattered(payloads, 1.0, ctx))
        return total

    def select(self, xs, residuals, momentum, ctx):
        """What a fused form sends of a lane group."""
        samplings = [self._sampling(spec) for spec in ctx.specs]
        key = ctx.list_key()
        return sampled_top_k.sampled_k_list(xs, residuals, ctx.multiplier, samplings, key, momentum)

    def gathered(self, found, ctx):
        """The means over the workers of what they selected, and whether these are finite."""
        (reply,) = yield Gather([self._payload(found, ctx)], found.finite)
        return self._scattered(reply, 1 / ctx.size, ctx)


def _fusible(compressor, xs):
    return choice.runs_here(xs)


@fuses(DGC, MomentumCorrection, when=_fusible)
def with_momentum(compressor, memory, xs, memories, states, ctx):
    """Momentum, selection, masking and flag from one read; u and v are written once."""
    momentum = memory.told(memories, ctx.size)
    found = compressor.select(xs, [state["v"] for state in memories], momentum, ctx)
    means, finite = yield from compressor.gathered(found, ctx)
    kept = [{"u": u, "v": v} for u, v in zip(found.states, found.kept)]
    return Outcome(means, kept, states, finite)


@fuses(DGC, Residual, when=_fusible)
def with_residual(compressor, memory, xs, memories, states, ctx):
    """Selection, residual and flag from one read."""
    found = compressor.select(xs, residuals_of(memories), None, ctx)
    means, finite = yield from compressor.gathered(found, ctx)
    return Outcome(means, settled(memories, found.kept), states, finite)
