"""Uniform quantisation with a scale per block."""

from __future__ import annotations

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_choice, check_integer
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import lists


@register(
    "qsgd",
    family="quantisation",
    paper="arXiv:1610.02132",
    examples=(
        "qsgd:bits=2",
        "qsgd:bits=8,rounding=nearest",
        "qsgd:levels=127,norm=l2,block=none",
        "qsgd:bits=16,block=64",
    ),
)
class QSGD(Compressor):
    """Sends integer levels of a scale per block: C(x) = c·sign(x)·⌊s·|x|/c + u⌋/s.

    c is the maximum of |x| over the block (`norm="max"`) or its Euclidean norm (`norm="l2"`), s the
    number of levels on each side of zero: `levels`, else 2^(bits−1) − 1.  u is uniform in [0, 1)
    for `rounding="stochastic"`, which makes C unbiased; `rounding="nearest"` rounds half to even
    and makes C nonexpansive, fit for a residual.  Blocks are runs of `block` elements of one
    variable, None for the whole variable.  A block whose scale is below 2^-110 is sent as zeros.
    Shapes: any float32 tensor.
    Wire: levels int32[b·⌈n/32⌉] as bit planes with b = ⌈log2(2s+1)⌉ bits an element, scales
    float32[⌈n/block⌉], gathered: about n·(b/8 + 4/block) bytes, n/2 + n/128 by default.
    Raises: ValueError or TypeError for bits outside 2 … 16, levels outside 1 … 32767, a block
    that is no multiple of 32, an unknown norm or rounding.
    Paper: Alistarh et al. 2017, QSGD, section 3.1; the paper's form is norm="l2", block=None.
    Differs: the maximum as scale and 4 bits in blocks of 512 by default (section 4 of the paper);
    levels are bit-packed, not Elias-coded, so that payloads have a fixed size.
    """

    bits: int = 4
    levels: int | None = None
    block: int | None = 512
    norm: str = "max"
    rounding: str = "stochastic"

    homogeneous = True

    def __post_init__(self):
        check_integer("qsgd", "bits", self.bits, 2, 16)
        if self.levels is not None:
            check_integer("qsgd", "levels", self.levels, 1, 2**15 - 1)
        if self.block is not None:
            check_integer("qsgd", "block", self.block, 32)
            if self.block % 32:
                raise ValueError(f"qsgd: block is a multiple of 32 or none, not {self.block!r}.")
        check_choice("qsgd", "norm", self.norm, ("max", "l2"))
        check_choice("qsgd", "rounding", self.rounding, ("stochastic", "nearest"))

    unbiased = property(lambda self: self.rounding == "stochastic")
    nonexpansive = property(lambda self: self.rounding == "nearest")

    @property
    def _levels(self):
        return self.levels if self.levels is not None else 2 ** (self.bits - 1) - 1

    @property
    def _width(self):
        return (2 * self._levels).bit_length()

    def _block(self, elements):
        return self.block if self.block is not None else max(elements, 1)

    def wire(self, spec):
        n = spec.shape.num_elements()
        return {
            "levels": tf.TensorSpec([ops.packed_words(n, self._width)], tf.int32),
            "scales": tf.TensorSpec([-(-n // self._block(n))], tf.float32),
        }

    def error_bound(self, spec):
        n = spec.shape.num_elements()
        d, s = min(n, self._block(n)), self._levels
        return min(d / s**2, d**0.5 / s)  # lemma 3.1; a maximum is no larger than the norm

    def compress(self, x, ctx):
        x = tf.reshape(x, [-1])
        block = self._block(ctx.elements)
        key = ctx.key() if self.rounding == "stochastic" else None
        scales = ops.block_scales(x, block, self.norm)
        levels = ops.quantize(x, scales, self._levels, self._width, block, key)
        return {"levels": levels, "scales": scales}

    def decompress(self, payload, ctx):
        n = ctx.elements
        x = ops.dequantize(
            payload["levels"], payload["scales"], n, self._levels, self._width, self._block(n)
        )
        return tf.reshape(x, ctx.spec.shape)

    def aggregate(self, payloads, ctx):
        n = ctx.elements
        total = ops.dequantize_sum(
            payloads["levels"], payloads["scales"], n, self._levels, self._width, self._block(n)
        )
        return tf.reshape(total, ctx.spec.shape)

    def _quantize(self, xs, residuals, multiplier, ctx):
        key = ctx.list_key() if self.rounding == "stochastic" else None
        code = (self._levels, self._width, self.block, self.norm, key)
        return lists.quantize_list(xs, residuals, multiplier, *code)

    def _dequantize(self, payloads, factor, ctx):
        parts, shapes = (payloads["levels"], payloads["scales"]), [s.shape for s in ctx.specs]
        code = (tf.constant(factor, tf.float32), self._levels, self._width, self.block)
        return lists.dequantize_list(*parts, shapes, *code)

    def compress_list(self, xs, ctx):
        if not lists.runs_here(xs):
            return super().compress_list(xs, ctx)
        encoded = self._quantize(xs, None, 1.0, ctx)
        return {"levels": encoded.words, "scales": encoded.scales}

    def decompress_list(self, payload, ctx):
        if not lists.runs_here(payload.values()):
            return super().decompress_list(payload, ctx)
        return self._dequantize({k: part[None] for k, part in payload.items()}, 1.0, ctx)[0]


@fuses(QSGD, NoMemory, Residual, when=lambda compressor, xs: lists.runs_here(xs))
def in_one_pass(compressor, memory, xs, memories, states, ctx):
    """Each block is read once: scale, codes, residual and flag."""
    encoded = compressor._quantize(xs, residuals_of(memories), ctx.multiplier, ctx)
    payload = {"levels": encoded.words, "scales": encoded.scales}
    (reply,) = yield Gather([payload], encoded.finite)
    means, finite = compressor._dequantize(reply, 1 / ctx.size, ctx)
    return Outcome(means, settled(memories, encoded.kept), states, finite)
