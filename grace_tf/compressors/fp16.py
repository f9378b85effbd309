"""Gradients cast to float16."""

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.registry import register
from grace_tf.core.rounds import Outcome, Sum, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import cast, choice


@register("fp16", family="cast", paper="arXiv:1710.03740", memory="none")
class FP16(Compressor):
    """Sends each element rounded to float16: C(x) = float16(x), to nearest, ties to even.

    Shapes: any float32 tensor.  Decodes to float32; the sum over workers is taken in float16 (11
    bits of significand), in the order of the collective.
    Wire: values float16[n], all-reduced: 2n bytes.
    Range: a value or a sum beyond 65504 becomes infinite; the line then makes the whole aggregate
    non-finite on every worker and keeps all state.  Keras 2's loss scaler skips such a step; Keras
    3's looks at gradients before the exchange and does not: there `bf16` has the range.
    Paper: Micikevicius et al. 2018, Mixed Precision Training, section 3.
    Differs: none.
    """

    nonexpansive = True
    commutes_with_sum = True
    elementwise = True
    homogeneous = True
    block = 1

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.float16)}

    def compress(self, x, ctx):
        return {"values": tf.cast(tf.reshape(x, [-1]), tf.float16)}

    def decompress(self, payload, ctx):
        return tf.cast(tf.reshape(payload["values"], ctx.spec.shape), tf.float32)

    def compress_list(self, xs, ctx):
        flat = [x if x.shape.rank == 1 else tf.reshape(x, [-1]) for x in xs]
        return {"values": tf.cast(tf.concat(flat, 0), tf.float16)}

    def decompress_list(self, payload, ctx):
        shapes = [spec.shape for spec in ctx.specs]
        values = tf.cast(payload["values"], tf.float32)
        parts = tf.split(values, [shape.num_elements() for shape in shapes])
        return [x if s.rank == 1 else tf.reshape(x, s) for x, s in zip(parts, shapes)]


@fuses(FP16, NoMemory, Residual, when=lambda compressor, xs: choice.runs_here(xs))
def in_one_pass(compressor, memory, xs, memories, states, ctx):
    """One read: the sum with the residual, its cast, what the cast loses, and the flag."""
    residuals = residuals_of(memories)
    halves, kept, finite = cast.cast_list(xs, residuals, ctx.multiplier, tf.float16)
    (reply,) = yield Sum([{"values": halves}], finite)
    shapes = [spec.shape for spec in ctx.specs]
    means, finite = cast.uncast_list(reply["values"], shapes, 1 / ctx.size)
    return Outcome(means, settled(memories, kept), states, finite)
