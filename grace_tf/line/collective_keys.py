"""The keys of collectives: a number that names each of them on all workers, and none comes twice.

TensorFlow ties a key to the first shape that it carried, for as long as the process lives, so the
keys of a plan that is gone cannot be given to another one.  Keys are therefore dealt out one after
the other, and nothing is kept but the next one, however many plans come and go.  When a plan is
collected makes no difference either, as it must not: that is another moment on every worker.

All workers make their plans in the same order, since they compare each before the next, its keys
included.  So they deal out the same keys, or all raise the same sentence.
"""

from __future__ import annotations

import threading

# Single ones, which belong to no plan; transports may use others below PLAN_KEYS for themselves.
FINITE = 2  # whether a step of a Keras optimizer is finite
EPOCH = 3  # the means at the end of an epoch

FIRST = 1 << 30  # dealt out from here on; those from PLAN_KEYS to here are free for programs
_END = 1 << 31

_lock = threading.Lock()
_next = FIRST


def deal(count: int) -> range:
    """Reserves `count` keys that this process has never used.

    Raises RuntimeError where there are not so many left.
    """
    global _next
    with _lock:
        if _next + count > _END:
            raise RuntimeError(
                "This process has no keys left for the collectives of another plan: start it anew."
            )
        dealt = range(_next, _next + count)
        _next = dealt.stop
    return dealt
