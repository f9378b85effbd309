"""What exchanges take between workers, by kind of collective, from a few that carry nothing.

A transport comes in; the seconds of a hop and of a byte go out: the time of a small buffer, and the
slope to a large one.  Repeats are interleaved, so that a moment in which the machine is busy hits
all kinds alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.advice.network import KINDS, Collective, Cost
from grace_tf.line import collective_keys
from grace_tf.transports.base import Transport

# The largest of all workers' numbers, place by place; it waits for all of them.
Agree = Callable[[Sequence[float]], Sequence[float]]
Taken = Mapping[tuple[str, int], float]  # seconds by kind and bytes


def costs(
    transport: Transport,
    agree: Agree,
    sizes: Sequence[int],
    repeats: int,
    seconds: float = math.inf,
    meet: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    of_repeats: Callable[[Sequence[float]], float] = min,
    busy: Callable[[], float] = lambda: 0.0,
) -> dict[str, Cost]:
    """The costs by kind, the same on all workers; all of them must call it, eagerly.

    Args:
      agree: see `Agree`.
      sizes: bytes of the buffers, the smallest first; at least two.
      repeats: of each size, beside one that warms up.
      seconds: how long it may take.  Later repeats are left out, and sizes after the second.
      meet: called before each collective; all workers wait in it for each other.
      of_repeats: which of their times counts.  The shortest says what the network can do; the
        median, what a step has to expect.
      busy: the seconds in which this worker's processors could compute nothing else, so far.
    """
    began, taken, worked = clock(), {}, {}
    for place, nbytes in enumerate(sizes):
        calls = _calls(transport, nbytes)
        found: dict[str, list[float]] = {kind: [] for kind in calls}
        used: dict[str, list[float]] = {kind: [] for kind in calls}
        for repeat in range(-1, repeats):  # the first round is the warm-up
            round_began = clock()
            for kind, call in calls.items():
                meet()
                before = busy()
                each = duration(call, clock)
                if repeat >= 0:
                    found[kind].append(each)
                    used[kind].append(min(each, busy() - before))
            over, lasted = agree([clock() - began, clock() - round_began])
            if repeat >= 0 and over + lasted > seconds:
                break
        taken.update({(kind, nbytes): of_repeats(times) for kind, times in found.items()})
        worked.update({(kind, nbytes): of_repeats(times) for kind, times in used.items()})
        following = sizes[place + 1] / nbytes * lasted if place + 1 < len(sizes) else 0.0
        if place and over + 2 * following > seconds:
            break
    slowest = agree([*taken.values(), *worked.values()])
    taken, worked = dict(zip(taken, slowest)), dict(zip(worked, slowest[len(taken) :]))
    return fitted(taken, worked, transport.size)


def fitted(taken: Taken, worked: Taken, size: int) -> dict[str, Cost]:
    """The costs by kind, from the times of a small and of a large buffer of each kind.

    `taken` has the seconds that each collective took, by kind and bytes.  `worked` has the seconds
    for which it kept the processors busy.
    """
    found = {}
    for kind in KINDS:
        (hop, byte), (busy_hop, busy_byte) = (_line(kind, each, size) for each in (taken, worked))
        found[kind] = Cost(hop, byte, busy_hop=busy_hop, busy_byte=busy_byte)
    return found


def _line(kind: str, taken: Taken, size: int) -> tuple[float, float]:
    """(seconds of a hop, seconds of a byte that a worker sends)."""
    measured = sorted(nbytes for each, nbytes in taken if each == kind)
    small, large = Collective(kind, measured[0]), Collective(kind, measured[-1])
    rest = max(0.0, taken[kind, large.nbytes] - taken[kind, small.nbytes])
    hop = taken[kind, small.nbytes] / small.hops(size)
    return hop, rest / (large.sent(size) - small.sent(size))


def duration(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """The seconds of one call and of all the work that it starts; returns with a result read.

    `bench` waits for all devices instead, which TensorFlow refuses within a process group.
    """
    began = clock()
    results = tf.nest.flatten(function())
    if results:
        tf.reshape(results[-1], [-1])[:1].numpy()
    return clock() - began


def _calls(transport: Transport, nbytes: int) -> dict[str, Callable[[], tf.Tensor]]:
    """A collective of each kind, of a buffer of so many bytes."""
    keys = iter(collective_keys.deal(len(KINDS)))
    return {kind: _call(transport, kind, nbytes, next(keys)) for kind in KINDS}


def _call(transport: Transport, kind: str, nbytes: int, key: int) -> Callable[[], tf.Tensor]:
    dtype = tf.bfloat16 if kind == "half_sum" else tf.float32
    count = nbytes // dtype.size // transport.size * transport.size
    shape = [transport.size, count // transport.size] if kind == "all_to_all" else [count]
    collective = transport.sum if kind == "half_sum" else getattr(transport, kind)
    buffer = tf.zeros(shape, dtype)
    function = tf.function(lambda x: collective([x], key)[0], autograph=False)
    concrete = function.get_concrete_function(buffer)
    return lambda: concrete(buffer)
