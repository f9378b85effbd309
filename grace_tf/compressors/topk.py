"""The largest elements."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.registry import register


@register(
    "topk",
    family="sparsification",
    paper="arXiv:1704.05021",
    examples=(
        "topk:ratio=0.1",
        "topk:ratio=1.0",
        "topk:ratio=0.1|values=qsgd:bits=4,rounding=nearest",
    ),
)
class TopK(Compressor):
    """Sends the k = max(1, ⌊ratio·n⌋) elements of largest magnitude, exactly: C(x) = x on them,
    else 0.

    Ties go to the lower index.  `ratio` is the fraction kept.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values float32[k], indices int32[k] ascending, gathered: 8k bytes.
    Raises: ValueError for a ratio outside (0, 1].
    Paper: Aji and Heafield 2017, Sparse Communication, section 3; Stich et al. 2018,
    arXiv:1809.07599.
    Differs: exact selection per variable; the residual (error feedback) is the default memory.
    """

    ratio: float = 0.01

    nonexpansive = True
    homogeneous = True
    exact_parts = ("indices",)

    def __post_init__(self):
        check_fraction("topk", "ratio", self.ratio)

    def wire(self, spec):
        k = max(1, int(self.ratio * spec.shape.num_elements()))
        return {"values": tf.TensorSpec([k], tf.float32), "indices": tf.TensorSpec([k], tf.int32)}

    def compress(self, x, ctx):
        (k,) = self.wire(ctx.spec)["values"].shape
        values, indices = ops.top_k(tf.reshape(x, [-1]), k)
        return {"values": values, "indices": indices}

    def decompress(self, payload, ctx):
        return self.aggregate({name: part[None] for name, part in payload.items()}, ctx)

    def aggregate(self, payloads, ctx):
        total = ops.scatter_sum(payloads["values"], payloads["indices"], None, ctx.elements)
        return tf.reshape(total, ctx.spec.shape)
