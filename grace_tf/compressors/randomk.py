"""A random subset that all workers draw alike."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.registry import register


@register(
    "randomk",
    family="sparsification",
    paper="arXiv:1809.07599",
    examples=("randomk:ratio=0.3", "randomk:ratio=0.1|values=fp16"),
)
class RandomK(Compressor):
    """Sends k = max(1, ⌊ratio·n⌋) elements, a uniformly random subset that changes every step.

    C(x) = x on the subset, else 0; it is not rescaled by n/k, so it is meant for a residual.  The
    indices come from the shared seed, the step and the variable: only values travel, and they are
    all-reduced.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values float32[k], all-reduced: 4k bytes.
    Raises: ValueError for a ratio outside (0, 1].
    Paper: Stich et al. 2018, Sparsified SGD with Memory, section 2.
    Differs: drawn without replacement, the same on every worker, from a stream that no other random
    draw shares.
    """

    ratio: float = 0.01

    nonexpansive = True
    commutes_with_sum = True
    homogeneous = True

    def __post_init__(self):
        check_fraction("randomk", "ratio", self.ratio)

    def wire(self, spec):
        k = max(1, int(self.ratio * spec.shape.num_elements()))
        return {"values": tf.TensorSpec([k], tf.float32)}

    def _indices(self, ctx):
        # The k largest of n random words are a uniform subset; top_k orders float bits as integers.
        words = ops.random_words(ctx.elements, ctx.shared_key())
        (k,) = self.wire(ctx.spec)["values"].shape
        return ops.top_k(tf.bitcast(words, tf.float32), k)[1]

    def compress(self, x, ctx):
        return {"values": ops.gather(tf.reshape(x, [-1]), self._indices(ctx))}

    def decompress(self, payload, ctx):
        dense = ops.scatter_sum(
            payload["values"][None], self._indices(ctx)[None], None, ctx.elements
        )
        return tf.reshape(dense, ctx.spec.shape)
