"""`Tuner`: times the steps of a training and says which arm the next step takes.

Each step calls it at its beginning.  The time between two calls is the time of a step, with all
that the user waits for.  Steps are timed in blocks of one arm.  After a list of blocks the workers
send each other their times over the lifeline, and all of them use the times of the slowest worker.

The first step of a block is not timed.  In the first block of an arm in a list, this step measures
the error of the arm's method.  The next step gives the values of all workers to the guard.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from grace_tf.advice.quality import MOST_ERROR
from grace_tf.aggregation.choice import pruning, rest
from grace_tf.aggregation.choice.agreement import Agreement
from grace_tf.aggregation.choice.foresight import Foresight, arms_of, bits_of
from grace_tf.aggregation.choice.guard import Guard
from grace_tf.aggregation.choice.trial import FAR, FEWEST, Block, Decision, Trial
from grace_tf.aggregation.state.state import State
from grace_tf.core.auto import Auto
from grace_tf.transports.base import Transport
from grace_tf.transports.lifeline import lifeline

_LOG = logging.getLogger("grace_tf")
_MOST_MEASURED = 3  # how often a training measures the network


class Tuner:
    """The choice of one Aggregator.

    Args:
      choice: what to choose from.
      clock: returns seconds that never decrease, as `time.perf_counter` does.

    Attributes:
      agreement: between all workers.
      largest: returns the largest residual, in gradients, that the theory of an arm allows.
      outdated: whether the network should be measured before the next step: see `renew`.  Equal
        on all workers in each step.
    """

    def __init__(self, choice: Auto, clock: Callable[[], float] = time.perf_counter) -> None:
        self._choice, self._clock = choice, clock
        self._trial = Trial(len(choice.stages), choice.BASELINES)
        most = [_most_error(choice, arm) for arm in range(len(choice.stages))]
        self._guard = Guard(most, choice.quality)
        self._decided: Decision | None = None  # the last decision that was told
        self.agreement = Agreement()
        self.largest: Callable[[int], float | None] = lambda arm: None
        self.outdated = False
        self._foresight = Foresight(choice, self.agreement)
        self._prune()
        self._lock = threading.Lock()
        self._blocks: list[Block] = []
        self._times: list[list[float]] = []  # of the steps of each block so far
        self._position = 0  # steps begun in `_blocks`
        self._skipped = 0  # of these, steps that a process before this one has taken
        self._taken = 0  # steps in this process
        self._last: float | None = None
        self._returned: tuple[int, ...] | None = None

    def judges(self, arm: int) -> bool:
        """Whether steps of this arm are measured."""
        return arm >= self._choice.BASELINES

    def arms(
        self, plans: Sequence[Any], between: Callable[[], Transport] | None, state: State
    ) -> Sequence[int]:
        """The numbers of the arms that a newly traced step contains, in ascending order.

        The first call selects them, together with all other workers: see foresight.py.  A restored
        training has the arms with which it was saved.

        Args:
          plans: of all arms.
          between: returns a transport between the processes for eager collectives; None if there
            is none.
        """
        self._foresight.of(plans, between, state.size)
        if self._foresight.arms is None:
            with tf.init_scope():
                arm, *_, saved = state.choices[0].numpy().tolist()
            call = rest.call_of(self)
            self._foresight.begin(saved if arm >= 0 else 0, call.steps, call.again)
            self._prune()
        return self._traced

    def renew(self) -> bool:
        """Measures the network, and selects again the arms that a step contains.

        All workers must call it, between the same two steps.

        Returns: whether the step must be traced again, because it lacks one of these arms.
        """
        with self._lock:
            before, self.outdated = self._traced, False
            if self._foresight.put_off:
                none, half = self._baselines()
                far = range(1 if none > FAR * half else 0)
                beat = self._foresight.scout if self._scouted() < half else None
                self._foresight.measure(self._rest_of_training().at_most, far, beat)
            else:
                self._foresight.measure()
            if not {*self._traced} - {*before}:
                self._foresight.arms = before
                self._follow()
                return False
            self._prune()
            self._go_on(self._trial.widened())
            self._last = None  # the next step begins when the step is traced
            return True

    def _baselines(self) -> tuple[float, float]:
        """The seconds of a step without compression, and with half of the bytes.

        A restored training may know only one of them, and takes the other one to be alike.
        """
        none, half = map(self._trial.middle, range(self._choice.BASELINES))
        known = min(none, half)
        return (known if math.isinf(none) else none), (known if math.isinf(half) else half)

    def _prune(self) -> None:
        self._trial.pruned = set(range(len(self._choice.stages))) - set(self._traced)

    def number(self, state: State) -> tuple[tf.Tensor, tf.Tensor]:
        """(the arm of the step that begins, int32; whether this step is measured, bool).

        Stores the choice in the state.  Raises ValueError inside XLA.
        """
        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise ValueError(
                "auto reads a clock in every step, which a step that XLA compiles cannot: compile "
                'with jit_compile=False, or name a method, such as "eden".'
            )
        variables = state.choices
        number, measured, saved = tf.numpy_function(
            self._next,
            [each.read_value() for each in (variables[0], state.sample, state.counter)],
            [tf.int32, tf.bool, tf.int64],
        )
        number.set_shape([])
        measured.set_shape([])
        saved.set_shape(variables[0].shape)
        for variable in variables:
            variable.assign(saved, read_value=False)
        return number, measured

    @property
    def spec(self) -> str | None:
        """The chosen method; None while the arms are compared."""
        decision = self._trial.decision
        return None if decision is None else str(self._choice.stages[decision.arm].compressor)

    @property
    def reason(self) -> str:
        """The reason of the choice, as sentences for users."""
        decision = self._trial.decision
        if decision is None:
            return f"auto still compares methods.{self._besides()}"
        if decision.reason == "alone":
            return f"auto: {self.spec}, since nothing crosses a network in this process."
        if decision.reason == "few steps":
            return (
                f"auto: {self.spec}, since fewer than {FEWEST} steps are too few to time methods."
            )
        if not decision.seconds:
            return f"auto: {self.spec}, as saved.{self._besides()}"
        times = sorted((seconds, arm) for arm, seconds in decision.seconds.items())
        others = ", ".join(
            f"{self._choice.stages[arm].compressor} {_milliseconds(seconds)}"
            for seconds, arm in times
            if arm != decision.arm
        )
        mine = _milliseconds(decision.seconds[decision.arm])
        said = f'auto: {self.spec}, a step takes {mine} ({others}); name "{self.spec}" to pin it.'
        return said + self._besides()

    @property
    def short_reason(self) -> str:
        """A short form of `reason`, for the line of a variable in a table."""
        decision = self._trial.decision
        if decision is None:
            return "auto still compares methods"
        others = {arm: each for arm, each in decision.seconds.items() if arm != decision.arm}
        if not others:
            return f"auto: {decision.reason if decision.reason != 'measured' else 'as saved'}"
        rival = min(others, key=others.__getitem__)
        mine = _milliseconds(decision.seconds[decision.arm])
        name = self._choice.stages[rival].compressor
        return f"auto: a step takes {mine}, with {name} {_milliseconds(others[rival])}"

    def _besides(self) -> str:
        left = ", ".join(
            str(self._choice.stages[arm].compressor) for arm in sorted(self._trial.left)
        )
        said = f" Excluded for a large error or residual: {left}." if left else ""
        seen = self._foresight.sentence
        if self._foresight.put_off and self._trial.decision is not None and not self.outdated:
            seen = "auto tries no other method, since too little can be gained in what is left."
        return f"{said} {seen}".rstrip()

    def _next(
        self, saved: np.ndarray, sample: np.ndarray, committed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(the arm of the step that begins now, whether it is measured, the state to save).

        Args:
          saved: the state that the previous step returned, or a restored one.
          sample: of the last measured step: its number, its vNMSE, and its residual norm divided by
            its gradient norm.
          committed: the number of steps committed so far.
        """
        with self._lock:
            now = self._clock()
            if self._returned is None or tuple(map(int, saved)) != self._returned:
                self._begin([int(word) for word in saved])
            elif self._last is not None and self._trial.timing:
                self._times[self._block(self._position - 1)].append(now - self._last)
            if self._measures(self._position - 1):
                self._judge(sample, int(committed))
                now = self._clock()
            if self._position == sum(block.steps for block in self._blocks):
                self._end_of_blocks()
                now = self._clock()
            arm = self._blocks[self._block(self._position)].arm
            measured = self._measures(self._position)
            self._position, self._taken = self._position + 1, self._taken + 1
            self._last = now
            left, arms = map(bits_of, (self._trial.left, self._foresight.arms or ()))
            record = self._guard.saved(self._trial.watched)
            self._returned = (*self._trial.saved, self._position, left, *record, arms)
            return np.int32(arm), np.bool_(measured), np.array(self._returned, np.int64)

    def _begin(self, saved: Sequence[int]) -> None:
        """Starts a trial, or continues the one that `saved` describes."""
        arm, rival, watches, switches, position, left, *record, arms = saved
        self._trial.left = set(arms_of(left))
        line = lifeline.current()
        alone = line is None or line.size == 1
        if alone:
            blocks = self._trial.fixed(0, "alone")
        elif {*arms_of(arms)} <= {*self._foresight.all_arms} and {arm, rival} <= {*self._traced}:
            blocks = self._trial.resume(arm, rival, watches, switches)
        elif rest.fewest_planned(rest.call_of(self), self.agreement) < FEWEST:
            # A program that calls fit once for each epoch takes more steps than one call plans.
            blocks = self._trial.fixed(self._choice.BASELINES - 1, "few steps", FEWEST)
        else:
            blocks, position = self._trial.begin(), 0
        if self._trial.timing and position >= sum(block.steps for block in blocks):
            blocks, position = self._trial.after([math.nan] * len(blocks)), 0
        self._set(blocks)
        self._guard.resume(self._trial.watched, record)
        if self._trial.timing:
            self._position = self._skipped = position
        self._last, self._decided = None, self._trial.decision
        self._tell()

    @property
    def _traced(self) -> Sequence[int]:
        arms = self._foresight.arms
        return self._foresight.all_arms if arms is None else arms

    def _rest_of_training(self) -> rest.Rest:
        return rest.rest_of(rest.call_of(self), self._taken, self.agreement)

    def _end_of_blocks(self) -> None:
        blocks = self._trial.after(self.agreement.largest(self._seconds()))
        if self._foresight.put_off:
            left = self._rest_of_training()
            self.outdated = left.again and self._measuring_pays(left.about)
        elif self._trial.drifted and len(self._traced) < len(self._foresight.all_arms):
            more = self._foresight.measured < _MOST_MEASURED
            self.outdated = more and self._rest_of_training().again
        self._go_on(blocks)

    def _measuring_pays(self, steps: float) -> bool:
        none, half = self._baselines()
        fewer = self._foresight.scout != self._foresight.all_arms[-1]
        known = math.isfinite(half)
        return known and pruning.measuring_pays(none, half, self._scouted(), fewer, steps)

    def _scouted(self) -> float:
        """The seconds of a step with the method that is timed first; infinite if unknown."""
        scout = self._foresight.scout
        held = scout in self._traced and scout not in self._trial.left
        return self._trial.middle(scout) if held else math.inf

    def _go_on(self, blocks: list[Block]) -> None:
        self._set(blocks)
        if not (
            self.outdated and self._foresight.put_off
        ):  # else the next step may replace the decision
            self._follow()

    def _follow(self) -> None:
        """Tells of a new decision."""
        if self._trial.decision is not self._decided:
            self._decided = self._trial.decision
            self._guard.forget(but=self._trial.watched)
            self._tell()

    def _set(self, blocks: list[Block]) -> None:
        self._blocks, self._times = blocks, [[] for _ in blocks]
        self._position = self._skipped = 0

    def _block(self, position: int) -> int:
        """The number of the block that contains the step at this position."""
        for number, block in enumerate(self._blocks):
            if position < block.steps:
                return number
            position -= block.steps
        raise AssertionError("The position is behind the last block.")

    def _measures(self, position: int) -> bool:
        """Whether the step at this position is measured: it is the first one of its arm."""
        if position < 0 or not self._trial.timing:
            return False
        number = self._block(position)
        before, arm = self._blocks[:number], self._blocks[number].arm
        first = position == sum(block.steps for block in before)
        return first and self.judges(arm) and all(block.arm != arm for block in before)

    def _judge(self, sample: Sequence[float], committed: int) -> None:
        """Asks the guard whether the arm of the previous step, which was measured, stays in use.

        It waits for the measured values of all workers.  A step that was not finite has measured
        nothing.
        """
        arm = self._blocks[self._block(self._position - 1)].arm
        step, *found = (float(each) for each in sample)
        error, residual = self.agreement.largest(
            found if step == committed - 1 else [math.nan, math.nan]
        )
        why = self._guard.judge(arm, error, residual, self.largest(arm))
        if why is None:
            return
        self._trial.left.add(arm)
        if lifeline.current().rank == 0:
            method = self._choice.stages[arm].compressor
            _LOG.warning("At step %d auto leaves %s for good: %s.", committed - 1, method, why)
        self._go_on(self._trial.begin())

    def _seconds(self) -> list[float]:
        """By block, the median time of its steps, without the first; NaN if a step is missing."""
        whole = [len(times) == block.steps for times, block in zip(self._times, self._blocks)]
        if self._skipped:
            whole[0] = False
        return [
            statistics.median(times[1:]) if complete else math.nan
            for times, complete in zip(self._times, whole)
        ]

    def _tell(self) -> None:
        line = lifeline.current()
        if self._trial.decision is not None and (line is None or line.rank == 0):
            _LOG.info("%s", self.reason)


def _most_error(choice: Auto, arm: int) -> float | None:
    """The largest vNMSE that the chosen quality allows for this arm.

    None means no limit: baselines are always allowed, and a memory corrects the error later.
    """
    if arm < choice.BASELINES or choice.stages[arm].memory.remembers:
        return None
    return MOST_ERROR.get(choice.quality, max(MOST_ERROR.values()))


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
