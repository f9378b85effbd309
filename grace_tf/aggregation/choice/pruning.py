"""Selects the methods of "auto" that a training tries, by predicted times.

The predicted times of exchange and codec come in, the same on all workers.  The arms that a step
contains go out, and a sentence with the reason.  Nothing depends on clocks or on the number of the
worker, so all workers select the same arms.

The predicted step has an exchange and codecs, but no backward pass.  In a training the backward
pass hides a part of the exchange, and never reduces the work of the codecs.  So a method that gains
less than `WORTH` here gains even less in a training.  A method that gains `WORTH` is tried, and
timing decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from grace_tf.advice.network import Network
from grace_tf.advice.timeline import Bucket, Compute, step_time
from grace_tf.advice.verdict import seconds_text

WORTH = 5  # percent that a method must be faster than the best baseline
MOST = 2  # methods that are tried beside the baselines
BEHIND = 1.25  # times the best method: such a method is not tried
TRACING = 10_000  # microseconds that tracing takes, for each variable and method
PAYS = 20  # times that must be saved in the rest of the training
# Measuring the network takes half a second, and tracing the step again takes some seconds.  A
# training does both only if they can save more than `SAVED` seconds, or if its remaining steps take
# more than `LONG` seconds.
SAVED, LONG = 5.0, 200.0


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
    foreseen: Mapping[int, Foreseen],
    baselines: int,
    variables: int,
    steps: float | None,
    beat: int | None = None,
) -> tuple[int, ...]:
    """The numbers of the arms that are worth a trial: the baselines, and at most `MOST` methods.

    Args:
      foreseen: by arm, of all arms that may be tried.
      baselines: how many of the first arms are worth it in any case.
      variables: of the model.
      steps: that are left; None where nobody knows.
      beat: a method that is known to be faster than the baselines; others must be so beside it.
    """
    known = [*range(baselines)] if beat is None else [beat]
    best = min(foreseen[arm].micros for arm in known)
    pays = PAYS * TRACING * variables
    worth = [
        (each.micros, arm)
        for arm, each in foreseen.items()
        if arm >= baselines
        and 100 * each.micros <= (100 - WORTH) * best
        and (steps is None or (best - each.micros) * steps > pays)
    ]
    least = min(worth, default=(0, 0))[0]
    tried = [arm for micros, arm in sorted(worth)[:MOST] if micros <= BEHIND * least]
    return (*range(baselines), *sorted(tried))


def measuring_pays(none: float, half: float, scout: float, fewer: bool, steps: float) -> bool:
    """Whether to measure the network in the rest of a training.

    The time that half of the bytes save is about the most that the other half can save, since a
    step waits for that part of an exchange which the backward pass does not hide.  Where the scout
    saves time, it has saved two thirds of that, or more.  In a long training the measurement
    costs nothing that counts.

    Args:
      none, half: seconds of a step that sends all bytes, and of one that sends half of them.
      scout: seconds of a step that sends an eighth or a sixth; infinite if unknown.
      fewer: whether there are methods that send even less.
      steps: that are left.
    """
    gain = none - half
    if scout < half:
        gain = (half - scout) / 3 if fewer else 0.0
    return steps * gain > SAVED or steps * min(half, scout) > LONG


def said(
    foreseen: Mapping[int, Foreseen], arms: Sequence[int], baselines: int, names: Sequence[str]
) -> str:
    """The decision in one sentence, with the numbers of the best method and the best baseline."""
    first = min(range(baselines), key=lambda arm: (foreseen[arm].micros, arm))
    methods = (arm for arm in foreseen if arm >= baselines)
    best = min(methods, key=lambda arm: (foreseen[arm].micros, arm))
    rest = (
        f"exchange and codec of {_part(foreseen, best, names)}, of {_part(foreseen, first, names)}"
    )
    tried = [names[arm] for arm in arms if arm >= baselines]
    if tried:
        return f"auto tries {' and '.join(tried)}, since {rest}."
    return f"auto tries no method beside {' and '.join(names[:baselines])}, since {rest}."


def _part(foreseen: Mapping[int, Foreseen], arm: int, names: Sequence[str]) -> str:
    each = foreseen[arm]
    parts = [seconds_text(micros / 1e6) for micros in (each.micros, each.exchange, each.codec)]
    return f"{names[arm]} take {parts[0]} ({parts[1]} and {parts[2]})"
