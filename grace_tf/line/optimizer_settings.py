"""Which methods need another learning rate or momentum of the optimizer than the usual one."""

from __future__ import annotations

from grace_tf.core.compressor import Compressor
from grace_tf.core.memory import Memory

# A step this many times as long as the one to begin with is too long.  A few times does no harm.
_FAR = 10.0


def to_begin_with(compressor: Compressor, memory: Memory) -> str:
    """Returns as text which settings the optimizer needs; "" if the usual ones are good."""
    rate = compressor.begin_with_rate
    if rate is not None:
        return f"a learning rate of {rate:g} and no momentum in the optimizer"
    if memory.has_momentum or _repeats(compressor, memory):
        return "no momentum in the optimizer"
    return ""


def far_off(compressor: Compressor, memory: Memory, rate: float | None, momentum: float) -> str:
    """Returns as text which setting is far from those of `to_begin_with`; "" if none is.

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
