"""No compression: the dense mean."""

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.registry import register


@register("none", family="dense", paper="-", memory="none")
class NoCompression(Compressor):
    """Sends the gradient itself: C(x) = x.

    Shapes: any; float32 (the line keeps float64 lanes of this method in float64).
    Wire: values float32[n], all-reduced: 4n bytes.
    Paper: none; this is what the others are compared with.
    Differs: under a tf.distribute strategy the host's own reduction is used, bit for bit.
    """

    unbiased = True
    nonexpansive = True
    commutes_with_sum = True
    lossless = True
    homogeneous = True
    block = 1

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], spec.dtype)}

    def relative_bound(self, spec):
        return 0.0

    def compress(self, x, ctx):
        return {"values": tf.reshape(x, [-1])}

    def decompress(self, payload, ctx):
        return tf.reshape(payload["values"], ctx.spec.shape)
