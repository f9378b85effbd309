"""`residual`: error feedback, which adds to the next gradient what was not sent."""

from __future__ import annotations

from grace_tf.core.error_feedback import ErrorFeedback, with_resets
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.list_compressor import residuals_of
from grace_tf.core.registry import register
from grace_tf.core.rounds import settles_after


@register(
    "residual",
    family="error feedback",
    paper="arXiv:1901.09847",
    examples=("residual:dtype=bf16", "residual:dtype=int8", "residual:decay=0.9"),
)
class Residual(ErrorFeedback):
    """Adds what was not sent to the next gradient: x' = x + decay·e, e ← x' − sent.

    `dtype` is the form of e between steps.  "bf16" and "int8" round it at random, independently for
    each worker and element.  With bf16 the stored ê has the expectation e.  With int8, which draws
    16 bits an element, the expectation is off by at most 2^-17 of a level, c / 127.

        bf16  |ê − e| < 2^-7·|e|     variance ≤ 2^-16·e²
        int8  |ê − e| ≤ c / 127      variance ≤ (c / 254)², c the largest |e| of a block of 256

    up to float32 rounding.  (A bf16 that would round up to infinity is truncated; an int8 block
    with c below 2^-110 becomes zero.)  So the sum of the gradients is the sum of what was sent,
    plus ê, plus the rounding errors ê − e of all steps.  A step itself computes in float32.
    With a `decay` below 1 the residual forgets: an element that is never sent grows to
    1 / (1 − decay) gradients at most.  A method of signs leaves out much of every gradient, and a
    momentum of the optimizer repeats a long residual; the decay keeps the residual short.  A sparse
    gradient lets only the rows that it touches decay.  The decay costs no pass over memory.
    With `reset` e becomes 0 at the end of every reset-th step.  What it held then is lost: the sums
    above hold from one reset to the next.
    State: residual, between steps float32 of the variable's shape; uint16, the bits of bfloat16; or
    int8 [8·⌈n/32⌉ + ⌈n/256⌉, 4], codes and scales.  A state of one dtype loads into any other.
    compensated = sent + residual, exactly for selections, but in the steps that end with a reset.
    Raises: ValueError for another dtype or a decay outside (0, 1]; TypeError or ValueError for a
    reset that is no integer of at least 1; ValueError (at construction of the door) for a
    compressor that is not nonexpansive, since the residual could then grow without bound.
    Paper: Seide et al. 2014, 1-Bit SGD; Karimireddy et al. 2019, arXiv:1901.09847, algorithm 2.
    Differs: none with float32, decay 1 and no reset.
    """

    dtype: str = "float32"
    decay: float = 1.0
    reset: int | None = None

    takes_back = True
    in_encode = True
    by_rows = property(lambda self: self.dtype == "float32" and self.reset is None)
    forgets = property(lambda self: self.decay != 1 or self.reset is not None)
    keeps = property(lambda self: self.decay)

    def __post_init__(self):
        self._check("residual")
        check_fraction("residual", "decay", self.decay)

    def settle(self, carry, sent, total, state, ctx):
        return total, {"residual": self.unless_reset(carry - sent, ctx)}

    def take_back(self, state, lost):
        return {**state, "residual": state["residual"] + lost}


@settles_after(Residual, "residual", when=lambda memory: memory.reset is not None)
def started_anew(memory, before, after, ctx):
    """Resets the residuals of a fused form."""
    return with_resets(memory, lambda: residuals_of(after), ctx)
