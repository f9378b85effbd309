"""Micro-batches, of whose gradients a step gets the mean: what memories see of each.

The gradients come from a Keras optimizer, before it accumulates them.  What a memory makes of them
goes into leaves of the state, which the next step reads with all others.  Nothing is communicated.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.aggregation.state.state import State
from grace_tf.line.plan import Plan
from grace_tf.line.settings import Settings


def observed(settings: Settings) -> int:
    """How many micro-batches the memories observe before each step; 1 if they observe none."""
    routes = (route for _, stage in settings.stages for route in stage.routes)
    return max((memory.micro_batches for _, _, memory in routes), default=1)


def observe(
    state: State,
    plans: Sequence[Plan],
    apart: frozenset[str],
    position: int,
    grads: Sequence[tf.Tensor],
    divided: float,
    first: tf.Tensor,
) -> None:
    """Lets the memories of all stages see the gradients of a micro-batch; stores what they return.

    Args:
      plans: of the stages.  Stages with the same kind of memory share its leaves, so only the first
        of them observes a variable.
      apart: the kinds of state that stages do not share.
      position: of the worker among those of this process.
      grads: dense, in the order of the plans.
      divided: the number by which the caller has divided the gradients; 1 if it has not.
      first: bool[]: whether it is the first micro-batch since a step.
    """
    done: set[tuple[str, int]] = set()
    for plan in plans:
        groups = [group for group in plan.groups if group.memory.micro_batches > 1]
        lanes = [(group.memory, lane) for group in groups for lane in group.lanes]
        lanes = [(m, lane) for m, lane in lanes if (m.name, lane.ordinal) not in done]
        if not lanes:
            continue
        slots = state.slots_for(groups, plan.seed, apart)
        memories, _ = slots.read(position)
        seen = {}
        for memory, lane in lanes:
            x = tf.cast(grads[lane.position], tf.float32) * (divided / memory.micro_batches)
            seen[lane.ordinal] = memory.observe(x, memories[lane.ordinal], first)
            done.add((memory.name, lane.ordinal))
        state.store(position, slots, memories, seen)
