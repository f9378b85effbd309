"""`Foresight`: selects the arms of "auto" that a traced step contains.

It measures the exchanges between the workers, and then the codecs on this device.  The training
waits meanwhile, so after a part of a second of each kind it repeats fewer measurements.  The
workers agree on the measured values, so all of them trace the same arms.

A step of `fit` can be traced again, so there the measurement is put off: the first trace contains
the baselines and one method, and their times show whether a measurement can pay.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.advice.network import Network
from grace_tf.aggregation.choice import pruning
from grace_tf.aggregation.choice.agreement import Agreement
from grace_tf.aggregation.choice.pruning import Foreseen
from grace_tf.aggregation.choice.trial import FEWEST
from grace_tf.aggregation.measure import link
from grace_tf.aggregation.measure.codec import EagerStep, lasting
from grace_tf.core.auto import Auto
from grace_tf.transports.base import Transport
from grace_tf.transports.lifeline import lifeline

_LOG = logging.getLogger("grace_tf")

SIZES = (4 << 10, 256 << 10, 4 << 20)  # bytes
REPEATS = 5
LINK, CODECS = 0.3, 0.2  # seconds


class Foresight:
    """The selection for one Aggregator.

    Args:
      choice: what to choose from.
      agreement: between all workers.

    Attributes:
      arms: the numbers of the selected arms, in ascending order; None before `begin`.
      put_off: whether nothing was measured yet, though the step can be traced again.
      sentence: the reason, as text for users; "" if nothing was measured.
      measured: how often the network was measured, the same on all workers.
    """

    def __init__(self, choice: Auto, agreement: Agreement) -> None:
        self._choice, self._agreement = choice, agreement
        self._plans: Sequence[Any] = ()
        self._between: Callable[[], Transport] | None = None
        self._two_hops = False
        self.arms: tuple[int, ...] | None = None
        self.put_off, self.sentence, self.measured = False, "", 0

    def of(self, plans: Sequence[Any], between: Callable[[], Transport] | None, size: int) -> None:
        """Sets what `measure` uses.

        Args:
          plans: of all arms, those of the step that was traced last.
          between: returns a transport between the workers; None if there is none.
          size: the number of workers that exchange payloads.
        """
        if between is not None or not self._plans:
            self._plans, self._between = plans, between
            first = self._choice.scouts[0]
            compressor = self._choice.stages[first].compressor
            chosen = (group for group in plans[first].groups if group.compressor == compressor)
            self._two_hops = any(group.takes_two_hops(size) for group in chosen)

    @property
    def scout(self) -> int:
        """The number of the method that is timed first."""
        return self._choice.scout(self._two_hops)

    @property
    def all_arms(self) -> tuple[int, ...]:
        """The numbers of the arms to select from."""
        return self._choice.arms(self._two_hops)

    def begin(self, saved: int, planned: float, again: bool) -> None:
        """Selects the arms of a step that is traced for the first time.

        All workers must call it in the same step.

        Args:
          saved: of a restored training, bit i says whether it had arm i; 0 for a new training.
          planned: the number of steps of this call of `fit`; infinite where it is not known.
          again: whether the step can be traced again.
        """
        line, baselines = lifeline.current(), tuple(range(self._choice.BASELINES))
        if line is None or line.size == 1:
            self.arms = (0,)
            return
        if self._between is None:
            self.arms = self.all_arms
            return
        most, least, few, never = self._agreement.largest([saved, -saved, -planned, not again])
        had = tuple(arm for arm in arms_of(saved) if arm in self.all_arms)
        if saved and most == -least == bits_of(had):
            self.arms = had
        elif -few < FEWEST:
            self.arms = baselines
        elif never:
            self.measure(-few)
        else:
            self.arms = (*baselines, self.scout)
        known = {*baselines, self.scout}
        self.put_off = not never and known.issuperset(self.arms)

    def measure(
        self, steps: float | None = None, without: Sequence[int] = (), beat: int | None = None
    ) -> None:
        """Measures and selects the arms.  All workers must call it in the same step.

        The call may come while a step is traced.  Methods that are traced already are kept.

        Args:
          steps: that the training takes from now on; None if nobody knows.
          without: baselines that are far behind.  The step does not contain them, unless only
            baselines are worth a trial.
          beat: a traced method that is faster than the baselines; a new one must be faster still.
        """
        self.put_off, self.measured, before = False, self.measured + 1, self.arms or ()
        plans = {arm: self._plans[arm] for arm in self.all_arms}
        foreseen = foresee(plans, self._between(), self._agreement.largest)
        baselines, variables = self._choice.BASELINES, len(self._plans[0].paths)
        if foreseen is None:
            self.arms = self.all_arms[: baselines + pruning.MOST]
            return
        arms = {*pruning.decide(foreseen, baselines, variables, steps, beat)}
        arms.update(arm for arm in before if arm >= baselines)
        if len(arms) > baselines:
            arms.difference_update(without)
        self.arms = tuple(sorted(arms))
        names = [str(stage.compressor) for stage in self._choice.stages]
        self.sentence = pruning.said(foreseen, self.arms, baselines, names)
        if lifeline.current().rank == 0:
            _LOG.info("%s", self.sentence)


def bits_of(arms: Iterable[int]) -> int:
    """The number in which bit i says whether arm i is among them."""
    return sum(1 << arm for arm in arms)


def arms_of(bits: int) -> list[int]:
    """The arms of such a number, in ascending order."""
    return [arm for arm in range(bits.bit_length()) if bits >> arm & 1]


def foresee(
    plans: Mapping[int, Any],
    transport: Transport,
    agree: link.Agree,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, Foreseen] | None:
    """The prediction for each plan, by arm; None if a plan has only rows, and so no buckets."""
    if not all(plan.buckets for plan in plans.values()):
        return None
    with tf.init_scope():
        costs = link.costs(transport, agree, SIZES, REPEATS, LINK, clock=clock)
        began, least, parts = clock(), [], []
        for plan in plans.values():
            step = EagerStep(plan, transport.size)
            late = clock() - began > CODECS
            least.append(step.least(repeats=1 if late else 2))
            parts.append(step.shares())
    network = Network(transport.size, costs)
    return {
        arm: Foreseen.of(lasting(buckets, seconds), network)
        for arm, buckets, seconds in zip(plans, parts, agree(least))
    }
