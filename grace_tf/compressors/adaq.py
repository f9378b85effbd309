"""`adaq`: the largest elements of each sign, as one mean for each sign."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops import index_sets, two_means


@register(
    "adaq",
    family="hybrid",
    paper="doi:10.1109/MLHPC.2016.4",
    examples=("adaq:ratio=0.1", "adaq:ratio=1.0"),
)
class AdaQ(ListCompressor):
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
        """The number of elements of a tensor that fit into its payload."""
        return max(1, int(self.ratio * spec.shape.num_elements()))

    def encode(self, xs, residuals, multiplier, ctx):
        ks = [self.most(spec) for spec in ctx.specs]
        sent = two_means.two_means_list(xs, residuals, multiplier, ks)
        words = index_sets.pack_list(sent.indices, sent.counts, ctx.lengths, ks)
        payload = {"means": sent.means, "signs": sent.signs, "indices": words, "count": sent.counts}
        return Encoded(payload, sent.residuals_out, sent.finite)

    def decode(self, payload, factor, ctx):
        parts = [payload[name] for name in ("means", "signs", "indices", "count")]
        ks = [self.most(spec) for spec in ctx.specs]
        return two_means.scatter_means_list(*parts, ks, ctx.shapes, factor)

    def aggregate_list(self, payloads, ctx):
        return index_sets.without_faults(self.decode(payloads, 1.0, ctx))
