"""Checks that a method treats every element of tensors of any length.

Where an element was sent, it and the decoded element mostly agree in sign, and their product is
positive on average.  Where another value, or nothing, is in its place, the product is zero on
average.
"""

from __future__ import annotations

import numpy as np

from grace_tf.testing import cases
from grace_tf.testing.subject import Subject, demand

_SEEN = 30  # expected number of sent elements before a judgement; all missing by chance: 1e-13
_STEPS = 300
_SEGMENTS = 16


def every_element_counts(s: Subject) -> None:
    """every element reaches the result sooner or later, in tensors whose length divides badly"""
    rates = [np.count_nonzero(sent) / sent.size for _, sent in s.draws.values()]
    least = min((rate for rate in rates if rate), default=0)
    for shape, (x, sent) in s.draws.items():
        n = x.shape[1]
        demand(
            np.any(sent) or least * sent.size < _SEEN,
            f"Of gradients of shape {shape} nothing is ever sent.",
        )
        evidence = cases.evidence(x, sent)
        often = np.count_nonzero(sent) >= 36 * n * n  # so often that even a faint signal shows
        if np.median(evidence) < 6 and not often:
            continue  # too little is sent to tell who is left out
        lost = np.flatnonzero(evidence < 1.5)
        demand(
            not lost.size,
            f"In {len(x)} steps with gradients of shape {shape}, {_listed(lost)} had no effect on "
            "the result: something is cut off or put elsewhere.",
        )


def _listed(places: np.ndarray) -> str:
    shown = ", ".join(map(str, places[:8])) + (", …" if places.size > 8 else "")
    return f"element {shown}" if places.size == 1 else f"{places.size} elements ({shown})"


def large_as_small(s: Subject) -> None:
    """as much of a gradient gets through at one length as at another with the same rate"""
    before = None
    for n, x, outcome in s.ladder:
        effect = x.astype(np.float64) * np.stack(outcome["sent"])
        power = np.mean(x.astype(np.float64) ** 2)
        share, error = effect.mean() / power, effect.std() / np.sqrt(effect.size) / power
        rate = s.nbytes((n,)) / n
        if before and 0.625 < rate / before[1] < 1.6:
            difference = abs(share - before[2])
            allowed = 0.4 * max(abs(share), abs(before[2])) + 5 * (error + before[3])
            demand(
                difference <= allowed,
                f"Of a gradient of {before[0]} elements {before[2]:.3g} of the energy is decoded, "
                f"of one of {n} elements {share:.3g}.",
            )
        before = n, rate, share, error


def all_of_a_large_one(s: Subject) -> None:
    """every sixteenth of a large gradient reaches the result"""
    for shape in cases.LARGE[:1] if s.quick else cases.LARGE:
        weak = _weak_segments(s, shape)
        demand(
            not weak,
            f"Of a gradient of shape {shape}, nothing of {weak[0] if weak else ''} "
            "is in what is decoded.",
        )


def _weak_segments(s: Subject, shape: tuple[int, ...]) -> list[str]:
    """The runs of elements that have no effect, until each was sent twice on average."""
    size = int(np.prod(shape))
    bounds = np.linspace(0, size, _SEGMENTS + 1).astype(int)
    total, square, used = np.zeros(_SEGMENTS), np.zeros(_SEGMENTS), np.zeros(_SEGMENTS)
    for step in range(_STEPS):
        x = cases.normal(shape, 500 + step)
        sent = s.run(x[None], step, eager=True)["sent"][0]
        effect = (x.astype(np.float64) * sent).reshape(-1)
        total += np.add.reduceat(effect, bounds[:-1])
        square += np.add.reduceat(effect**2, bounds[:-1])
        used += np.add.reduceat((effect != 0).astype(np.float64), bounds[:-1])
        weak = np.flatnonzero(total < 0.2 * total.mean() - 5 * np.sqrt(square))
        if used.mean() >= _SEEN and not weak.size:
            return []
        if used.sum() >= 2 * size:  # a method that goes through its elements by turns has ended
            return [f"elements {bounds[w]} to {bounds[w + 1]}" for w in weak]
    return []


CHECKS = (every_element_counts, large_as_small, all_of_a_large_one)
