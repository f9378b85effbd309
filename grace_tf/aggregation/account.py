"""What an Aggregator does with each variable, and what a step sends: known, or planned before it.

It reads the plans of the steps that were traced.  Before the first one it plans such a step for the
variables that have joined, without communicating and without making any state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.aggregation.step import Reduction
from grace_tf.core.specs import spec_of
from grace_tf.line.lanes import Lane
from grace_tf.line.plan import LaneGroup, Plan, make_plan
from grace_tf.line.reasons import reason
from grace_tf.line.rehearsal import rehearsed, without_flag
from grace_tf.line.settings import Settings
from grace_tf.transports.base import CollectiveRecord
from grace_tf.transports.world.current_workers import several


@dataclasses.dataclass(frozen=True)
class VariableAccount:
    """How the gradient of one variable travels.

    Attributes:
      variable: its path.
      shape: its shape.
      method: the spec of its compressor.
      memory: the spec of its memory.
      bytes: what a worker sends for it in a step, as a part of its group; None for rows, whose
        number differs from step to step.
      ratio: how many times as much it would send uncompressed; None with `bytes`.
      exchange: "sum", "gather", "two hops", …; for rows "rows" or "compressed rows"; "not
        compressed".
      why: the reason for method and exchange.
    """

    variable: str
    shape: tuple[int, ...]
    method: str
    memory: str
    bytes: float | None
    ratio: float | None
    exchange: str
    why: str


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a step sends.

    Attributes:
      workers: their number; with `hierarchical` that of hosts.
      plans: of the stage that ran last, the newest last; empty where no variable is known.
      planned: whether no step was traced yet.
      handed: what one worker hands to collectives in a step.
      uncompressed: the bytes of all gradients of a step.
    """

    workers: int
    plans: Sequence[Plan]
    planned: bool
    handed: Sequence[CollectiveRecord]
    uncompressed: int

    @property
    def bytes(self) -> int:
        """Bytes that a worker hands to collectives in a step."""
        return sum(record.nbytes for record in self.handed)

    @property
    def sent(self) -> float:
        """Bytes that a worker sends in a step: none alone."""
        return sum(record.sent(self.workers) for record in self.handed)

    @property
    def ratio(self) -> float | None:
        """How many times as many bytes an uncompressed step sends, of a worker alone hands over;
        None where nothing is sent."""
        cost = self.sent if self.workers > 1 else self.bytes
        return _dense(self.uncompressed, self.workers) / cost if cost else None


@dataclasses.dataclass(frozen=True)
class Account:
    """The steps of one Aggregator.

    Attributes:
      stage: (the stage of the schedule, or of "auto", that ran last, from 1 on, and their number).
      choice: the reason of "auto" for it; "" without "auto".
      sizes: what a step sends.
      variables: in the order of joining; empty where none is known.
    """

    stage: tuple[int, int]
    choice: str
    sizes: Sizes
    variables: Sequence[VariableAccount]


def account_of(reduction: Reduction) -> Account:
    """The account of an Aggregator, in the stage of its schedule that ran last."""
    stages, sizes = reduction.settings.stages, sizes_of(reduction)
    _, settings = stages[reduction.stage]
    found: dict[int, VariableAccount] = {}
    tuner = reduction._stages.tuner
    choice = "" if tuner is None else tuner.short_reason
    for plan in sizes.plans:
        found.update(_variables(settings, plan, sizes.workers, choice))
    return Account(
        *((reduction.stage + 1, len(stages)), "" if tuner is None else tuner.reason),
        *(sizes, [found[ordinal] for ordinal in sorted(found)]),
    )


def sizes_of(reduction: Reduction) -> Sizes:
    """What a step of an Aggregator sends, in the stage of its schedule that ran last."""
    _, settings = reduction.settings.stages[reduction.stage]
    plans, joined = reduction._plans.made(settings), reduction._registry.joined
    planned, handed = not plans, reduction.handed
    size = _workers(reduction, [variable for _, variable in joined])
    if planned and joined:
        paths = [path for path, _ in joined]
        specs = [tf.TensorSpec(v.shape, v.dtype) for _, v in joined]
        plans = [make_plan(settings, paths, specs, range(len(paths)))]
        handed = [record for bucket in plans[0].buckets for record in rehearsed(bucket, size)]
        if plans[0].dense:
            flagged = _replicas(variable for _, variable in joined) == 1  # strategies need none
            handed = plans[0].handed_dense(flagged)
    lanes = {lane.ordinal: lane for plan in plans for lane in _lanes(plan)}
    total = sum(lane.nbytes for lane in lanes.values())
    return Sizes(size, plans, planned, handed, total)


def _lanes(plan: Plan) -> Iterator[Lane]:
    for group in [*plan.groups, *plan.by_rows]:
        yield from group.lanes
    yield from plan.sparse


def _workers(reduction: Reduction, variables: Sequence[Any]) -> int:
    """The number of workers, from the state or from what connects them now."""
    if reduction.state.workers:
        return reduction.state.size
    replicas = _replicas(variables)
    if replicas > 1:
        return replicas
    others = several()
    if others is None:
        return 1
    return len(set(others.hosts)) if reduction.settings.hierarchical else others.size


def _replicas(variables: Iterable[Any]) -> int:
    """The number of replicas of the strategy under which these variables were made; 1 without."""
    strategies = [getattr(variable, "distribute_strategy", None) for variable in variables]
    return max((each.num_replicas_in_sync for each in strategies if each is not None), default=1)


def _variables(
    settings: Settings, plan: Plan, size: int, choice: str
) -> Iterator[tuple[int, VariableAccount]]:
    """(ordinal, account) of each variable of a plan; `choice`: why "auto" has its method."""

    def told(lane, sent: float | None, exchange: str):
        path = plan.paths[lane.position]
        ratio = _dense(lane.nbytes, size) / sent if sent else None
        made = VariableAccount(
            *(path.removesuffix(":0"), lane.shape, str(lane.compressor), spec_of(lane.memory)),
            *(sent, ratio, exchange, reason(settings, path, lane, choice)),
        )
        return lane.ordinal, made

    for group in plan.groups:
        handed = without_flag(rehearsed([group], size), size)
        weights = _weights(group)
        sent = sum(_sent(record, size) for record in handed)
        for lane, weight in zip(group.lanes, weights):
            share = sent * weight / sum(weights) if sum(weights) else 0.0
            yield told(lane, share, _exchange(group, handed))
    for group in plan.by_rows:
        for lane in group.lanes:
            yield told(lane, None, "compressed rows")
    for lane in plan.sparse:
        yield told(lane, None, "rows")


def _weights(group: LaneGroup) -> list[int]:
    """The parts of the lanes in the payload of their group."""
    if group.merged or group.dense:
        return [lane.nbytes for lane in group.lanes]
    return [group.compressor.nbytes(lane.spec) for lane in group.lanes]


def _exchange(group: LaneGroup, handed: Sequence[CollectiveRecord]) -> str:
    if group.dense:
        return "not compressed"
    kinds = dict.fromkeys(record.kind.replace("_", " ") for record in handed)
    return "two hops" if "all to all" in kinds else " and ".join(kinds)


def _sent(record: CollectiveRecord, size: int) -> float:
    return record.sent(size) if size > 1 else record.nbytes


def _dense(nbytes: int, size: int) -> float:
    """What a worker sends for so many bytes of gradient, uncompressed."""
    return nbytes * 2 * (size - 1) / size if size > 1 else nbytes
