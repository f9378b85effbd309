"""Selects the methods of "auto" that a training tries, by predicted times.

The predicted times of exchange and codec come in, the same on all workers.  The arms that a step
contains go out, and a sentence with the reason.  All times are whole microseconds, and nothing
depends on clocks or on the number of the worker, so all workers select the same arms.

The predicted step has an exchange and codecs, but no backward pass.  In a training the backward
pass hides a part of the exchange, and never reduces the work of the codecs.  So a method that gains
less than `WORTH` here gains even less in a training.  A method that gains `WORTH` is tried, and
timing decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grace_tf.advice.network import Network
from grace_tf.advice.timeline import Bucket, Compute, step_time
from grace_tf.advice.verdict import seconds_text

WORTH = 5  # percent that a method must be faster than the best baseline
MOST = 2  # methods that are tried beside the baselines
TRACING = 10_000  # microseconds for each variable and method, which the first step takes longer
PAYS = 20  # times that must be saved in the rest of the training
LOOK = 1.0  # seconds that it takes to measure the network and the codecs
PAYS_LOOK, FREE_LOOK = 5, 200  # times, of what can be saved and of the rest of the training


@dataclasses.dataclass(frozen=True)
class Foreseen:
    """What an arm is predicted to take, in microseconds: all of it, and its exchange and codec."""

    micros: int
    exchange: int
    codec: int

    @classmethod
    def of(cls, buckets: Sequence[Bucket], network: Network) -> Foreseen:
        """The prediction of buckets on a network, without any work of the model."""
        time = step_time(Compute(0.0, 0.0), buckets, network)
        return cls(*(round(1e6 * each) for each in (time.seconds, time.exchange, time.codec)))


def decide(
    foreseen: Sequence[Foreseen], baselines: int, variables: int, steps: int | None
) -> tuple[int, ...]:
    """The numbers of the arms that are traced: the baselines, and `MOST` others at most.

    Args:
      foreseen: by arm.
      baselines: the first arms, which are always traced.
      variables: of the model.
      steps: of the training; None where nobody knows.
    """
    best = min(each.micros for each in foreseen[:baselines])
    pays = PAYS * TRACING * variables
    worth = [
        (each.micros, arm)
        for arm, each in enumerate(foreseen)
        if arm >= baselines
        and 100 * each.micros <= (100 - WORTH) * best
        and (steps is None or (best - each.micros) * steps > pays)
    ]
    return (*range(baselines), *sorted(arm for _, arm in sorted(worth)[:MOST]))


def look_pays(none: float, half: float, steps: float) -> bool:
    """Whether to measure the network in the rest of a training.

    Half of the bytes show what all bytes are worth: the second half can save no more than the
    first, since of an exchange beside the backward pass the end is what a step waits for.  In a
    long training a look costs nothing that counts.

    Args:
      none, half: seconds of a step that sends all bytes, and of one that sends half of them.
      steps: that are left.
    """
    return steps * (none - half) > PAYS_LOOK * LOOK or steps * half > FREE_LOOK * LOOK


def said(
    foreseen: Sequence[Foreseen], arms: Sequence[int], baselines: int, names: Sequence[str]
) -> str:
    """The decision in one sentence, with the numbers of the best method and the best baseline."""
    first = min(range(baselines), key=lambda arm: (foreseen[arm].micros, arm))
    best = min(range(baselines, len(foreseen)), key=lambda arm: (foreseen[arm].micros, arm))
    rest = (
        f"exchange and codec of {_part(foreseen, best, names)}, of {_part(foreseen, first, names)}"
    )
    tried = [names[arm] for arm in arms if arm >= baselines]
    if tried:
        return f"auto tries {' and '.join(tried)}, since {rest}."
    return f"auto tries no method beside {' and '.join(names[:baselines])}, since {rest}."


def said_of_baselines(none: float, half: float, names: Sequence[str]) -> str:
    """Why nothing was measured, in one sentence; the arguments are as for `look_pays`."""
    saved = f"save {seconds_text(none - half)}" if half < none else "save nothing"
    return f"auto tries no method beside {names[0]} and {names[1]}: half of the bytes {saved}."


def _part(foreseen: Sequence[Foreseen], arm: int, names: Sequence[str]) -> str:
    each = foreseen[arm]
    parts = [seconds_text(micros / 1e6) for micros in (each.micros, each.exchange, each.codec)]
    return f"{names[arm]} take {parts[0]} ({parts[1]} and {parts[2]})"
