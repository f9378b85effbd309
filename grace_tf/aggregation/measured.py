"""The metrics of an Aggregator: what a step sends, and what its last measured step has shown."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from grace_tf.aggregation.account import sizes_of
from grace_tf.aggregation.measure import alarms, residuals
from grace_tf.aggregation.measure.alarms import Limits
from grace_tf.aggregation.measure.probe import Sample
from grace_tf.aggregation.step import Reduction
from grace_tf.line.plan import LaneGroup, Plan


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The fields of `Aggregator.metrics()`, and the limits beyond which an alarm is due.

    Attributes:
      bytes: what a worker hands to collectives in a step.
      sent: what a worker sends in a step; 0 alone.
      ratio: how many times as many bytes an uncompressed step sends.
      step: the number of committed steps before the measured one.
      vnmse: ‖mean of decoded − mean of gradients‖² / ‖mean of gradients‖².
      residual: ‖residual‖ / ‖gradient‖ of this process's first worker.
      skipped: the share of steps that were not finite.
      encoding, exchange, decoding, exposed: seconds.
    """

    bytes: int
    sent: float
    ratio: float | None
    step: int | None = None
    vnmse: float | None = None
    residual: float | None = None
    skipped: float | None = None
    encoding: float | None = None
    exchange: float | None = None
    decoding: float | None = None
    exposed: float | None = None


def metrics_of(reduction: Reduction) -> Metrics:
    """The metrics of an Aggregator now; None where something was not measured."""
    with tf.init_scope():
        sizes, probe = sizes_of(reduction), reduction.probe
        found = Metrics(bytes=sizes.bytes, sent=sizes.sent, ratio=sizes.ratio)
        if probe is None:
            return found
        taken, finite = probe.steps
        if taken:
            found = dataclasses.replace(found, skipped=1 - finite / taken)
        sampled = _sampled(reduction)
        if sampled is None:
            # A step that compresses nothing is not looked at: TensorFlow's own sum is the mean.
            dense = sizes.plans and all(plan.dense for plan in sizes.plans) and not taken
            return dataclasses.replace(found, vnmse=0.0 if dense else None)
        sample, plan = sampled
        times = probe.times(sample.kind)
        return dataclasses.replace(
            found,
            step=sample.step,
            vnmse=vnmse(sample, plan),
            residual=_residual(sample),
            **({} if times is None else dataclasses.asdict(times)),
        )


def largest(metrics: Iterable[Metrics], name: str) -> Any:
    """The largest value that several Aggregators have of this field; None where none has one."""
    return max((v for each in metrics if (v := getattr(each, name)) is not None), default=None)


def _sampled(reduction: Reduction) -> tuple[Sample, Plan] | None:
    """The last sample and its plan; None where another stage of a schedule has run since."""
    sample = reduction.probe and reduction.probe.sample
    if sample is None:
        return None
    stage, plan = reduction.probe.kinds[sample.kind]
    return (sample, plan) if stage == reduction.stage else None


def vnmse(sample: Sample, plan: Plan) -> float | None:
    """The error of the aggregates in a measured step; None where all gradients were zero.

    Where the aggregates have a scale of their own (a consensus, or a memory that gives a momentum)
    it is that at the best scale, 1 − ⟨a, m⟩² / (‖a‖² ‖m‖²).
    """
    if not sample.mean:
        return None
    if not any(_has_own_scale(group) for group in plan.groups):
        return sample.error / sample.mean
    if not sample.aggregate:
        return 1.0
    return max(0.0, 1 - sample.product**2 / (sample.aggregate * sample.mean))


def _has_own_scale(group: LaneGroup) -> bool:
    return group.compressor.aggregates != "sum" or group.memory.has_momentum


def _residual(sample: Sample) -> float | None:
    """‖residual‖ / ‖gradient‖; None without a residual, or where all gradients were zero."""
    if math.isnan(sample.residual) or not sample.own:
        return None
    return math.sqrt(sample.residual / sample.own)


def shown_residuals(reduction: Reduction) -> Iterator[tuple[str, tf.Tensor]]:
    """(variable's name, residual) for the gradients of the last measured step."""
    sampled = _sampled(reduction)
    return iter(()) if sampled is None else residuals.residuals(reduction.state, sampled[1])


def limits_of(reduction: Reduction) -> Limits:
    """The largest values that theory allows for the methods of the last measured step.

    See `Limits`.
    """
    sampled = _sampled(reduction)
    return Limits(None, None) if sampled is None else alarms.limits_of(sampled[1])
