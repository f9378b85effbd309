"""The common part of the methods that cast elements to 16 bits: fp16 and bf16."""

import tensorflow as tf

from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.ops import cast


class Cast(ListCompressor):
    """Sends each element as a number of 16 bits; a class that derives from it names the dtype."""

    dtype: tf.DType

    nonexpansive = True
    commutes_with_sum = True
    elementwise = True
    homogeneous = True
    block = 1

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], self.dtype)}

    def encode(self, xs, residuals, multiplier, ctx):
        values, *rest = cast.cast_list(xs, residuals, multiplier, self.dtype)
        return Encoded({"values": values}, *rest)

    def decode(self, payload, factor, ctx):
        return cast.uncast_list(payload["values"], ctx.shapes, factor)
