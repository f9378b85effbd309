"""What exchanges take between processes: on this machine alone, or over the link under `run`.

A group comes in; the costs of aggregation/measure/link.py go out.  `loopback` starts two processes
of this module here and reads what they print.

    python -m grace_tf.cli.advise.probe 1
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import pathlib
import socket
import statistics
import sys
import time
import zlib
from collections.abc import Sequence

import tensorflow as tf

from grace_tf.advice.network import Cost
from grace_tf.aggregation import kept_memory
from grace_tf.aggregation.measure import link
from grace_tf.cli import launcher
from grace_tf.line import collective_keys
from grace_tf.transports.group import Group
from grace_tf.transports.world.world import init

SMALL, LARGE = 4 << 10, 8 << 20  # bytes
_REPEATS, _SECONDS = 7, 120.0
_IN_TURN = 5  # small collectives in one call


def loopback(per_host: int) -> dict[str, Cost]:
    """The costs between two processes of this machine.

    `per_host` is the number of workers on each host of the training for which the user asks.

    Raises RuntimeError where they cannot exchange anything.
    """
    shown, complaints = io.StringIO(), io.StringIO()
    command = [sys.executable, "-m", __name__, str(per_host)]
    code = launcher.run(
        command, 2, timeout=_SECONDS, stdout=shown, stderr=complaints, prefix="auto"
    )
    if code:
        raise RuntimeError(
            f"Two processes of this machine could not exchange anything: {complaints.getvalue()}"
        )
    lines = [line for line in shown.getvalue().splitlines() if line.startswith("{")]
    return {kind: Cost(**cost) for kind, cost in json.loads(lines[-1]).items()}


def costs(group: Group, per_host: int) -> dict[str, Cost]:
    """The costs between the processes of a group.

    All processes must call it, and all get the same result.

    `per_host` is the number of workers on one host.  They share its processors.
    """
    agree = functools.partial(largest, group)
    processors = len(os.sched_getaffinity(0)) / per_host
    # On GPUs the gradients are computed elsewhere, so work of the processors does not delay them.
    on_gpus = bool(tf.config.list_physical_devices("GPU"))
    return link.costs(
        *(group, agree, (SMALL, LARGE), _REPEATS),
        meet=group.barrier,
        of_repeats=statistics.median,
        busy=lambda: 0.0 if on_gpus else time.process_time() / processors,
        in_turn=_IN_TURN,
    )


def sharing(group: Group) -> int:
    """Returns how many workers run on this machine, this one included.  All workers must call it.

    Their addresses do not show it: over emulated links each worker of a machine has its own.
    """
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_bytes() if boot.exists() else socket.gethostname().encode()
    found = group.handshake([zlib.crc32(machine)], "the comparison of machines")
    return int((found == found[group.rank]).sum())


def largest(group: Group, numbers: Sequence[float]) -> list[float]:
    """Returns the largest of all processes for each number.  All processes must call it."""
    (key,) = collective_keys.deal(1)
    (found,) = group.max([tf.constant(numbers, tf.float64)], key)
    return found.numpy().tolist()


def main() -> None:
    """One of the two processes of `loopback`."""
    kept_memory.keep()
    group = init(timeout=_SECONDS)
    found = costs(group, int(sys.argv[1]))
    if group.rank == 0:
        print(json.dumps({kind: dataclasses.asdict(cost) for kind, cost in found.items()}))


if __name__ == "__main__":
    main()
