"""A random subset that all workers draw alike."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.registry import register
from grace_tf.core.rounds import Outcome, Sum, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import lists, sparse_lists


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

    def error_bound(self, spec):
        return 1 - self.wire(spec)["values"].shape[0] / spec.shape.num_elements()

    def _indices(self, ctx):
        (k,) = self.wire(ctx.spec)["values"].shape
        return ops.random_indices(ctx.elements, k, ctx.shared_key())

    def compress(self, x, ctx):
        return {"values": ops.gather(tf.reshape(x, [-1]), self._indices(ctx))}

    def decompress(self, payload, ctx):
        dense = ops.scatter_sum(
            payload["values"][None], self._indices(ctx)[None], None, ctx.elements
        )
        return tf.reshape(dense, ctx.spec.shape)


@fuses(RandomK, NoMemory, Residual, when=lambda compressor, xs: lists.runs_here(xs))
def in_one_pass(compressor, memory, xs, memories, states, ctx):
    """The indices are drawn in O(k); what is read and written is the residual."""
    ks = [compressor.wire(spec)["values"].shape[0] for spec in ctx.specs]
    key, residuals = ctx.shared_list_key(), residuals_of(memories)
    values, kept, finite = sparse_lists.random_k_list(xs, residuals, ctx.multiplier, ks, key)
    (reply,) = yield Sum([{"values": values}], finite)
    shapes, factor = [spec.shape for spec in ctx.specs], tf.constant(1 / ctx.size)
    means, finite = sparse_lists.scatter_random_list(reply["values"], ks, shapes, key, factor)
    return Outcome(means, settled(memories, kept), states, finite)
