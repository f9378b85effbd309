"""Finds a worker that compares a new plan while another one waits for it in a step.

Such workers would wait for each other until the timeout.  Process groups and Horovod mark their
collectives, see `transports/lifeline/waits.py`.  Those of a MultiWorkerMirroredStrategy have no
marks, so here workers look at the numbers of their steps: a worker that compares tells them to the
others, and one that has begun a step more cannot come to that comparison.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from grace_tf.aggregation.consistency import weight_drift
from grace_tf.transports.group import Group
from grace_tf.transports.lifeline.lifeline import Lifeline
from grace_tf.transports.lifeline.waits import crossed
from grace_tf.transports.multi_worker import MultiWorkerGroup

_TOPIC = "comparing"
_PAUSE = 1.5  # seconds between two looks; a step that lasts from one to the next counts as a wait

_begun = 0  # the number of comparisons that this process has begun


def tell_comparison(group: Group) -> None:
    """Call it where a comparison of plans begins; all workers call it equally often."""
    global _begun
    line = group.lifeline if isinstance(group, MultiWorkerGroup) else None
    if line is None:
        return
    with line.changed:
        _begun += 1
        line.on(_TOPIC, functools.partial(_hear, line))
        line.tell(_TOPIC, [_begun, weight_drift.steps_begun()])


def _hear(line: Lifeline, worker: int, message: list[Any]) -> None:
    number, steps = message
    _later(line, worker, int(number), dict(steps), {})


def _later(line: Lifeline, *arguments: Any) -> None:
    timer = threading.Timer(_PAUSE, _look, (line, *arguments))
    timer.daemon = True
    timer.start()


def _look(
    line: Lifeline, worker: int, number: int, steps: dict[str, int], before: dict[str, int]
) -> None:
    """Ends all workers where this one is in a step that the other has not begun.

    `before`: the steps of this worker, by plan, that the other had not begun at the last look.
    """
    with line.changed:
        if _begun >= number or line.closed or line.broken is not None:
            return
        mine = weight_drift.steps_begun()
        ahead = {label: count for label, count in mine.items() if count > steps.get(label, count)}
        if ahead and ahead == before:
            line.stop(crossed(line.size, worker, "the first step's comparison", line.rank))
        else:
            _later(line, worker, number, steps, ahead)
