"""Reads what `--link` says, and puts rates and times into words."""

from __future__ import annotations

import dataclasses
import re

NAMESPACES, RELAY = WAYS = "namespaces", "relay"

_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}  # bits a second
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}  # seconds
_SLOWEST, _FASTEST, _LATEST = 10e3, 100e9, 10.0
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)")
_BURST = 4e-3  # seconds; so much of the rate may pass at once after a pause
_LEAST_BURST = 3200  # bytes, of two packets


@dataclasses.dataclass(frozen=True)
class Link:
    """The emulated link of each worker.  Both directions have this rate and this latency.

    Attributes:
      rate: in bits a second.
      latency: in seconds, from one worker to another.
      way: how the link is emulated, "namespaces" or "relay"; "" for the first of them that this
        machine can do.
    """

    rate: float
    latency: float = 0.0
    way: str = ""

    @property
    def burst(self) -> int:
        """The bytes that may pass at once after a pause, as in a token bucket."""
        return max(_LEAST_BURST, round(_BURST * self.rate / 8))

    def __str__(self) -> str:
        late = f" and {milliseconds(self.latency)}" if self.latency else ""
        return f"{bits(self.rate)}{late} each way"


def parse_link(text: str) -> Link:
    """`"100mbit,20ms"` -> Link(1e8, 0.02); a way may follow: `"1gbit,relay"`.

    Raises ValueError for anything else.
    """
    first, *others = (part.strip().lower() for part in text.split(","))
    rate, latency, way = _number(first, _RATES), None, None
    right = rate is not None and _SLOWEST <= rate <= _FASTEST
    for part in others:
        if part in WAYS and way is None:
            way = part
        elif latency is None and way is None:
            latency = _number(part, _TIMES)
            right = right and latency is not None and latency <= _LATEST
        else:
            right = False
    if not right:
        raise ValueError(
            "--link takes a rate from 10kbit to 100gbit, then perhaps a latency of 10s at most, "
            f"such as 100mbit or 1gbit,20ms, but got {text!r}."
        )
    return Link(rate, latency or 0.0, way or "")


def _number(text: str, units: dict[str, float]) -> float | None:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in units:
        return None
    return float(match[1]) * units[match[2]]


def bits(rate: float) -> str:
    """A rate in words: "95.6 Mbit/s"."""
    unit, size = next(u for u in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 0)) if rate >= u[1])
    return f"{float(f'{rate / (size or 1e3):.3g}'):g} {unit}"


def milliseconds(seconds: float) -> str:
    """A time in words: "20 ms"."""
    return f"{float(f'{1000 * seconds:.2g}'):g} ms"
