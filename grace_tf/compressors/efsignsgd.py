"""One bit an element, and the mean magnitude."""

from __future__ import annotations

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_integer
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import choice
from grace_tf.ops.backend.carrier import one_row
from grace_tf.ops.scaled_signs import Cells, check_block, scaled_sign_list, sum_scaled_sign_list


@register(
    "efsignsgd",
    family="quantisation",
    paper="arXiv:1901.09847",
    examples=("efsignsgd:block=512",),
)
class EFSignSGD(Compressor):
    """Sends signs and the mean magnitude c of each block: C(x) = c·sign(x), sign(0) = +1.

    Blocks are runs of `block` elements of one variable, None for the whole variable.  A denormal
    counts as 0, and so does a mean below 2^-110.
    ‖x − C(x)‖² = ‖x‖² − ‖x‖₁²/n in a block of n elements: the residual is the paper's memory.
    Shapes: any float32 tensor.
    Wire: signs int32[⌈n/32⌉], scales float32[⌈n/block⌉], gathered: n/8 + 4 bytes, with blocks
    n/8 + 4n/block.
    Raises: ValueError or TypeError for a block that is no power of two of at least 32.
    Paper: Karimireddy et al. 2019, Error Feedback Fixes SignSGD, algorithm 1 (EF-SIGNSGD); with
    several workers, their mean.
    Differs: no learning rate.  The paper compresses p = γ·g + e and steps by C(p).  With e = γ·e'
    that is p = γ·(g + e'), and C scales with its input, so the step is γ·C(g + e'): a constant γ
    cancels from the residual, and the optimizer applies it.  Where the optimizer's γ changes, what
    was kept before is applied with the new one.
    """

    block: int | None = None

    nonexpansive = True
    elementwise = True
    recompressible = True
    homogeneous = True

    def __post_init__(self):
        if self.block is None:
            return
        check_integer("efsignsgd", "block", self.block, 32)
        if not check_block(self.block):
            raise ValueError(f"efsignsgd: block is a power of two or none, not {self.block!r}.")

    @property
    def _cells(self):
        return Cells(sides=1, block=self.block)

    def wire(self, spec):
        words = ops.packed_words(spec.shape.num_elements(), 1)
        return {
            "signs": tf.TensorSpec([words], tf.int32),
            "scales": tf.TensorSpec([self._cells.count(spec.shape)], tf.float32),
        }

    def _encode(self, xs, residuals, multiplier):
        encoded = scaled_sign_list(xs, residuals, multiplier, self._cells)
        return {"signs": encoded.words, "scales": encoded.levels[0]}, encoded

    def _sum(self, payloads, factor, ctx):
        scales = [payloads["scales"]]
        shapes = [spec.shape for spec in ctx.specs]
        return sum_scaled_sign_list(payloads["signs"], scales, shapes, factor, self._cells)

    def compress_list(self, xs, ctx):
        return self._encode(xs, None, 1.0)[0]

    def decompress_list(self, payload, ctx):
        return self.aggregate_list(one_row(payload), ctx)

    def compress(self, x, ctx):
        return self.compress_list([x], ctx)

    def decompress(self, payload, ctx):
        return self.decompress_list(payload, ctx)[0]

    def aggregate(self, payloads, ctx):
        return self.aggregate_list(payloads, ctx)[0]

    def aggregate_list(self, payloads, ctx):
        return self._sum(payloads, 1.0, ctx)[0]


@fuses(EFSignSGD, NoMemory, Residual, when=lambda compressor, xs: choice.runs_here(xs))
def in_two_passes(compressor, memory, xs, memories, states, ctx):
    """One read for signs and scales, one for what is kept, or one for all of it where blocks are
    short; every mean over workers is written once.
    """
    payload, encoded = compressor._encode(xs, residuals_of(memories), ctx.multiplier)
    (reply,) = yield Gather([payload], encoded.finite)
    means, finite = compressor._sum(reply, 1 / ctx.size, ctx)
    return Outcome(means, settled(memories, encoded.kept), states, finite)
