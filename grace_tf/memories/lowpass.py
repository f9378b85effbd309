"""`lowpass`: error feedback through a low-pass filter."""

import tensorflow as tf

from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.memory import Memory
from grace_tf.core.registry import register
from grace_tf.core.rounds import settles_after
from grace_tf.ops import weighted_sum


@register("lowpass", family="error feedback", paper="arXiv:2104.11125")
class LowPass(Memory):
    """A residual that averages what was not sent: x' = x + e, e ← (1 − β)·e + β·(x' − sent).

    `beta` is β.  A small β filters the noise that single batches and high learning rates put into
    the residual; β = 1 is the memory `residual`.  The next residual is e + β·(x − sent), so that
    nothing is lost but is sent later: after any number of steps

        the sum of the gradients = the sum of what was sent + e / β

    up to rounding, for each worker.  An element that is sent whole keeps the residual (1 − β)·e.
    State: residual float32, the variable's shape.
    Raises: TypeError or ValueError for a β outside (0, 1]; ValueError (at construction of the door)
    for a compressor that is not nonexpansive.
    Paper: Chen et al. 2020, ScaleCom, arXiv:2104.11125, algorithm 1.
    Differs: selects as the compressor does, not by the indices of one leading worker.
    """

    beta: float = 0.1

    requires_nonexpansive = True
    takes_back = True

    def __post_init__(self):
        check_fraction("lowpass", "beta", self.beta)

    def init_state(self, spec):
        return {"residual": tf.zeros(spec.shape, tf.float32)}

    def compensate(self, x, state, ctx):
        compensated = x + state["residual"]
        return compensated, compensated

    def settle(self, carry, sent, total, state, ctx):
        residual = (1 - self.beta) * state["residual"] + self.beta * (carry - sent)
        return total, {"residual": residual}

    def take_back(self, state, lost):
        return {**state, "residual": state["residual"] + self.beta * lost}


@settles_after(LowPass, "residual")
def filtered(memory, before, after):
    """Filters the residuals of a fused form, in one more pass over memory."""
    old, unsent = ([state["residual"] for state in states] for states in (before, after))
    mixes = weighted_sum.mix_list(unsent, memory.beta, old, 1 - memory.beta)
    return [{"residual": each} for each in mixes]
