"""Reserves keys: a key is a number that names one collective on all workers and is never reused.

TensorFlow ties a key to the first shape that it carried, as long as the process lives, so the keys
of a deleted plan cannot be given to another plan.  Keys are therefore dealt out in order, and only
the next key is stored.  The keys do not depend on when Python deletes a plan, since that moment
differs between workers.

All workers make their plans in the same order, since they compare each plan, with its keys, before
they make the next.  So they deal out the same keys, or all raise the same sentence.
"""

from __future__ import annotations

import threading

# Keys that belong to no plan.  Transports may use other keys below PLAN_KEYS for themselves.
FINITE = 2  # whether a step of a Keras optimizer is finite
EPOCH = 3  # the means at the end of an epoch

FIRST = 1 << 30  # the first key that is dealt out; programs may use those from PLAN_KEYS to here
_END = 1 << 31

_lock = threading.Lock()
_next = FIRST


def deal(count: int) -> range:
    """Reserves `count` keys that this process has never used.

    Raises RuntimeError where fewer are left.
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
