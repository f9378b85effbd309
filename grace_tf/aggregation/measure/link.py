"""Measures how long each kind of collective takes between workers, by collectives of zeros.

A transport comes in; the seconds of a hop and of a byte go out.  Those of a hop come from the time
of a small buffer, and those of a byte from how much longer a large buffer takes.  All kinds take
turns, so that a moment in which the machine is busy affects them alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    in_turn: int = 1,
) -> dict[str, Cost]:
    """The costs by kind, the same on all workers; all of them must call it, eagerly.

    Args:
      agree: see `Agree`.
      sizes: bytes of the buffers, the smallest first; at least two.
      repeats: the number of timed repeats of each size.  One that is not timed comes first.
      seconds: the time limit, after which no more repeats are run, nor sizes after the second.
      meet: called before each collective; all workers wait in it for each other.
      of_repeats: takes the times of all repeats and returns the one that counts.  The shortest is
        what the network can do; the median is what a step must expect.
      busy: returns for how many seconds so far this worker's processors could do nothing else.
      in_turn: if above 1, a call of so many of the smallest collectives is timed too.  So the time
        of a call itself is known.  It is subtracted, since a training makes no such calls.
    """
    began, taken, worked = clock(), {}, {}
    for place, nbytes in enumerate(sizes):
        calls = _calls(transport, nbytes, {1, in_turn} if place == 0 else {1})
        found, used = ({each: [] for each in calls} for _ in range(2))
        for repeat in range(-1, repeats):  # the first round is the warm-up
            round_began = clock()
            for which, (each, work) in _round(calls, meet, busy, clock).items():
                if repeat >= 0:
                    found[which].append(each)
                    used[which].append(work)
            over, lasted = agree([clock() - began, clock() - round_began])
            if repeat >= 0 and over + lasted > seconds:
                break
        if place == 0:
            calling = [_of_a_call(each, in_turn, of_repeats) for each in (found, used)]
        for seconds_of, times, call in zip((taken, worked), (found, used), calling):
            for kind in KINDS:
                seconds_of[kind, nbytes] = of_repeats(times[kind, 1]) - call[kind]
        following = sizes[place + 1] / nbytes * lasted if place + 1 < len(sizes) else 0.0
        if place and over + 2 * following > seconds:
            break
    slowest = agree([*taken.values(), *worked.values()])
    taken, worked = dict(zip(taken, slowest)), dict(zip(worked, slowest[len(taken) :]))
    return fitted(taken, worked, transport.size)


def _round(
    calls: Mapping[tuple[str, int], Callable[[], tf.Tensor]],
    meet: Callable[[], None],
    busy: Callable[[], float],
    clock: Callable[[], float],
) -> dict[tuple[str, int], tuple[float, float]]:
    """Runs each call once; returns its seconds, and for how many of them processors were busy."""
    found = {}
    for which, call in calls.items():
        meet()
        before = busy()
        each = duration(call, clock)
        found[which] = each, min(each, busy() - before)
    return found


def _of_a_call(
    times: Mapping[tuple[str, int], Sequence[float]],
    in_turn: int,
    of_repeats: Callable[[Sequence[float]], float],
) -> dict[str, float]:
    """By kind, the seconds that a call takes besides its collectives.

    They come from calls with one collective and calls with `in_turn` of them.
    """
    if in_turn == 1:
        return dict.fromkeys(KINDS, 0.0)
    found = {}
    for kind in KINDS:
        one, several = of_repeats(times[kind, 1]), of_repeats(times[kind, in_turn])
        found[kind] = max(0.0, one - max(0.0, several - one) / (in_turn - 1))
    return found


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
    hop = taken[kind, small.nbytes] / small.hops(size)
    rest = max(0.0, taken[kind, large.nbytes] - large.hops(size) * hop)
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


def _calls(
    transport: Transport, nbytes: int, counts: Iterable[int]
) -> dict[tuple[str, int], Callable[[], tf.Tensor]]:
    """By kind and count, a function that runs `count` collectives, one after another."""
    wanted = [(kind, count) for count in sorted(counts) for kind in KINDS]
    return {
        (kind, count): _call(transport, kind, nbytes, collective_keys.deal(count))
        for kind, count in wanted
    }


def _call(
    transport: Transport, kind: str, nbytes: int, keys: Sequence[int]
) -> Callable[[], tf.Tensor]:
    dtype = tf.bfloat16 if kind == "half_sum" else tf.float32
    count = nbytes // dtype.size // transport.size * transport.size
    shape = [transport.size, count // transport.size] if kind == "all_to_all" else [count]
    collective = transport.sum if kind == "half_sum" else getattr(transport, kind)
    buffer = tf.zeros(shape, dtype)

    def run(x: tf.Tensor) -> tf.Tensor:
        for key in keys:
            (result,) = collective([x], key)
            with tf.control_dependencies([result]):
                x = tf.identity(x)
        return result

    concrete = tf.function(run, autograph=False).get_concrete_function(buffer)
    return lambda: concrete(buffer)
