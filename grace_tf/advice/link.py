"""`Link`: the rate and latency of a network between workers, and how people write them.

Text comes in, such as "1gbit", "100mbit,20ms" or "1gbit,latency=1ms"; a `Link` goes out.
"""

from __future__ import annotations

import dataclasses
import re

FORM = "a rate and perhaps a latency, such as 1gbit, 100mbit,20ms or 1gbit,latency=1ms"

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_RATE = re.compile(_NUMBER + r" *([kmgt]?)bit(?:/s)?", re.IGNORECASE)
_LATENCY = re.compile(r"(?:latency *= *)?" + _NUMBER + r" *(us|ms|s)", re.IGNORECASE)
_MULTIPLES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}  # as networks count: decimal
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclasses.dataclass(frozen=True)
class Link:
    """What one worker may send, and at the same time receive.

    Attributes:
      bits_per_second: in each direction.
      latency: seconds that a message takes one way beside its own length.
    """

    bits_per_second: float
    latency: float = 0.0

    @property
    def seconds_per_byte(self) -> float:
        return 8 / self.bits_per_second

    def __str__(self) -> str:
        """For people: "1 Gbit/s", "100 Mbit/s, 20 ms"."""
        rate = rate_text(self.bits_per_second)
        return f"{rate}, {1e3 * self.latency:g} ms" if self.latency else rate


def parse_link(text: str) -> Link:
    """The link that a text describes: `RATE[,LATENCY]`, in any case.

    RATE is a number and `bit`, `kbit`, `mbit`, `gbit` or `tbit`, in bits a second with decimal
    multiples; `/s` may follow.  LATENCY is a number and `us`, `ms` or `s`, one way; `latency=` may
    precede it.

    Raises ValueError for another text, and for a rate of 0.
    """
    rate, *latency = (part.strip() for part in text.split(","))
    found = _RATE.fullmatch(rate)
    later = [_LATENCY.fullmatch(part) for part in latency]
    if not found or len(later) > 1 or None in later:
        raise ValueError(f"A link is written as {FORM}, not {text!r}.")
    number, multiple = found.groups()
    bits = float(number) * _MULTIPLES[multiple.lower()]
    if not bits:
        raise ValueError(f"A link needs a rate above 0, not {text!r}.")
    seconds = [float(each[1]) * _SECONDS[each[2].lower()] for each in later]
    return Link(bits, *seconds)


def rate_text(bits_per_second: float) -> str:
    """Formats a rate: 1e9 → "1 Gbit/s"."""
    for multiple, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if bits_per_second >= multiple:
            return f"{bits_per_second / multiple:.4g} {letter}bit/s"
    return f"{bits_per_second:.4g} bit/s"
