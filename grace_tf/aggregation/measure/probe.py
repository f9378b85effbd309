"""Measures how far the aggregates of a step are from the mean of the gradients.

The mean is a sum over all workers, so a step must measure it while it runs.  A traced step holds
the measuring behind conditions on the number of committed steps, which is the same on all workers:
all enter them alike, and a step that is not measured does nothing there.  What is needed of each
bucket is copied before its gradients are compressed, so that the operations that write into the
memory of a gradient still can.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.aggregation.measure import moments, pieces
from grace_tf.aggregation.state.conditions import cond
from grace_tf.aggregation.state.slots import variables_of
from grace_tf.line.exchange import Share
from grace_tf.line.plan import Plan
from grace_tf.transports.base import Transport

_HOST = "CPU:0"

# What is kept of a bucket's tensors: the pieces that are compared, and their squared norm.
_Taken = tuple[tf.Tensor, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one measured step has found; squared norms over all dense gradients of the step.

    Attributes:
      step: the number of steps committed before it.
      kind: what step it was, an index of `Probe.kinds`.
      error: ‖a − m‖², a the aggregates, as a mean, and m the mean of all workers' gradients.
      mean: ‖m‖².
      aggregate: ‖a‖².
      product: ⟨a, m⟩.
      own: ‖g‖², g the gradient of the first worker of this process, as its memory sees it.
      residual: ‖e‖², e what this worker has not sent after the step; NaN without a residual.
    """

    step: int
    kind: int
    error: float
    mean: float
    aggregate: float
    product: float
    own: float
    residual: float


class Probe:
    """Measures every `every`-th committed step of one Aggregator, and keeps the last sample.

    Its variables are made when they are needed, since TensorFlow may not have started before.

    Args:
      every: at least 1; 0 for only those steps that "auto" wants to know of, without times.
      exact: between processes, whether whole gradients are summed, instead of sketches.

    Attributes: kinds, (stage of the schedule, plan) of each kind of step that it has looked at.
    """

    def __init__(self, every: int, exact: bool) -> None:
        self.every, self.exact = every, exact
        self.kinds: list[tuple[int, Plan]] = []
        # By kind of step: the moments of its last trace, and what a clock has shown at them.
        self._clocks: dict[int, tuple[moments.Moments, tf.Variable]] = {}

    @functools.cached_property
    def numbers(self) -> tf.Variable:
        """The numbers of the last sample, in the order of the fields of `Sample`."""
        nothing = np.full([len(dataclasses.fields(Sample))], np.nan)
        return variables_of("measured", nothing, [0], [_HOST])[0]

    @functools.cached_property
    def _counts(self) -> tf.Variable:
        return variables_of("steps", np.zeros([2], np.int64), [0], [_HOST])[0]

    @property
    def text(self) -> str:
        """What must be the same on all workers."""
        return f"every {self.every}, exact {self.exact}"

    def look(
        self,
        plan: Plan,
        stage: int,
        transport: Transport,
        summed: bool,
        first: int,
        wanted: tf.Tensor | None = None,
    ) -> Looking | None:
        """Begins to look at a step of this stage; None where it has no dense float gradients.

        `wanted`: whether "auto" wants to know of the step, whose number then does not matter.
        """
        if not self.every and wanted is None:
            return None
        if (stage, plan) not in self.kinds:
            self.kinds.append((stage, plan))
        kind = self.kinds.index((stage, plan))
        looking = Looking(self, plan, kind, transport, summed, first, wanted)
        return looking if looking.buckets else None

    @property
    def sample(self) -> Sample | None:
        """The last sample; None before the first."""
        if not self.kinds:
            return None
        step, kind, *numbers = self.numbers.numpy().tolist()
        return None if np.isnan(step) else Sample(int(step), int(kind), *numbers)

    @property
    def steps(self) -> tuple[int, int]:
        """The steps that were taken under this probe, and how many of them were finite."""
        if not self.kinds:
            return 0, 0
        taken, finite = self._counts.numpy().tolist()
        return taken, finite

    def times(self, kind: int) -> moments.Times | None:
        """The times of the last measured step of this kind; None where no clock was read."""
        if kind not in self._clocks:
            return None
        what, clock = self._clocks[kind]
        seconds = clock.numpy()
        return None if np.isnan(seconds).any() else what.times(seconds)

    def count(self, finite: tf.Tensor, taken: tf.Tensor | bool = True) -> None:
        """Counts a step, where `taken` is true; a probe for "auto" alone does not count."""
        if not self.every:
            return
        with tf.device(_HOST):
            self._counts.assign_add([tf.cast(each, tf.int64) for each in (taken, finite)])

    def clock(self, kind: int, what: moments.Moments, count: int) -> tf.Variable:
        """The variable for what a clock shows at these moments of a kind of step."""
        known, variable = self._clocks.get(kind, (None, None))
        if known != what:
            (variable,) = variables_of("clock", np.full([count], np.nan), [0], [_HOST])
            self._clocks[kind] = what, variable
        return variable


class Looking:
    """One step that a probe looks at, on the workers of this process.

    Attributes:
      crossings: reads the clock at the collectives; None in eager steps, which have no clock.
      buckets: (number, positions of the float gradients) of each bucket that has any.
    """

    def __init__(
        self,
        probe: Probe,
        plan: Plan,
        kind: int,
        transport: Transport,
        summed: bool,
        first: int,
        wanted: tf.Tensor | None,
    ) -> None:
        self._wanted = wanted
        self._probe, self._plan, self._kind = probe, plan, kind
        self._transport, self._summed, self._first = transport, summed, first
        clocks = probe.every and not tf.executing_eagerly()
        self.crossings = moments.Crossings() if clocks else None
        self.buckets, self._elements = [], []
        for bucket, groups in enumerate(plan.buckets):
            lanes = [lane for group in groups for lane in group.lanes]
            lanes = [lane for lane in lanes if lane.spec.dtype.is_floating]
            if lanes:
                self.buckets.append((bucket, [lane.position for lane in lanes]))
                self._elements.append(sum(lane.spec.shape.num_elements() for lane in lanes))
        here = len(transport.workers) == transport.size and transport.inside is None
        self._within = here and first == 0
        self._count = None if self._within else pieces.length(plan, probe.exact)

    def at_gradients(self, shares: Sequence[Share]) -> list[Share]:
        """Keeps the gradients or their sketches, with their squared norms, for `at_aggregates`.

        Returns: the shares, with the same gradients.
        """
        self._step = tf.cast(shares[0].step, tf.int64)
        self._measured = self._is_measured()
        self._mine: list[list[_Taken]] = []  # by worker and bucket
        self._ready: list[tf.Tensor] = []  # by bucket, when the gradients of worker 0 were ready
        out = []
        for i, share in enumerate(shares):
            with self._transport.device(i):
                grads, mine = list(share.grads), []
                for number, positions in self.buckets:
                    xs = [grads[position] for position in positions]
                    mine.append(self._taken(number, xs))
                    for position, x in zip(positions, self._going_on(xs, mine[-1], clock=i == 0)):
                        grads[position] = x
                self._mine.append(mine)
                out.append(dataclasses.replace(share, grads=grads))
        return out

    def _is_measured(self) -> tf.Tensor:
        if not self._probe.every:
            return self._wanted
        counted = tf.equal(self._step % self._probe.every, 0)
        return counted if self._wanted is None else tf.logical_or(counted, self._wanted)

    def _going_on(self, xs: Sequence[tf.Tensor], taken: _Taken, clock: bool) -> Sequence[tf.Tensor]:
        """The gradients of a bucket, which in graphs wait until nothing else holds them."""
        if tf.executing_eagerly():
            return xs
        waits = list(taken)
        if clock and self._probe.every and moments.readable(xs):
            waits.append(moments.now([*xs, *taken]))
            self._ready.append(waits[-1])
        with tf.control_dependencies(waits):
            return tf.identity_n(xs)  # one node for any number of gradients

    def at_aggregates(
        self,
        result: Share,
        committed: Sequence[Any],
        left: Callable[[], tf.Tensor],
        kept: tf.Variable | None = None,
    ) -> None:
        """Compares the aggregates of the first worker of this process with the mean.

        Args:
          result: what the exchange gave this worker.
          committed: its aggregates.
          left: returns ‖residual‖² after the step.
          kept: where (step, vNMSE, residual by gradient) go for "auto".
        """
        with self._transport.device(0):
            totals = [
                self._taken(number, [committed[position] for position in positions])
                for number, positions in self.buckets
            ]
            self._when(self._measured, lambda: self._measure(totals, result.finite, left, kept))
            if self._first == 0:
                self._probe.count(result.finite)
                self._read_clock(result)

    def _taken(self, bucket: int, xs: Sequence[tf.Tensor]) -> _Taken:
        """What is kept of a bucket's tensors, and in steps that are not measured nothing."""
        return pieces.take(self._measured, xs, self._count, bucket, self._plan.seed, self._step)

    def _measure(self, totals: Sequence[_Taken], finite: tf.Tensor, left, kept) -> None:
        transport, plan = self._transport, self._plan
        mine = [self._whole(each) for each in self._mine]
        square = tf.add_n([square for _, square in self._mine[0]])
        if transport.inside is not None and transport.inside.size > 1:
            mine = transport.inside.sum(mine, plan.measuring_key(inside=True))
            square = _product(mine[0], mine[0])
        # As a mean, whether the caller wants a sum or not; a sum is a mean of multiplied gradients.
        gradients = 1 if self._summed else transport.gradients
        mean = self._summed_over_workers(mine) / gradients
        own = square * (transport.size / gradients) ** 2
        aggregate = self._whole(totals)
        error = aggregate - mean
        if self._first != 0:
            return
        wrong, right, waiting = _product(error, error), _product(mean, mean), left()
        numbers = [
            *(self._step, self._kind, wrong, right),
            *(_product(aggregate, aggregate), _product(aggregate, mean), own, waiting),
        ]
        _keep(self._probe.numbers, numbers, finite)
        if kept is not None:
            # If all gradients are zero, the relative error is not defined: it is NaN.
            error = tf.where(right > 0, wrong / right, np.nan)
            _keep(kept, [self._step, error, tf.sqrt(waiting / own)], finite)

    def _whole(self, taken: Sequence[_Taken]) -> tf.Tensor:
        """The pieces of all buckets; one sketch for all of them."""
        lengths = self._elements if self._count is None else [self._count] * len(taken)
        found = [tf.ensure_shape(buffer, [n]) for (buffer, _), n in zip(taken, lengths)]
        return tf.concat(found, 0) if self._count is None else tf.add_n(found)

    def _summed_over_workers(self, mine: Sequence[tf.Tensor]) -> tf.Tensor:
        if self._within:
            return tf.add_n(mine)
        transport, key = self._transport, self._plan.measuring_key()
        if tf.executing_eagerly() or transport.sums_in_conditions:
            return transport.sum(mine, key)[0]
        return tf.reduce_sum(transport.gather(mine, key)[0], 0)

    def _read_clock(self, result: Share) -> None:
        """Reads the clock in the step behind a measured one, whose own work takes time too."""
        if len(self._ready) < len(self._plan.buckets):  # without a clock, or without floats
            return
        done = [[result.grads[position] for position in each] for _, each in self.buckets]
        what, seconds = moments.read(self._ready, self.crossings, done)
        kept = self._probe.clock(self._kind, what, seconds.shape[0])
        behind = tf.equal(self._step % self._probe.every, 1 % self._probe.every)
        self._when(behind, lambda: kept.assign(seconds, read_value=False))

    def _when(self, measured: tf.Tensor, action: Callable[[], Any]) -> None:
        """Runs the action where `measured` is true."""
        if tf.executing_eagerly():
            if measured:
                action()
            return

        def yes() -> tf.Tensor:
            action()
            return tf.constant(True)

        # TensorFlow's own condition between processes: its branch may hold a collective.
        choose = cond if self._within else tf.cond
        choose(measured, yes, lambda: tf.constant(False))


def _keep(variable: tf.Variable, numbers: Sequence[Any], finite: tf.Tensor) -> None:
    """Keeps the numbers of a finite step."""
    with tf.device(_HOST):
        taken = tf.stack([tf.cast(x, tf.float64) for x in numbers])
        variable.assign(tf.where(finite, taken, variable.read_value()))


def _product(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """⟨x, y⟩, float64."""
    return tf.cast(tf.reduce_sum(x * y), tf.float64)
