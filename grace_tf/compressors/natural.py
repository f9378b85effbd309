"""`natural`: powers of two, rounded at random."""

import tensorflow as tf

from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops import byte_codes


@register("natural", family="quantisation", paper="arXiv:1905.10988", memory="none")
class Natural(ListCompressor):
    """Sends a power of two next to each element: C(x) = ±2^⌊log₂|x|⌋, or the double of it with
    probability |x|/2^⌊log₂|x|⌋ − 1, to 16 random bits: exact to 2^-17.

    A code is the sign bit and seven bits of exponent, for 2^-94 … 2^32 and zero.  In this range
    C is unbiased, to 2^-17 of the power, with a variance of at most 1/8 of x².  Powers below it are
    sent as zero, powers above it as 2^32.  The range is fixed, so that no scale is sent and
    elements are independent.  It allows for summed losses and for losses scaled by up to 2^24.
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

    def relative_bound(self, spec):
        # With x = (1 + p)·2^k the variance is p·(1 − p)·4^k.  Divided by x² it is at most 1/8, with
        # p = 1/3.
        return 1 / 8

    def encode(self, xs, residuals, multiplier, ctx):
        codes, *rest = byte_codes.encode_powers(xs, residuals, multiplier, ctx.list_key())
        return Encoded({"codes": codes}, *rest)

    def decode(self, payload, factor, ctx):
        return byte_codes.decode_powers(payload["codes"], ctx.shapes, factor)
