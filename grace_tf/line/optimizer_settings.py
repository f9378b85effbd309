"""Which learning rate and momentum a method needs of the optimizer, where not the usual ones."""

from __future__ import annotations

from grace_tf.core.compressor import Compressor
from grace_tf.core.memory import Memory

_FAR = 10.0  # times as long as the step to begin with; trainings stand a few times


def to_begin_with(compressor: Compressor, memory: Memory) -> str:
    """Says what to set in the optimizer; "" if the usual learning rate and momentum serve."""
    rate = compressor.begin_with_rate
    if rate is not None:
        return f"a learning rate of {rate:g} and no momentum in the optimizer"
    if memory.has_momentum or _repeats(compressor, memory):
        return "no momentum in the optimizer"
    return ""


def far_off(compressor: Compressor, memory: Memory, rate: float | None, momentum: float) -> str:
    """Says how the optimizer's settings are far from `to_begin_with`; "" if they are not.

    Args:
      rate: the learning rate of the first step; None where it is not known.
      momentum: the optimizer's, which makes a steady step 1 / (1 - momentum) times as long.
    """
    wanted = compressor.begin_with_rate
    if wanted is not None and rate is not None:
        length = rate / max(1 - momentum, 1e-3)
        if length > 1.01 * _FAR * wanted:
            beside = f" and a momentum of {momentum:.6g}" if momentum else ""
            return (
                f"a learning rate of {rate:.6g}{beside}, which move every weight by up to "
                f"{length:.3g} in each step, whatever the gradient's size"
            )
    if momentum and _repeats(compressor, memory):
        return f"a momentum of {momentum:.6g}, which repeats what the residual sends late"
    return ""


def _repeats(compressor: Compressor, memory: Memory) -> bool:
    return compressor.repeats_late and memory.needs_sent
