"""Powers of two, rounded at random."""

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import byte_codes, choice
from grace_tf.ops.backend.carrier import one_row


@register("natural", family="quantisation", paper="arXiv:1905.10988", memory="none")
class Natural(Compressor):
    """Sends one of the two powers of two beside each element: C(x) = ±2^⌊log₂|x|⌋, or the double
    with probability |x|/2^⌊log₂|x|⌋ − 1, exactly to the last bit of the mantissa.

    A code is the sign bit and seven bits of exponent, for 2^-94 … 2^32 and zero.  In this range
    C is unbiased, with a variance of at most 1/8 of x².  A power below it is sent as zero, one
    above as 2^32.  The range is fixed, so that no scale is sent and elements stay independent; it
    reaches further up than down, for sums of losses and for losses scaled by up to 2^24.
    Shapes: any float32 tensor.
    Wire: codes int32[⌈n/4⌉], four in a word, gathered: n bytes.
    Paper: Horvath et al. 2019, Natural Compression for Distributed Deep Learning, section 2.
    Differs: eight bits instead of nine, for the range above.  The residual is not the default,
    but allowed: no element's error exceeds the element.
    """

    unbiased = True
    elementwise = True
    recompressible = True
    nonexpansive = True
    homogeneous = True
    block = 4

    def wire(self, spec):
        words = byte_codes.byte_words(spec.shape.num_elements())
        return {"codes": tf.TensorSpec([words], tf.int32)}

    def compress(self, x, ctx):
        return self.compress_list([x], ctx)

    def decompress(self, payload, ctx):
        return self.decompress_list(payload, ctx)[0]

    def aggregate(self, payloads, ctx):
        return self.aggregate_list(payloads, ctx)[0]

    def aggregate_list(self, payloads, ctx):
        shapes = [spec.shape for spec in ctx.specs]
        return byte_codes.decode_powers(payloads["codes"], shapes, 1.0)[0]

    def compress_list(self, xs, ctx):
        return {"codes": byte_codes.encode_powers(xs, None, 1.0, ctx.list_key())[0]}

    def decompress_list(self, payload, ctx):
        return self.aggregate_list(one_row(payload), ctx)


@fuses(Natural, NoMemory, Residual, when=lambda compressor, xs: choice.runs_here(xs))
def in_one_pass(compressor, memory, xs, memories, states, ctx):
    """Codes, residual and flag from one read."""
    codes, kept, finite = byte_codes.encode_powers(
        xs, residuals_of(memories), ctx.multiplier, ctx.list_key()
    )
    (reply,) = yield Gather([{"codes": codes}], finite)
    shapes = [spec.shape for spec in ctx.specs]
    means, finite = byte_codes.decode_powers(reply["codes"], shapes, 1 / ctx.size)
    return Outcome(means, settled(memories, kept), states, finite)
