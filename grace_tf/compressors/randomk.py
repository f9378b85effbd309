"""`randomk`: a random subset of elements that all workers draw alike."""

import tensorflow as tf

from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops import selection


@register(
    "randomk",
    family="sparsification",
    paper="arXiv:1809.07599",
    examples=(
        "randomk:ratio=0.3",
        "randomk:ratio=0.1|values=fp16",
        "randomk:ratio=0.3,scaled=true",
    ),
)
class RandomK(ListCompressor):
    """Sends k = max(1, ⌊ratio·n⌋) elements, a uniformly random subset that changes every step.

    C(x) = x on the subset, else 0, for use with a residual; with `scaled`, C(x) = x·n/k there,
    which is unbiased and needs no residual: an element is in the subset with probability k/n.  The
    indices follow from the shared seed, the step and the variable, so only values travel, and they
    are all-reduced.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values float32[k], all-reduced: 4k bytes.
    Raises: ValueError for a ratio outside (0, 1]; TypeError for `scaled` other than true or false.
    Beside the residual the optimizer has no momentum: what has waited arrives at once, and a
    momentum would repeat it.  Without one the learning rate may be larger.
    Paper: Stich et al. 2018, Sparsified SGD with Memory, section 2; scaled: Wangni et al. 2018,
    arXiv:1710.09854, with equal probabilities.
    Differs: drawn without replacement, the same on every worker, from a stream that no other random
    draw shares.
    """

    ratio: float = 0.01
    scaled: bool = False

    unbiased = property(lambda self: self.scaled)
    nonexpansive = property(lambda self: not self.scaled)
    element_parts = property(lambda self: () if self.scaled else ("values",))
    commutes_with_sum = True
    homogeneous = True
    repeats_late = True

    def __post_init__(self):
        check_fraction("randomk", "ratio", self.ratio)
        if not isinstance(self.scaled, bool):
            raise TypeError(f"randomk: scaled is true or false, not {self.scaled!r}.")

    def wire(self, spec):
        return {"values": tf.TensorSpec([self.count(spec)], tf.float32)}

    def count(self, spec):
        """The number of elements of a tensor that are sent."""
        return max(1, int(self.ratio * spec.shape.num_elements()))

    def scale(self, spec):
        """The factor by which decoding multiplies the values of a tensor."""
        return spec.shape.num_elements() / self.count(spec) if self.scaled else 1.0

    def relative_bound(self, spec):
        n, k = spec.shape.num_elements(), self.wire(spec)["values"].shape[0]
        return n / k - 1 if self.scaled else 1 - k / n

    def encode(self, xs, residuals, multiplier, ctx):
        ks, key = [self.count(spec) for spec in ctx.specs], ctx.shared_list_key()
        values, *rest = selection.random_k_list(xs, residuals, multiplier, ks, key)
        return Encoded({"values": values}, *rest)

    def decode(self, payload, factor, ctx):
        ks, scales = [self.count(s) for s in ctx.specs], [self.scale(s) for s in ctx.specs]
        parts = ks, ctx.shapes, ctx.shared_list_key()
        return selection.scatter_random_list(payload["values"], *parts, factor, scales)
