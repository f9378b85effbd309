"""The stages of a schedule, or of "auto": runs every step in the stage that is active at it.

It takes the gradients and the plans of all stages, commits the state, and returns the aggregates.
Without a schedule there is one stage.  Eager steps choose the stage in Python.  A traced step holds
all stages behind one switch over the step's number, so that a new stage needs no new trace.  The
number is the same on all workers, so all enter the same stage and its collectives may run inside
the switch.  With "auto" the switch is over the number of the arm that choice/tuner.py wants, and
the step holds only those arms that are worth a trial.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from grace_tf.aggregation.choice.tuner import Tuner
from grace_tf.aggregation.measure import alarms, residuals
from grace_tf.aggregation.measure.probe import Probe
from grace_tf.aggregation.state.slots import PlanSlots, variables_of
from grace_tf.aggregation.state.state import State
from grace_tf.core.auto import Auto
from grace_tf.line.exchange import exchange
from grace_tf.line.plan import Plan
from grace_tf.line.settings import Settings
from grace_tf.line.sparse_gradients import Aggregates, alike, arranged
from grace_tf.transports.base import CollectiveRecord, Transport
from grace_tf.transports.lifeline import lifeline
from grace_tf.transports.tf_distribute import ReplicaContext, in_every_replica

_LOG = logging.getLogger("grace_tf")


@dataclasses.dataclass(frozen=True)
class StagePlans:
    """The stages of a step: first steps and settings, plans and leaves; one without a schedule.

    `held`: the numbers of the stages that the step holds, in order; only these have leaves.
    """

    settings: Sequence[tuple[int, Settings]]
    plans: Sequence[Plan]
    slots: Mapping[int, PlanSlots]

    @property
    def held(self) -> Sequence[int]:
        return tuple(self.slots)


class Stages:
    """Runs the steps of one Aggregator, and knows which stage ran last.

    Args:
      state: what the stages read and write; it counts the steps unless there is a `clock`.
      choice: the stages among which a training chooses; None where steps determine the stage.

    Attributes:
      tuner: chooses; None where steps do.
      probe: measures steps; None where nothing is measured.
    """

    def __init__(self, state: State, choice: Auto | None = None) -> None:
        self._state = state
        self.tuner = None if choice is None else Tuner(choice)
        self.probe = None if choice is None else Probe(0, exact=False)
        self.clock: Callable[[], tf.Tensor] | None = None
        self._handed: dict[int, list[CollectiveRecord]] = {}
        self._last: tf.Variable | None = None  # the number of the stage, -1 before the first step

    @property
    def handed(self) -> list[CollectiveRecord]:
        """The collectives of the stage that the last step used.

        Before the first step it returns the collectives of the first stage that was traced.
        """
        first = next(iter(self._handed.values()), [])
        return list(self._handed.get(self.number, first))

    @property
    def number(self) -> int:
        """The number of the stage that ran last; 0 before the first step and without a schedule."""
        if self._last is None:
            return 0
        with tf.init_scope():
            return max(0, int(self._last.read_value()))

    def dense(self, plans: Sequence[Plan], flagged: bool) -> bool:
        """Whether no stage compresses anything; then `handed` lists the gradients."""
        dense = all(plan.dense for plan in plans)
        if dense:
            self._handed = {0: plans[0].handed_dense(flagged)}
        return dense

    def place(
        self,
        settings: Settings,
        plans: Sequence[Plan],
        between: Callable[[], Transport] | None = None,
    ) -> StagePlans:
        """Makes the leaves that the stages with these plans need, of which the step holds some.

        `between`: returns what carries eagerly between the processes; None where nothing does.
        """
        held = range(len(plans))
        if self.tuner is not None:
            self.tuner.agreement.name(f"{plans[0].digest}/{plans[0].first_key}")
            self.tuner.largest = lambda arm: alarms.limits_of(plans[arm]).residual
            held = self.tuner.arms(plans, between, self._state)
        slots = {}
        for number in held:
            plan = plans[number]
            groups = [*plan.groups, *plan.by_rows]
            slots[number] = self._state.slots_for(groups, plan.seed, settings.apart)
        return StagePlans(settings.stages, plans, slots)

    def run(
        self,
        stage_plans: StagePlans,
        transport: Transport,
        grads: Sequence[list[tf.Tensor]],
        summed: bool,
        first: int = 0,
    ) -> Aggregates:
        """One step of the workers at positions `first` … of this process."""
        return self._choose(
            stage_plans,
            lambda *which: self._step(stage_plans, *which, transport, grads, summed, first),
        )

    def run_inside(
        self,
        strategy: tf.distribute.Strategy,
        stage_plans: StagePlans,
        per_replica: Sequence[list[tf.Tensor]],
        summed: bool,
    ) -> Aggregates:
        """One step of all replicas of this process; each communicates by itself."""

        def run(*which) -> Aggregates:
            def step(context, mine):
                transport = ReplicaContext(context)
                position = self._state.workers.index(transport.workers[0])
                return self._step(stage_plans, *which, transport, [mine], summed, position)[0]

            return in_every_replica(strategy, step, per_replica)

        return self._choose(stage_plans, run)

    def _step(
        self,
        stage_plans: StagePlans,
        number: int,
        wanted: tf.Tensor | None,
        transport: Transport,
        grads,
        summed: bool,
        first: int,
    ) -> Aggregates:
        """One step in one stage; `wanted`: whether "auto" wants to know of it."""
        plan, slots, shares = stage_plans.plans[number], stage_plans.slots[number], []
        for i, mine in enumerate(grads):
            with transport.device(i):
                shares.append(self._state.share(first + i, slots, arranged(plan, mine)))
        looking = self.probe and self.probe.look(plan, number, transport, summed, first, wanted)
        if looking:
            shares = looking.at_gradients(shares)
        with transport.recorded() as handed:
            results = exchange(plan, shares, transport, summed, looking and looking.crossings)
        self._handed[number] = handed
        committed = []
        for i, (share, result) in enumerate(zip(shares, results)):
            with transport.device(i):
                committed.append(list(self._state.commit(first + i, slots, share, result)))
        if looking:
            looking.at_aggregates(
                *(results[0], committed[0], lambda: residuals.square(self._state, plan)),
                None if wanted is None else self._state.sample,
            )
        return alike(stage_plans.plans, committed)

    def _choose(
        self, stage_plans: StagePlans, run: Callable[[int, tf.Tensor | None], Aggregates]
    ) -> Aggregates:
        """Runs one step in the active stage of the schedule."""
        lifeline.count_by(self._state.counter)
        stages = stage_plans.settings
        if len(stages) == 1:
            self._last = None
            return run(0, None)
        step = tf.cast((self.clock or self._state.counter.read_value)(), tf.int64)
        if self.tuner is not None:
            number, measured = self.tuner.number(self._state)
        else:
            measured = None
            firsts = tf.constant([first for first, _ in stages[1:]], tf.int64)
            number = tf.reduce_sum(tf.cast(step >= firsts, tf.int32))

        def stage(i: int) -> Aggregates:
            judged = self.tuner is not None and self.tuner.judges(i)
            return run(i, measured if judged else None)

        held = stage_plans.held
        if tf.executing_eagerly() or len(held) == 1:
            results = stage(held[0] if len(held) == 1 else int(number))
        else:
            results = _switch(number, stage, held)
        self._begin(stages, number, step)
        return results

    def _begin(self, stages, number: tf.Tensor, step: tf.Tensor) -> None:
        """Stores the number of the running stage, and logs it where it has changed."""
        compiled = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
        if self._last is None:
            # XLA reads variables of its own device alone. TensorFlow keeps those of int32 in the
            # host's memory.
            device = self._state.devices[0] if compiled else "CPU:0"
            (self._last,) = variables_of("stage", np.int64(-1), [0], [device])
        active = tf.cast(number, tf.int64)

        def tell(number: np.ndarray, step: np.ndarray) -> np.ndarray:
            self._tell(stages, int(number), int(step))
            return np.bool_(True)

        def begin() -> tf.Tensor:
            self._last.assign(active)
            told = 0 in self._state.workers and self.tuner is None  # which tells of its choice
            if told and not compiled:  # XLA calls no Python
                tf.numpy_function(tell, [number, step], tf.bool)
            return tf.constant(True)

        tf.cond(tf.not_equal(self._last, active), begin, lambda: tf.constant(False))

    def _tell(self, stages: Sequence[tuple[int, Settings]], number: int, step: int) -> None:
        routes = stages[number][1].routes
        what = ", ".join(f"{c}" if len(routes) == 1 else f"{p}: {c}" for p, c, _ in routes)
        _LOG.info(
            "Step %d: stage %d of %d of the schedule begins, %s, %d bytes a step and worker.",
            *(step, number + 1, len(stages), what),
            sum(handed.nbytes for handed in self._handed.get(number, ())),
        )


def _switch(number: tf.Tensor, run: Callable[[int], Aggregates], held: Sequence[int]) -> Aggregates:
    """Runs the stage of this number, one of those that the step holds."""
    traced = []

    def stage(i: int) -> list[tf.Tensor]:
        traced.append(run(i))
        return tf.nest.flatten(traced[-1], expand_composites=True)

    place = tf.reduce_sum(tf.cast(tf.constant(held[:-1], tf.int32) < number, tf.int32))
    flat = tf.switch_case(place, [functools.partial(stage, i) for i in held])
    return tf.nest.pack_sequence_as(traced[0], tf.nest.flatten(flat), expand_composites=True)
