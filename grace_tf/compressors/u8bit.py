"""`u8bit`: eight bits an element, which encode numbers of a dynamic tree."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.core.hyperparameters import check_integer
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops import byte_codes


@register("u8bit", family="quantisation", paper="arXiv:1511.04561", examples=("u8bit:block=512",))
class U8Bit(ListCompressor):
    """Sends the nearest number of the dynamic tree data type: C(x) = ±c·T[code].

    c is the maximum of |x| over the variable, or over each run of `block` elements.  A code is a
    sign bit and seven bits of magnitude: z zeros, a one, and k = 6 − z bits of a fraction f, for
    T = 10^−z·(1/10 + 9/10·(f + 1)/2^k).  So each decade has twice as many numbers as the decade
    below it: there is one number from 10^−7 to 10^−6, and there are 64 from 1/10 to 1.  The code
    of seven zeros is 0.  The largest element is sent exactly.  The sign bit is the element's own;
    an element that rounds to zero decodes to +0, and a residual keeps it.  A block whose scale is
    below 2^-110 is sent as zeros.
    Shapes: any float32 tensor.
    Wire: codes int32[⌈n/4⌉], four in a word, scales float32[⌈n/block⌉], gathered: n + 4 bytes, or
    n + 4·⌈n/block⌉.
    Raises: ValueError or TypeError for a block that is no multiple of 32.
    Paper: Dettmers 2015, 8-Bit Approximations for Parallelism in Deep Learning: the dynamic tree.
    Differs: T is the upper end of the interval that the bits of the fraction choose, not its
    middle, so that 1 is among the numbers; the bits 0000000 stand for 0.
    """

    block: int | None = None

    nonexpansive = True
    elementwise = True
    recompressible = True
    homogeneous = True

    def __post_init__(self):
        if self.block is not None:
            check_integer("u8bit", "block", self.block, 32)
            if self.block % 32:
                raise ValueError(f"u8bit: block is a multiple of 32 or none, not {self.block!r}.")

    def wire(self, spec):
        n = spec.shape.num_elements()
        return {
            "codes": tf.TensorSpec([byte_codes.byte_words(n)], tf.int32),
            "scales": tf.TensorSpec([-(-n // self.block) if self.block else 1], tf.float32),
        }

    def encode(self, xs, residuals, multiplier, ctx):
        codes, scales, *rest = byte_codes.encode_tree(xs, residuals, multiplier, self.block)
        return Encoded({"codes": codes, "scales": scales}, *rest)

    def decode(self, payload, factor, ctx):
        parts = payload["codes"], payload["scales"]
        return byte_codes.decode_tree(*parts, ctx.shapes, factor, self.block)
