"""What exchanges take between processes: on this machine alone, or over the link under `run`.

A group comes in; the seconds of a hop and of a byte go out, for each kind of collective: the
shortest time of a small buffer, and the slope to a large one.  `loopback` starts two processes of
this module here and reads what they print.

    python -m grace_tf.cli.advise.probe
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Callable, Mapping

import tensorflow as tf

from grace_tf.advice.network import KINDS, Collective, Cost
from grace_tf.cli import launcher
from grace_tf.cli.advise.codecs import seconds
from grace_tf.line import collective_keys
from grace_tf.transports.group import Group
from grace_tf.transports.world.world import init

SMALL, LARGE = 4 << 10, 8 << 20  # bytes
_REPEATS, _SECONDS = 7, 120.0


def loopback() -> dict[str, Cost]:
    """The costs between two processes of this machine.

    Raises RuntimeError where they cannot exchange anything.
    """
    shown, complaints = io.StringIO(), io.StringIO()
    command = [sys.executable, "-m", __name__]
    code = launcher.run(
        command, 2, timeout=_SECONDS, stdout=shown, stderr=complaints, prefix="auto"
    )
    if code:
        raise RuntimeError(
            f"Two processes of this machine could not exchange anything: {complaints.getvalue()}"
        )
    lines = [line for line in shown.getvalue().splitlines() if line.startswith("{")]
    return {kind: Cost(**cost) for kind, cost in json.loads(lines[-1]).items()}


def costs(group: Group) -> dict[str, Cost]:
    """The costs between the processes of a group, the same on all; all of them must call it."""
    keys = iter(collective_keys.deal(2 * len(KINDS)))
    calls = {(k, n): _call(group, k, n, next(keys)) for k in KINDS for n in (SMALL, LARGE)}
    times: dict[tuple[str, int], list[float]] = {}
    for repeat in range(-1, _REPEATS):  # the first round is the warm-up
        for case, call in calls.items():
            group.barrier()
            taken = seconds(call)
            if repeat >= 0:
                times.setdefault(case, []).append(taken)
    least = tf.constant([min(times[case]) for case in calls], tf.float64)
    (key,) = collective_keys.deal(1)
    (slowest,) = group.max([least], key)
    return fitted(dict(zip(calls, slowest.numpy().tolist())), group.size)


def fitted(least: Mapping[tuple[str, int], float], size: int) -> dict[str, Cost]:
    """The costs of which a small and a large buffer took so many seconds, `least[kind, bytes]`."""
    found = {}
    for kind in KINDS:
        small, large = Collective(kind, SMALL), Collective(kind, LARGE)
        hop = least[kind, SMALL] / small.hops(size)
        rest = max(0.0, least[kind, LARGE] - least[kind, SMALL])
        found[kind] = Cost(hop, rest / (large.sent(size) - small.sent(size)))
    return found


def _call(group: Group, kind: str, nbytes: int, key: int) -> Callable[[], tf.Tensor]:
    count = nbytes // 4 // group.size * group.size
    shape = [group.size, count // group.size] if kind == "all_to_all" else [count]
    collective, buffer = getattr(group, kind), tf.zeros(shape)
    function = tf.function(lambda x: collective([x], key)[0], autograph=False)
    concrete = function.get_concrete_function(buffer)
    return lambda: concrete(buffer)


def main() -> None:
    """One of the two processes of `loopback`."""
    group = init(timeout=_SECONDS)
    found = costs(group)
    if group.rank == 0:
        print(json.dumps({kind: dataclasses.asdict(cost) for kind, cost in found.items()}))


if __name__ == "__main__":
    main()
