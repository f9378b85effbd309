"""`efsignsgd`: one bit an element, and the mean magnitude of a block."""

from __future__ import annotations

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.hyperparameters import check_integer
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops.scaled_signs import Cells, check_block, scaled_sign_list, sum_scaled_sign_list


@register(
    "efsignsgd",
    family="quantisation",
    paper="arXiv:1901.09847",
    memory="residual:decay=0.9",
    examples=("efsignsgd:block=512",),
)
class EFSignSGD(ListCompressor):
    """Sends signs and the mean magnitude c of each block: C(x) = c·sign(x), sign(0) = +1.

    Blocks are runs of `block` elements of one variable, None for the whole variable.  A denormal
    counts as 0, and so does a mean below 2^-110.
    ‖x − C(x)‖² = ‖x‖² − ‖x‖₁²/n in a block of n elements, so that a residual is allowed.
    Shapes: any float32 tensor.
    Wire: signs int32[⌈n/32⌉], scales float32[⌈n/block⌉], gathered: n/8 + 4 bytes, with blocks
    n/8 + 4n/block.
    Raises: ValueError or TypeError for a block that is no power of two of at least 32.
    Paper: Karimireddy et al. 2019, Error Feedback Fixes SignSGD, algorithm 1 (EF-SIGNSGD); with
    several workers, their mean.
    Differs: the memory by default is the paper's residual with a decay of 0.9.  One bit leaves out
    so much that the whole residual grows to many gradients, which a momentum of the optimizer then
    repeats: with SGD(0.05, momentum=0.9) it falls two to three points behind on MNIST, and with
    the decay it does not (docs/training.md).  memory="residual" is the paper's.
    No learning rate.  The paper compresses p = γ·g + e and steps by C(p).  With e = γ·e'
    that is p = γ·(g + e'), and C scales with its input, so the step is γ·C(g + e'): a constant γ
    cancels from the residual, and the optimizer applies it.  Where the optimizer's γ changes, the
    residual of earlier steps is applied with the new γ.
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

    def encode(self, xs, residuals, multiplier, ctx):
        made = scaled_sign_list(xs, residuals, multiplier, self._cells)
        return Encoded(
            {"signs": made.words, "scales": made.levels[0]}, made.residuals_out, made.finite
        )

    def decode(self, payload, factor, ctx):
        parts = payload["signs"], [payload["scales"]]
        return sum_scaled_sign_list(*parts, ctx.shapes, factor, self._cells)
