"""Gradients cast to bfloat16."""

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.registry import register
from grace_tf.core.rounds import Outcome, Sum, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import cast, choice


@register("bf16", family="cast", paper="arXiv:1905.12322", memory="none")
class BF16(Compressor):
    """Sends each element rounded to bfloat16: C(x) = bfloat16(x), to nearest, ties to even.

    Shapes: any float32 tensor.  Decodes to float32; the sum over workers is taken in bfloat16 (8
    bits of significand), in the order of the collective.
    Wire: values bfloat16[n], all-reduced: 2n bytes.
    Range: that of float32.
    Paper: Kalamkar et al. 2019, A Study of BFLOAT16 for Deep Learning Training.
    Differs: none.
    """

    nonexpansive = True
    commutes_with_sum = True
    elementwise = True
    homogeneous = True
    block = 1

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.bfloat16)}

    def compress(self, x, ctx):
        return {"values": tf.cast(tf.reshape(x, [-1]), tf.bfloat16)}

    def decompress(self, payload, ctx):
        return tf.cast(tf.reshape(payload["values"], ctx.spec.shape), tf.float32)

    def compress_list(self, xs, ctx):
        flat = [x if x.shape.rank == 1 else tf.reshape(x, [-1]) for x in xs]
        return {"values": tf.cast(tf.concat(flat, 0), tf.bfloat16)}

    def decompress_list(self, payload, ctx):
        shapes = [spec.shape for spec in ctx.specs]
        values = tf.cast(payload["values"], tf.float32)
        parts = tf.split(values, [shape.num_elements() for shape in shapes])
        return [x if s.rank == 1 else tf.reshape(x, s) for x, s in zip(parts, shapes)]


@fuses(BF16, NoMemory, Residual, when=lambda compressor, xs: choice.runs_here(xs))
def in_one_pass(compressor, memory, xs, memories, states, ctx):
    """One read: the sum with the residual, its cast, what the cast loses, and the flag."""
    residuals = residuals_of(memories)
    halves, kept, finite = cast.cast_list(xs, residuals, ctx.multiplier, tf.bfloat16)
    (reply,) = yield Sum([{"values": halves}], finite)
    shapes = [spec.shape for spec in ctx.specs]
    means, finite = cast.uncast_list(reply["values"], shapes, 1 / ctx.size)
    return Outcome(means, settled(memories, kept), states, finite)
