"""Micro-batches, of whose gradients a step gets the mean: what memories see of each.

The gradients come from a Keras optimizer, before it accumulates them.  What a memory makes of them
goes into leaves of the state, which the next step reads with all others.  Nothing is communicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from grace_tf.aggregation.state.state import State
from grace_tf.core.memory import Memory
from grace_tf.line.inputs import device_of
from grace_tf.line.plan import Plan
from grace_tf.line.settings import Settings
from grace_tf.line.sparse_gradients import arranged
from grace_tf.transports.lifeline.lifeline import spans_processes
from grace_tf.transports.loopback import Loopback
from grace_tf.transports.tf_distribute import ReplicaContext
from grace_tf.transports.world.current_workers import between_processes


def observes(settings: Settings) -> bool:
    """Whether a memory of any stage sees micro-batches."""
    routes = (route for _, stage in settings.stages for route in stage.routes)
    return any(memory.micro_batches > 1 for _, _, memory in routes)


class Place(NamedTuple):
    """The worker whose micro-batch it is: its position among the `workers` of this process.

    `divided`: by how much the host has divided its gradients, for their sum to be the mean.
    """

    size: int
    workers: Sequence[int]
    devices: Sequence[str | None]
    position: int
    divided: float


def place_of(context: Any, variables: Sequence[Any], reduce: str) -> Place:
    """The place of the replica of this context, or of this process as one worker."""
    if context.num_replicas_in_sync == 1:
        world = between_processes() or Loopback()
        divided = float(world.size) if reduce == "sum" else 1.0
        return Place(world.size, world.workers, [device_of(variables[0])], 0, divided)
    strategy, replica = context.strategy, ReplicaContext(context)
    devices = strategy.extended.worker_devices
    process = strategy.extended._id_in_cluster if spans_processes(strategy) else 0
    workers = range(process * len(devices), (process + 1) * len(devices))
    divided = 1.0 if reduce == "mean" else float(replica.size)
    position = workers.index(replica.workers[0])
    return Place(replica.size, workers, devices, position, divided)


def observe(
    state: State,
    plans: Sequence[Plan],
    apart: frozenset[str],
    place: Place,
    grads: Sequence[tf.Tensor | tf.IndexedSlices],
    first: tf.Tensor,
) -> None:
    """Lets the memories of all stages see the gradients of a micro-batch; stores what they return.

    Args:
      plans: of the stages; a memory that several stages have sees each variable once.
      apart: the kinds of state that stages do not share.
      first: bool[]: whether it is the first micro-batch since a step.
    """
    done: set[tuple[Memory, int]] = set()
    for plan in plans:
        groups = [group for group in plan.groups if group.memory.micro_batches > 1]
        lanes = [(group.memory, lane) for group in groups for lane in group.lanes]
        lanes = [(memory, lane) for memory, lane in lanes if (memory, lane.ordinal) not in done]
        if not lanes:
            continue
        slots, dense = state.slots_for(groups, plan.seed, apart), arranged(plan, grads)
        memories, _ = slots.read(place.position)
        seen = {}
        for memory, lane in lanes:
            x = tf.cast(dense[lane.position], tf.float32) * (place.divided / memory.micro_batches)
            seen[lane.ordinal] = memory.observe(x, memories[lane.ordinal], first)
            done.add((memory, lane.ordinal))
        state.store(place.position, slots, memories, seen)
