"""`qsgd`: uniform quantisation with a scale per block."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.hyperparameters import check_choice, check_integer
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops import quantization


@register(
    "qsgd",
    family="quantisation",
    paper="arXiv:1610.02132",
    examples=(
        "qsgd:bits=2",
        "qsgd:bits=8,rounding=nearest",
        "qsgd:levels=127,norm=l2,block=none",
        "qsgd:bits=16,block=64",
        "qsgd:norm=minmax",
        "qsgd:bits=8,norm=minmax,rounding=nearest",
        "qsgd:rounding=stratified",
        "qsgd:bits=2,norm=minmax,rounding=stratified,block=none",
    ),
)
class QSGD(ListCompressor):
    """Sends integer levels of a scale per block: C(x) = c·sign(x)·⌊s·|x|/c + u⌋/s.

    c is the maximum of |x| over the block (`norm="max"`) or its Euclidean norm (`norm="l2"`), s the
    number of levels on each side of zero: `levels`, else 2^(bits−1) − 1.  With `norm="minmax"` the
    levels lie between the block's minimum m and its maximum, their distance is c, s = 2^bits − 1,
    and C(x) = m + c·⌊s·(x − m)/c + u⌋/s.
    u is uniform in [0, 1), so that C is unbiased, for `rounding="stochastic"` and "stratified"; up
    to s = 127 it has 16 random bits, and the bias is at most 2^-17 of a level.  "auto" is
    stochastic, but nearest in a composite that refines a selection, as topk|values=qsgd.
    The first draws u on each worker independently.  The second takes u = frac(U + p/N), where U and
    the permutation p of the N workers are common to all: the more the workers' gradients agree, the
    more their errors cancel, and the mean of equal ones is off by less than one level/N.
    `rounding="nearest"` rounds half to even; C is then nonexpansive (not with minmax) and allows a
    residual.
    Blocks are runs of `block` elements of one variable, None for the whole variable; of a sparse
    gradient, runs of the rows that are sent, also of several tables.  A block
    whose c is below 2^-110 (minmax: 2^-109) is sent as zeros, or m.
    The error of a block of d elements is bounded: E‖C(x) − x‖² ≤ min(d/(4s²), √d/s)·‖x‖²; with
    minmax the bound is d/(2s²)·‖x‖².
    Shapes: any float32 tensor.
    Wire: levels int32[b·⌈n/32⌉] as bit planes with b = ⌈log2(2s+1)⌉ bits an element (minmax: bits),
    scales float32[⌈n/block⌉] (minmax: c/2 and m, twice as many), gathered: about n·(b/8 + 4/block)
    bytes, n/2 + n/128 by default.
    Raises: ValueError or TypeError for bits outside 2 … 16, levels outside 1 … 32767 or beside
    minmax, a block that is no multiple of 32, an unknown norm or rounding.
    Paper: Alistarh et al. 2017, QSGD, section 3.1; the paper's form is norm="l2", block=None.
    Differs: the maximum as scale and 4 bits in blocks of 512 by default (section 4 of the paper);
    levels are bit-packed, not Elias-coded, so that payloads have a fixed size; minmax and
    stratified rounding are additions.
    """

    bits: int = 4
    levels: int | None = None
    block: int | None = 512
    norm: str = "max"
    rounding: str = "auto"

    homogeneous = True

    def __post_init__(self):
        check_integer("qsgd", "bits", self.bits, 2, 16)
        if self.levels is not None:
            check_integer("qsgd", "levels", self.levels, 1, 2**15 - 1)
        if self.block is not None:
            check_integer("qsgd", "block", self.block, 32)
            if self.block % 32:
                raise ValueError(f"qsgd: block is a multiple of 32 or none, not {self.block!r}.")
        check_choice("qsgd", "norm", self.norm, ("max", "l2", "minmax"))
        if self.norm == "minmax" and self.levels is not None:
            raise ValueError("qsgd: minmax has 2^bits levels; levels are not given beside it.")
        roundings = ("auto", "stochastic", "stratified", "nearest")
        check_choice("qsgd", "rounding", self.rounding, roundings)

    elementwise = True
    recompressible = True
    unbiased = property(lambda self: self.rounding != "nearest")
    nonexpansive = property(lambda self: self.rounding == "nearest" and self.norm != "minmax")

    def refining(self):
        chosen = self.rounding != "auto" or self.norm == "minmax"
        return self if chosen else dataclasses.replace(self, rounding="nearest")

    @property
    def _code(self):
        if self.norm == "minmax":
            return quantization.Code(2**self.bits - 1, self.bits, self.block, self.norm)
        s = self.levels if self.levels is not None else 2 ** (self.bits - 1) - 1
        return quantization.Code(s, (2 * s).bit_length(), self.block, self.norm)

    def wire(self, spec):
        n, floats = spec.shape.num_elements(), 2 if self.norm == "minmax" else 1
        blocks = 1 if self.block is None else -(-n // self.block)
        return {
            "levels": tf.TensorSpec([ops.packed_words(n, self._code.bits)], tf.int32),
            "scales": tf.TensorSpec([floats * blocks], tf.float32),
        }

    def relative_bound(self, spec):
        n, s = spec.shape.num_elements(), self._code.levels
        d = n if self.block is None else min(n, self.block)
        # Levels are c/s apart.  An element that is rounded up with the probability p has the
        # variance (c/s)²·p·(1 − p), which is at most (c/s)²/4.  With minmax the levels are
        # (highest − lowest)/s apart, and highest − lowest is at most √2·‖x‖.
        if self.norm == "minmax":
            return d / (2 * s**2)
        return min(d / (4 * s**2), d**0.5 / s)  # c ≤ ‖x‖; √d/s is from lemma 3.1

    def encode(self, xs, residuals, multiplier, ctx):
        if self.rounding == "nearest":
            random = None
        elif self.rounding == "stratified":
            order = ctx.stage(0).draw
            random = quantization.Strata(ctx.shared_list_key(), order, ctx.worker, ctx.size)
        else:
            random = ctx.list_key()
        made = quantization.encode(xs, residuals, multiplier, self._code, random)
        return Encoded(
            {"levels": made.words, "scales": made.scales}, made.residuals_out, made.finite
        )

    def decode(self, payload, factor, ctx):
        parts = payload["levels"], payload["scales"]
        return quantization.decode(*parts, ctx.shapes, factor, self._code)
