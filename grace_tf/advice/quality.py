"""Which methods may be recommended, by how carefully the user will check the accuracy.

Facts about a method come in, some measured; its level goes out, or why it has none:

    safe        trains as uncompressed gradients do: 16 bits, or an error of the mean of at most .01
    balanced    an error of at most .05, or a residual that returns what is not sent: compare the
                accuracy of one training
    aggressive  sends about one percent of the gradient: check the accuracy at the end of training

The error is vNMSE: ‖mean of what the workers sent − mean of their gradients‖² over the square of
the latter's norm.  One step says little of a method with a residual, which sends later what it did
not send, so such methods have a level of their own.  Methods that need a learning rate or a
threshold of their own are never recommended.
"""

from __future__ import annotations

import dataclasses

LEVELS = ("safe", "balanced", "aggressive")
MOST_ERROR = {"safe": 0.01, "balanced": 0.05}
HALF_PEAK = 6e3  # times the number of workers; fp16 ends at 65504, and gradients grow for a while

# Bits an element from which a method without a memory may be safe; all of them are balanced below.
_SAFE_BITS = {"none": 32, "bf16": 16, "fp16": 16, "qsgd": 8, "fp8": 8, "eden": 4}
_RANGE_OF_HALVES = {"fp16"}  # whose sums end where float16 does
# Methods with a residual whose trainings with the optimizer's usual settings are known.
_WITH_RESIDUAL = {
    "loco": "balanced",
    "powersgd": "balanced",
    "acpsgd": "balanced",
    "chunktopk": "aggressive",
    "topk": "aggressive",
}


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known about a method on the gradients in question.

    Attributes:
      name: of the method, without hyperparameters.
      bits: an element that is compressed.
      residual: whether a memory keeps what is not sent.
      vnmse: the error of the mean; None where it is unknown.
      needs: which settings of the optimizer it needs, "" for the usual ones.
      peak: max |g| times the number of workers; None where it is unknown.
    """

    name: str
    bits: float
    residual: bool
    vnmse: float | None
    needs: str = ""
    peak: float | None = None


def level_of(facts: Facts) -> tuple[str | None, str]:
    """The level of a method and "", or None and the reason as text."""
    if facts.needs:
        return None, f"needs {facts.needs}"
    if facts.name in _RANGE_OF_HALVES and (facts.peak or 0.0) >= HALF_PEAK:
        return None, f"max |g| times the workers is {facts.peak:.2g}, near the end of float16"
    if facts.residual:
        level = _WITH_RESIDUAL.get(facts.name)
        return level, "" if level else "needs settings of its own, or is not known well enough"
    if facts.name not in _SAFE_BITS:
        return None, "is not known well enough"
    error = facts.vnmse or 0.0
    if error <= MOST_ERROR["safe"] and facts.bits >= _SAFE_BITS[facts.name]:
        return "safe", ""
    if error <= MOST_ERROR["balanced"]:
        return "balanced", ""
    return None, f"its error is above {MOST_ERROR['balanced']:g}"


def admitted(level: str | None, quality: str) -> bool:
    """Whether a method of this level may be recommended at this quality.

    Raises ValueError for an unknown quality.
    """
    if quality not in LEVELS:
        raise ValueError(f"quality is {', '.join(LEVELS)}, not {quality!r}.")
    return level is not None and LEVELS.index(level) <= LEVELS.index(quality)
