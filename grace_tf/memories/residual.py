"""Error feedback."""

import tensorflow as tf

from grace_tf.core.memory import Memory
from grace_tf.core.registry import register


@register("residual")
class Residual(Memory):
    """Adds what was not sent to the next gradient: x' = x + e, e ← x' − sent.

    State: residual float32, the lane's shape.  compensated = sent + residual, exactly for
    selections.
    Raises: ValueError (at construction of the door) for a compressor that is not nonexpansive,
    since the residual could then grow without bound.
    Paper: Seide et al. 2014, 1-Bit SGD; Karimireddy et al. 2019, arXiv:1901.09847, algorithm 2.
    Differs: none.
    """

    requires_nonexpansive = True

    def init_state(self, spec):
        return {"residual": tf.zeros(spec.shape, tf.float32)}

    def compensate(self, x, state, ctx):
        compensated = x + state["residual"]
        return compensated, compensated

    def settle(self, carry, sent, total, state, ctx):
        return total, {"residual": carry - sent}
