"""Every element beyond a threshold."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_fraction, check_number
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import choice, index_sets, selection
from grace_tf.ops.backend.carrier import one_row


@register(
    "threshold",
    family="sparsification",
    paper="arXiv:1911.08250",
    examples=("threshold:threshold=1.0,capacity=0.25", "threshold:threshold=0,capacity=1.0"),
)
class Threshold(Compressor):
    """Sends the elements with |x| > threshold, at most m = max(1, ⌊capacity·n⌋): C(x) = x on
    them, else 0.

    Where more elements pass than fit, the m largest go and the rest stays in the residual.
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
        """How many elements of a tensor fit into its payload."""
        return max(1, int(self.capacity * spec.shape.num_elements()))

    def compress(self, x, ctx):
        m = self.most(ctx.spec)
        values, indices = ops.top_k(tf.reshape(x, [-1]), m)
        passes = tf.abs(values) > self.threshold
        # Static shapes, so that XLA can compile it: what does not pass goes to one place at the
        # end.
        places = tf.where(passes, tf.cumsum(tf.cast(passes, tf.int32)) - 1, m)[:, None]

        def packed(part):
            return tf.scatter_nd(places, part, [m + 1])[:m]

        count = tf.reduce_sum(tf.cast(passes, tf.int32), keepdims=True)
        words = index_sets.pack_list(packed(indices), count, [ctx.elements], [m])
        return {"values": packed(values), "indices": words, "count": count}

    def decompress(self, payload, ctx):
        return self.decompress_list(payload, ctx)[0]

    def decompress_list(self, payload, ctx):
        return index_sets.without_faults(self._scattered(one_row(payload), 1.0, ctx))

    def aggregate(self, payloads, ctx):
        return index_sets.without_faults(self._scattered(payloads, 1.0, ctx))[0]

    def _scattered(self, payloads, factor, ctx):
        ms, shapes = [self.most(s) for s in ctx.specs], [s.shape for s in ctx.specs]
        parts = payloads["values"], payloads["indices"], payloads["count"]
        return index_sets.scatter_list(*parts, ms, shapes, factor)


@fuses(Threshold, NoMemory, Residual, when=lambda compressor, xs: choice.runs_here(xs))
def in_one_pass(compressor, memory, xs, memories, states, ctx):
    """Selection, compaction, residual and flag from one read where the capacity suffices."""
    ms = [compressor.most(spec) for spec in ctx.specs]
    values, indices, counts, kept, finite = selection.threshold_list(
        xs, residuals_of(memories), ctx.multiplier, compressor.threshold, ms
    )
    words = index_sets.pack_list(
        indices, counts, [spec.shape.num_elements() for spec in ctx.specs], ms
    )
    (reply,) = yield Gather([{"values": values, "indices": words, "count": counts}], finite)
    means, finite = compressor._scattered(reply, 1 / ctx.size, ctx)
    return Outcome(means, settled(memories, kept), states, finite)
