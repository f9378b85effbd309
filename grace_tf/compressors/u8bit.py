"""Eight bits an element, in the numbers of a dynamic tree."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_integer
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import byte_codes, choice
from grace_tf.ops.backend.carrier import one_row


@register("u8bit", family="quantisation", paper="arXiv:1511.04561", examples=("u8bit:block=512",))
class U8Bit(Compressor):
    """Sends the nearest number of the dynamic tree data type: C(x) = ±c·T[code].

    c is the maximum of |x| over the variable, or over each run of `block` elements.  A code is a
    sign bit and seven bits of magnitude: z zeros, a one, and k = 6 − z bits of a fraction f, for
    T = 10^−z·(1/10 + 9/10·(f + 1)/2^k).  So each decade from 10^−6 up has twice the numbers of the
    one below it, 64 of them from 1/10 to 1; seven zeros are 0.  The largest element is sent
    exactly.  The sign bit is the element's own; an element that rounds to zero decodes to +0, and
    a residual keeps it.  A block whose scale is below 2^-110 is sent as zeros.
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

    def compress(self, x, ctx):
        return self.compress_list([x], ctx)

    def decompress(self, payload, ctx):
        return self.decompress_list(payload, ctx)[0]

    def aggregate(self, payloads, ctx):
        return self.aggregate_list(payloads, ctx)[0]

    def aggregate_list(self, payloads, ctx):
        return self._decode(payloads, 1.0, ctx)[0]

    def compress_list(self, xs, ctx):
        codes, scales, _, _ = byte_codes.encode_tree(xs, None, 1.0, self.block)
        return {"codes": codes, "scales": scales}

    def decompress_list(self, payload, ctx):
        return self.aggregate_list(one_row(payload), ctx)

    def _decode(self, payloads, factor, ctx):
        shapes = [spec.shape for spec in ctx.specs]
        parts = payloads["codes"], payloads["scales"]
        return byte_codes.decode_tree(*parts, shapes, factor, self.block)


@fuses(U8Bit, NoMemory, Residual, when=lambda compressor, xs: choice.runs_here(xs))
def in_two_passes(compressor, memory, xs, memories, states, ctx):
    """Scales, then codes, residual and flag; blocks that fit into the cache are read once."""
    codes, scales, kept, finite = byte_codes.encode_tree(
        xs, residuals_of(memories), ctx.multiplier, compressor.block
    )
    (reply,) = yield Gather([{"codes": codes, "scales": scales}], finite)
    means, finite = compressor._decode(reply, 1 / ctx.size, ctx)
    return Outcome(means, settled(memories, kept), states, finite)
