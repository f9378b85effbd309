"""The largest elements of each sign, as one mean each."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import choice, index_sets, two_means
from grace_tf.ops.backend.carrier import one_row


@register(
    "adaq",
    family="hybrid",
    paper="doi:10.1109/MLHPC.2016.4",
    examples=("adaq:ratio=0.1", "adaq:ratio=1.0"),
)
class AdaQ(Compressor):
    """Sends where the largest positive and the largest negative elements are, and their two means.

    Of P positive and N negative elements k = max(1, ⌊ratio·n⌋) are sent, or all P + N if they are
    fewer: ⌊k·P/(P + N) + 1/2⌋ positive ones and the rest negative ones, so that the same share of
    each side goes.  With S the elements sent of x_i's side, C(x)_i = Σ_S x / |S| for i in S, else
    0: C projects x on the span of the two sides' indicator vectors, which are orthogonal, so
    ‖x − C(x)‖ ≤ ‖x‖.  An empty side has the mean 0.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: means float32[2], signs int32[⌈k/32⌉], indices int32[`index_sets.index_words(n, k)`],
    count int32[1], gathered: at 1 % about 9.56 bits an element sent, where log2 C(n,k)/k + 1, which
    no code beats, is 9.08.
    Raises: ValueError for a ratio outside (0, 1].
    Paper: Dryden et al. 2016, Communication Quantization for Data-Parallel Training of Deep Neural
    Networks: adaptive quantisation.
    Differs: the largest are found exactly, by variable, not by a threshold from a sample; one
    capacity serves both sides; indices and signs are packed to a fixed size.
    """

    ratio: float = 0.01

    nonexpansive = True
    homogeneous = True
    fixed_size = False
    exact_parts = ("means", "signs", "indices", "count")

    def __post_init__(self):
        check_fraction("adaq", "ratio", self.ratio)

    def wire(self, spec):
        n, k = spec.shape.num_elements(), self.most(spec)
        return {
            "means": tf.TensorSpec([2], tf.float32),
            "signs": tf.TensorSpec([ops.packed_words(k, 1)], tf.int32),
            "indices": tf.TensorSpec([index_sets.index_words(n, k)], tf.int32),
            "count": tf.TensorSpec([1], tf.int32),
        }

    def most(self, spec):
        """How many elements of a tensor fit into its payload."""
        return max(1, int(self.ratio * spec.shape.num_elements()))

    def compress(self, x, ctx):
        return self._encode([x], None, 1.0, ctx)[0]

    def decompress(self, payload, ctx):
        return self.decompress_list(payload, ctx)[0]

    def decompress_list(self, payload, ctx):
        return index_sets.without_faults(self._decode(one_row(payload), 1.0, ctx))

    def aggregate(self, payloads, ctx):
        return index_sets.without_faults(self._decode(payloads, 1.0, ctx))[0]

    def _encode(self, xs, residuals, multiplier, ctx):
        ks = [self.most(spec) for spec in ctx.specs]
        lengths = [spec.shape.num_elements() for spec in ctx.specs]
        sent = two_means.two_means_list(xs, residuals, multiplier, ks)
        words = index_sets.pack_list(sent.indices, sent.counts, lengths, ks)
        payload = {"means": sent.means, "signs": sent.signs, "indices": words, "count": sent.counts}
        return payload, sent.kept, sent.finite

    def _decode(self, payloads, factor, ctx):
        parts = [payloads[name] for name in ("means", "signs", "indices", "count")]
        ks = [self.most(spec) for spec in ctx.specs]
        shapes = [spec.shape for spec in ctx.specs]
        return two_means.scatter_means_list(*parts, ks, shapes, factor)


@fuses(AdaQ, NoMemory, Residual, when=lambda compressor, xs: choice.runs_here(xs))
def in_one_pass(compressor, memory, xs, memories, states, ctx):
    """Both selections, their means, residual and flag from one read."""
    residuals = residuals_of(memories)
    payload, kept, finite = compressor._encode(xs, residuals, ctx.multiplier, ctx)
    (reply,) = yield Gather([payload], finite)
    means, finite = compressor._decode(reply, 1 / ctx.size, ctx)
    return Outcome(means, settled(memories, kept), states, finite)
