"""One step of an Aggregator: finds the other workers and exchanges the gradients with them.

It takes the gradients of this process, one list for each replica, and returns the aggregates.  In
between it makes the plan, compares it with the other workers, reads the state, runs the line and
commits the new state.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.aggregation import kept_memory, micro_batches
from grace_tf.aggregation.consistency import weight_drift
from grace_tf.aggregation.consistency.initial_values import InitialValues, compare_inside
from grace_tf.aggregation.consistency.plan_handshake import OptimizerInfo
from grace_tf.aggregation.measure.probe import Probe
from grace_tf.aggregation.plan_cache import Plans
from grace_tf.aggregation.schedule_stages import StagePlans, Stages
from grace_tf.aggregation.state.state import State
from grace_tf.aggregation.state.variable_registry import VariableRegistry
from grace_tf.aggregation.turns import Turns
from grace_tf.line.inputs import device_of
from grace_tf.line.losses import tell_losses
from grace_tf.line.plan import Plan
from grace_tf.line.settings import Settings
from grace_tf.line.sparse_gradients import inside_tables
from grace_tf.transports.base import Transport
from grace_tf.transports.group import Group
from grace_tf.transports.hosts import Hosts
from grace_tf.transports.lifeline.lifeline import spans_processes
from grace_tf.transports.loopback import Loopback
from grace_tf.transports.multi_worker import MultiWorkerGroup
from grace_tf.transports.tf_distribute import (
    ReplicaContext,
    Replicas,
    across_replicas,
    not_empty,
    replica_of,
    replicas_here,
    worker_devices,
)
from grace_tf.transports.world.current_workers import (
    between_processes,
    refuse_graphs_of_tensorflow_1,
    refuse_half_a_reduction,
    refuse_parameter_servers,
    refuse_two_doors,
    refuse_xla,
)


class Reduction:
    """The steps of an Aggregator, and what it stores between them.

    Args:
      settings: which variable takes which method.
      reduce: "mean", "sum" or "auto", as an Aggregator's.
    """

    def __init__(self, settings: Settings, reduce: str) -> None:
        self.settings, self.reduce = settings, reduce
        kept_memory.keep()
        tell_losses(settings)
        self._registry = VariableRegistry(self._forget)
        self.state = State(self._registry)
        self._plans = Plans(self._registry)
        self._micro_plans = Plans(self._registry)  # apart, since explain shows those of steps
        self._initial_values = InitialValues()
        self._stages = Stages(self.state, settings.choice)
        self._turns, self._placing = Turns(), threading.RLock()
        self._hosts: Hosts | None = None  # with hierarchical=True, from the first step on
        self._alike_inside = False  # whether equal states inside each host were checked

    @property
    def compared(self) -> int:
        """The number of plans that were compared with the other workers', the same on all."""
        return self._plans.compared

    @property
    def stage(self) -> int:
        """The number of the schedule's stage that ran last; 0 before the first step."""
        return self._stages.number

    @property
    def probe(self) -> Probe | None:
        """What measures steps; None where nothing is measured."""
        return self._stages.probe

    @probe.setter
    def probe(self, probe: Probe | None) -> None:
        self._stages.probe = probe

    def chooses_by(self, tuner: Any) -> bool:
        """Whether "auto" chooses by this tuner here."""
        return self._stages.tuner is tuner

    @property
    def outdated(self) -> bool:
        """Whether `renew` must be called before the next step.  It is the same on all workers."""
        return self._stages.tuner is not None and self._stages.tuner.outdated

    def renew(self) -> bool:
        """Lets "auto" measure the network, and select again what a step contains.

        All workers must call it, between the same two steps.

        Returns: whether the step must be traced again.
        """
        return self._stages.tuner.renew()

    def count_skipped(self, finite: tf.Tensor) -> None:
        """Counts a step if it is skipped.  Steps that are not skipped are counted by `commit`."""
        if self.probe is None:
            return
        context, first = tf.distribute.get_replica_context(), True
        if context is not None and context.num_replicas_in_sync > 1:
            here = len(context.strategy.extended.worker_devices)
            first = tf.equal(context.replica_id_in_sync_group % here, 0)  # counts for the others
        self.probe.count(False, tf.logical_and(first, tf.logical_not(finite)))

    def _forget(self, ordinal: int) -> None:
        self.state.forget(ordinal)
        self._plans.forget(ordinal)
        self._micro_plans.forget(ordinal)

    def _reduce(
        self,
        grads: list[tf.Tensor],
        variables: list[Any],
        own_way,
        optimizer_info: Callable[[], OptimizerInfo],
    ) -> list[tf.Tensor]:
        kept_memory.keep_beside_generators()
        context = tf.distribute.get_replica_context()
        if context is None:
            raise RuntimeError(
                "Gradients are aggregated in the replica context: call this inside strategy.run."
            )
        strategy = context.strategy
        refuse_parameter_servers(strategy)
        if context.num_replicas_in_sync > 1:
            return self._under_strategy(context, grads, variables, own_way, optimizer_info)
        world = between_processes() or Loopback()
        if world.size > 1:
            refuse_graphs_of_tensorflow_1()
        with self._turns.one(meets=world.size > 1):
            return self._in_process(world, grads, variables, own_way, optimizer_info)

    def _in_process(self, world, grads, variables, own_way, optimizer_info) -> list[tf.Tensor]:
        """One step of this process as one worker of the group `world`, or alone."""
        # The comparison runs also without any gradient: the other workers wait in it.
        others = world if world.size > 1 else None
        plans = self._plan_stages(grads, variables, others, optimizer_info)
        if (not grads or others is None) and self._stages.dense(plans, flagged=True):
            grads = inside_tables(plans[0], grads)
            return own_way(grads) if own_way and grads else grads
        transport = self._hosts_of(others) or world
        stage_plans = self._place(
            *(plans, transport.size, transport.workers, [device_of(variables[0])]),
            between=None if others is None else lambda: transport,
        )
        if others is not None:
            self.agree(world, variables, optimizer_info)
            if transport is not world and not self._alike_inside:
                compare_inside(world, self.state)
                self._alike_inside = True
            weight_drift.watch(plans[0], variables, optimizer_info)
        try:
            (reduced,) = self._stages.run(
                stage_plans, transport, [grads], summed=self._summed(under_strategy=False)
            )
        except tf.errors.OpError as error:  # of eager steps; a tf.function raises from its call
            if others is None:
                raise  # no other worker can have caused it
            raise RuntimeError(world.explain(error)) from error
        return reduced

    def _under_strategy(
        self, context, grads, variables, own_way, optimizer_info
    ) -> list[tf.Tensor]:
        strategy = context.strategy
        refuse_two_doors(strategy)
        refuse_half_a_reduction(strategy)
        local = worker_devices(strategy)
        summed = self._summed(under_strategy=True)
        spans = spans_processes(strategy)
        others = MultiWorkerGroup(strategy) if spans else None
        plans = self._plan_stages(grads, variables, others, optimizer_info)
        hosts = self._process_as_host(context, others)
        if spans:
            transport = ReplicaContext(context)
            workers = replicas_here(strategy)
            first = workers[0]
            if hosts is None:
                replicas = context.num_replicas_in_sync
                stage_plans = self._place(plans, replicas, workers, local, others.ring)
            else:
                self._place(plans, hosts.size, hosts.workers, local[:1], lambda: hosts)
            self.agree(others, variables, optimizer_info)
            if transport.workers[0] == first:
                weight_drift.watch(plans[0], variables, optimizer_info)
        if self._stages.dense(plans, flagged=False):
            grads = inside_tables(plans[0], grads)
            if spans and not self.settings.dense:
                grads = [not_empty(g) for g in grads]
            operation = tf.distribute.ReduceOp.SUM if summed else tf.distribute.ReduceOp.MEAN
            return own_way(grads) if own_way else list(context.all_reduce(operation, grads))
        refuse_xla(strategy)
        if hosts is not None:
            step = functools.partial(self._once, hosts, plans, local[:1], summed)
            return across_replicas(context, step, grads)
        if spans and len(plans) == 1:
            position = transport.workers[0] - first
            with self._turns.one(meets=True, position=position):
                (reduced,) = self._stages.run(stage_plans, transport, [grads], summed, position)
            return reduced

        def all_at_once(transport, per_replica):
            # Here one thread acts for all replicas; they themselves must not hold a turn, since
            # they wait for each other.
            with self._turns.one(meets=spans):
                if spans:
                    return self._stages.run_inside(strategy, stage_plans, per_replica, summed)
                inside = self._place(plans, transport.size, transport.workers, local)
                return self._stages.run(inside, transport, per_replica, summed)

        return across_replicas(context, all_at_once, grads)

    def _observe(self, grads: list[tf.Tensor], variables: list[Any], first: tf.Tensor) -> None:
        """Lets the memories of this worker see the gradients of one micro-batch."""
        context = tf.distribute.get_replica_context()
        if context is None or not grads:
            return  # the step raises, or has nothing to do
        several = context.num_replicas_in_sync > 1
        if several:
            workers, devices = replicas_here(context.strategy), worker_devices(context.strategy)
            size, position = context.num_replicas_in_sync, workers.index(replica_of(context))
        else:
            world, position = between_processes() or Loopback(), 0
            size, workers, devices = world.size, world.workers, [device_of(variables[0])]
        divided = float(size) if self._summed(several) else 1.0
        stages = [stage for _, stage in self.settings.stages]
        with self._turns.one(meets=False, position=position), self._placing:
            plans = [self._micro_plans.find(stage, grads, variables) for stage in stages]
            self.state.place(size, workers, devices)
            micro_batches.observe(
                *(self.state, plans, self.settings.apart, position, grads, divided, first)
            )

    def _summed(self, under_strategy: bool) -> bool:
        """Whether the caller has divided the gradients by the number of workers.

        A step then returns their sum, else their mean.
        """
        return self.reduce != "mean" if under_strategy else self.reduce == "sum"

    def _hosts_of(self, others: Group | None) -> Hosts | None:
        """With `hierarchical` the hosts of plain processes; all processes must call it."""
        if others is None or not self.settings.hierarchical:
            return None
        if self._hosts is None:
            self._hosts = Hosts.of(others)
        return self._hosts

    def _process_as_host(self, context: Any, others: MultiWorkerGroup | None) -> Hosts | None:
        """With `hierarchical` this process as one worker that adds up its replicas' gradients.

        Raises ValueError for "bf16", since nothing is sent inside a process.
        """
        if not self.settings.hierarchical:
            return None
        if self.settings.hierarchical == "bf16":
            raise ValueError(
                'hierarchical="bf16" serves hosts of several processes; under a strategy a host is '
                "one process, whose devices send nothing to each other: use hierarchical=True."
            )
        gradients = context.num_replicas_in_sync
        if self._hosts is None or self._hosts.gradients != gradients:
            across = Loopback() if others is None else others.ring()
            self._hosts = Hosts(across, Loopback(), across, gradients)
        return self._hosts

    def _once(
        self,
        hosts: Hosts,
        plans: Sequence[Plan],
        devices: Sequence[str],
        summed: bool,
        replicas: Replicas,
        per_replica: Sequence[Sequence[Any]],
    ) -> list[list[Any]]:
        """Runs one step in which all replicas of this process together are one worker.

        Every replica gets the same result.
        """
        mine = replicas.added_on_first(per_replica)
        with self._turns.one(meets=hosts.size > 1):
            stage_plans = self._place(plans, hosts.size, hosts.workers, devices)
            (reduced,) = self._stages.run(stage_plans, hosts, [mine], summed)
        return replicas.on_each(reduced)

    def agree(
        self,
        group: Any,
        variables: Sequence[Any],
        optimizer_info: Callable[[], OptimizerInfo],
        late: bool | None = None,
    ) -> None:
        """Compares the values of these variables and of their state: see `InitialValues`."""
        late = not tf.inside_function() if late is None else late
        self._initial_values.reach(group, self.state, variables, optimizer_info, late)

    def _place(
        self,
        plans,
        size: int,
        workers: Sequence[int],
        devices: Sequence,
        between: Callable[[], Transport] | None = None,
    ) -> StagePlans:
        called = "host" if self.settings.hierarchical else "worker"
        with self._placing:  # two threads may trace at once, and must make each leaf once
            self.state.place(size, workers, devices, called)
            return self._stages.place(self.settings, plans, between)

    def _plan(
        self,
        grads: list[tf.Tensor],
        variables: list[Any],
        others: Any = None,
        optimizer_info: Callable[[], OptimizerInfo] = OptimizerInfo,
        stage: Settings | None = None,
    ) -> Plan:
        stage = stage or self.settings
        probe = self._stages.probe
        return self._plans.find(
            *(stage, grads, variables, others, optimizer_info, self.reduce),
            measured="" if probe is None else probe.text,
        )

    def _plan_stages(
        self, grads, variables, others=None, optimizer_info=OptimizerInfo
    ) -> list[Plan]:
        """The plans of all stages: a traced step may run any of them, so workers compare all."""
        stages = [stage for _, stage in self.settings.stages]
        return [self._plan(grads, variables, others, optimizer_info, stage) for stage in stages]
