"""`none`: no compression, the dense mean."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.registry import register
from grace_tf.core.rounds import Outcome, Sum, fuses
from grace_tf.memories.dgc import MomentumCorrection
from grace_tf.ops import dispatch, weighted_sum


@register("none", family="dense", paper="-", memory="none")
class NoCompression(Compressor):
    """Sends the gradient itself: C(x) = x.

    Shapes: any; float32 (the line keeps float64 lanes of this method in float64).
    Wire: values float32[n], all-reduced: 4n bytes.
    Paper: none; this is what the others are compared with.
    Differs: under a tf.distribute strategy the strategy's own reduction is used, bit for bit.
    """

    unbiased = True
    nonexpansive = True
    commutes_with_sum = True
    element_parts = ("values",)
    elementwise = True
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


@fuses(NoCompression, MomentumCorrection, when=lambda compressor, xs: dispatch.runs_here(xs))
def with_momentum_of_the_mean(compressor, memory, xs, memories, states, ctx):
    """One operation for the momenta of all lanes, which divides by the number of workers too.

    The memory claims dense variables, so all lanes of such a group are dense.
    """
    if ctx.multiplier != 1:
        xs = [x * ctx.multiplier for x in xs]
    flat = [x if x.shape.rank == 1 else tf.reshape(x, [-1]) for x in xs]
    replies = yield Sum([{"values": x} for x in flat], ops.all_finite(xs))
    totals = [
        reply["values"] if spec.shape.rank == 1 else tf.reshape(reply["values"], spec.shape)
        for reply, spec in zip(replies, ctx.specs)
    ]
    momentum, factor = memory.momentum_of(memories, 1), 1 / ctx.size
    if momentum.limit is not None:
        totals = [memory.clipped(total * tf.constant(factor), 1) for total in totals]
        factor = 1.0
    us = weighted_sum.mix_list(totals, factor, momentum.states, momentum.factor)
    velocities = (
        weighted_sum.mix_list(totals, factor, us, momentum.factor) if momentum.nesterov else us
    )
    return Outcome(velocities, [{"u": u} for u in us], states)
