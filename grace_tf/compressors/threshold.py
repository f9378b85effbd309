"""`threshold`: every element beyond a threshold."""

import tensorflow as tf

from grace_tf.core.hyperparameters import check_fraction, check_number
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops import index_sets, selection


@register(
    "threshold",
    family="sparsification",
    paper="arXiv:1911.08250",
    examples=("threshold:threshold=1.0,capacity=0.25", "threshold:threshold=0,capacity=1.0"),
)
class Threshold(ListCompressor):
    """Sends the elements with |x| > threshold, at most m = max(1, ⌊capacity·n⌋): C(x) = x on
    them, else 0.

    Where more elements pass than fit, the m largest are sent and the rest stays in the residual.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values float32[m], indices int32[`index_sets.index_words(n, m)`], count int32[1],
    gathered, on every step; values from `count` on are zero and have no index.
    Raises: ValueError for a negative threshold or a capacity outside (0, 1].
    Paper: Dutta et al. 2020, On the Discrepancy between the Theoretical Analysis and Practical
    Implementations of Compressed Communication, section 5.2 (Threshold v).
    Differs: a capacity bounds the payload, which has a fixed size; an element of exactly the
    threshold is not sent.
    """

    threshold: float = 0.01
    capacity: float = 0.05

    nonexpansive = True
    fixed_size = False
    exact_parts = ("indices", "count")
    element_parts = ("values",)

    def __post_init__(self):
        check_number("threshold", "threshold", self.threshold)
        if self.threshold < 0:
            raise ValueError(f"threshold: threshold is at least 0, not {self.threshold!r}.")
        check_fraction("threshold", "capacity", self.capacity)

    def wire(self, spec):
        m = self.most(spec)
        words = index_sets.index_words(spec.shape.num_elements(), m)
        return {
            "values": tf.TensorSpec([m], tf.float32),
            "indices": tf.TensorSpec([words], tf.int32),
            "count": tf.TensorSpec([1], tf.int32),
        }

    def most(self, spec):
        """The number of elements of a tensor that fit into its payload."""
        return max(1, int(self.capacity * spec.shape.num_elements()))

    def encode(self, xs, residuals, multiplier, ctx):
        ms = [self.most(spec) for spec in ctx.specs]
        values, indices, counts, *rest = selection.threshold_list(
            xs, residuals, multiplier, self.threshold, ms
        )
        words = index_sets.pack_list(indices, counts, ctx.lengths, ms)
        return Encoded({"values": values, "indices": words, "count": counts}, *rest)

    def decode(self, payload, factor, ctx):
        parts = payload["values"], payload["indices"], payload["count"]
        ms = [self.most(spec) for spec in ctx.specs]
        return index_sets.scatter_list(*parts, ms, ctx.shapes, factor)

    def aggregate_list(self, payloads, ctx):
        return index_sets.without_faults(self.decode(payloads, 1.0, ctx))
