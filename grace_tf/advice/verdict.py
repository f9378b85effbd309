"""The advice: which method to use, if any, and the sentence that says so.

The modelled step of each method comes in with its level; the recommended method and the sentence go
out.  A method is recommended where it makes a step WORTH shorter than the best of those that need
less trust: 16 bits beside none, and compression beside 16 bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grace_tf.advice.quality import admitted
from grace_tf.advice.timeline import StepTime

WORTH = 0.03  # of a step: a smaller difference may be an error of the measurement
SIXTEEN_BITS = ("bf16", "fp16")


@dataclasses.dataclass(frozen=True)
class Choice:
    """One method with its modelled step.

    Attributes:
      spec: as the user writes it.
      sent: bytes that a worker sends in a step.
      time: of a step.
      level: of quality.LEVELS, or None with the reason in `why_not`.
      vnmse: the error of the mean; None where it is unknown.
    """

    spec: str
    sent: float
    time: StepTime
    level: str | None
    why_not: str = ""
    vnmse: float | None = None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The recommended method and the sentence that names it."""

    spec: str
    sentence: str


def best_sixteen(choices: Sequence[Choice]) -> Choice | None:
    """The fastest 16-bit exchange, also where it may not be recommended; None without one."""
    return min((c for c in choices if c.spec in SIXTEEN_BITS), key=_seconds, default=None)


def verdict(choices: Sequence[Choice], quality: str, where: str) -> Verdict:
    """The advice on these methods, among them "none".

    Args:
      choices: the methods.
      quality: of quality.LEVELS.
      where: the workers and their link, as text for a sentence: "8 workers at 1 Gbit/s".
    Raises ValueError where "none" is missing, and for an unknown quality.
    """
    none = next((c for c in choices if c.spec == "none"), None)
    if none is None:
        raise ValueError("Advice compares with the uncompressed step: add none to the methods.")
    allowed = [c for c in choices if admitted(c.level, quality)]
    chosen = _chosen(none, allowed)
    later = [c for c in choices if c.level is not None and c not in allowed]
    riskier = min(later, key=_seconds, default=None)
    if riskier and not _worth(riskier, chosen):
        riskier = None
    return Verdict(chosen.spec, _sentence(none, chosen, riskier, allowed, where))


def _chosen(none: Choice, allowed: Sequence[Choice]) -> Choice:
    chosen = none
    halves = [c for c in allowed if c.spec in SIXTEEN_BITS]
    for group in (halves, allowed):
        best = min(group, key=_seconds, default=chosen)
        chosen = best if _worth(best, chosen) else chosen
    # Of two 16-bit formats that are as fast, the first one needs no look at the gradient's range.
    first = next((c for c in halves if c.spec == SIXTEEN_BITS[0]), None)
    if chosen in halves and first and not _worth(chosen, first):
        return first
    return chosen


def _sentence(
    none: Choice, chosen: Choice, riskier: Choice | None, allowed: Sequence[Choice], where: str
) -> str:
    now = seconds_text(chosen.time.seconds)
    if chosen is none:
        said = f"Do not compress: a step of {where} takes {now}"
        others = [c for c in allowed if c is not none]
        if others:
            best = min(others, key=_seconds)
            said += f", with the best other method, {best.spec}, {_beside(best, none)}"
    else:
        said = f"{where}: {now} a step instead of {seconds_text(none.time.seconds)}"
        sixteen = best_sixteen(allowed)
        if sixteen and chosen is not sixteen and chosen.spec not in SIXTEEN_BITS:
            said += f" ({sixteen.spec} {seconds_text(sixteen.time.seconds)})"
        said += f": use {chosen.spec}"
    if riskier:
        gain = seconds_text(riskier.time.seconds)
        said += f"; {riskier.spec} takes {gain} if you can check accuracy"
    return said + "."


def _beside(best: Choice, none: Choice) -> str:
    text = seconds_text(best.time.seconds)
    return f"{text} as well" if text == seconds_text(none.time.seconds) else text


def seconds_text(seconds: float) -> str:
    """Formats a time: "0.41 s", "38 ms".  Milliseconds are rounded to 6 decimals first."""
    if seconds < 0.0995:
        return f"{round(1e3 * seconds, 6):.2g} ms"
    return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"


def _seconds(choice: Choice) -> float:
    return choice.time.seconds


def _worth(better: Choice, than: Choice) -> bool:
    return better.time.seconds < (1 - WORTH) * than.time.seconds
