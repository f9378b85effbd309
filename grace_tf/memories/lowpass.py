"""`lowpass`: error feedback through a low-pass filter."""

from __future__ import annotations

from grace_tf.core.error_feedback import ErrorFeedback, with_resets
from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.list_compressor import residuals_of
from grace_tf.core.registry import register
from grace_tf.core.rounds import settles_after
from grace_tf.ops import weighted_sum


@register(
    "lowpass",
    family="error feedback",
    paper="arXiv:2104.11125",
    examples=("lowpass:beta=0.2,dtype=int8,reset=1024",),
)
class LowPass(ErrorFeedback):
    """A residual that averages what was not sent: x' = x + e, e ← (1 − β)·e + β·(x' − sent).

    `beta` is β.  A small β filters the noise that single batches and high learning rates put into
    the residual; β = 1 is the memory `residual`.  The next residual is e + β·(x − sent), so that
    nothing is lost but is sent later: after any number of steps

        the sum of the gradients = the sum of what was sent + e / β

    up to rounding, for each worker.  An element that is sent whole keeps the residual (1 − β)·e.
    `dtype` is the form of e between steps, "float32", or "bf16" or "int8" as in `residual`.
    With `reset` e becomes 0 at the end of every reset-th step.  What it held then is lost: the sum
    above holds from one reset to the next.
    State: residual float32, the variable's shape; in the other dtypes as that of `residual`.
    Raises: TypeError or ValueError for a β outside (0, 1], or a reset that is no integer of at
    least 1; ValueError for another dtype, and (at construction of the door) for a compressor that
    is not nonexpansive.
    Paper: Chen et al. 2020, ScaleCom, arXiv:2104.11125, algorithm 1; the resets and 8 bits: Xie et
    al. 2024, LoCo, arXiv:2407.04480.
    Differs: selects as the compressor does, not by the indices of one leading worker.
    """

    beta: float = 0.1
    dtype: str = "float32"
    reset: int | None = None

    takes_back = True
    forgets = True

    def __post_init__(self):
        self._check("lowpass")
        check_fraction("lowpass", "beta", self.beta)

    def settle(self, carry, sent, total, state, ctx):
        residual = (1 - self.beta) * state["residual"] + self.beta * (carry - sent)
        return total, {"residual": self.unless_reset(residual, ctx)}

    def take_back(self, state, lost):
        return {**state, "residual": state["residual"] + self.beta * lost}


@settles_after(LowPass, "residual")
def filtered(memory, before, after, ctx):
    """Filters the residuals of a fused form, in one more pass over memory, and resets them."""
    old, unsent = residuals_of(before), residuals_of(after)

    def mixed():
        return weighted_sum.mix_list(unsent, memory.beta, old, 1 - memory.beta)

    return with_resets(memory, mixed, ctx)
