"""Error feedback."""

from collections.abc import Sequence

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


def residuals_of(memories: Sequence[dict[str, tf.Tensor]]) -> list[tf.Tensor] | None:
    """The residuals in the states of a lane group, for fused forms; None under `NoMemory`."""
    return [state["residual"] for state in memories] if memories[0] else None


def settled(
    memories: Sequence[dict[str, tf.Tensor]], kept: Sequence[tf.Tensor] | None
) -> Sequence[dict[str, tf.Tensor]]:
    """The next states, from the residuals that a fused form kept; None under `NoMemory`."""
    return memories if kept is None else [{"residual": each} for each in kept]
