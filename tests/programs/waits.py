"""Workers of which some wait in collectives; prints what they were told.

waits.py threads      prints how many threads 200 steps have left behind
waits.py late         the last worker takes no part in the second step
waits.py elsewhere    the last worker sums with another key than the others
"""

import json
import os
import signal
import sys

import tensorflow as tf

import grace_tf

HOW = sys.argv[1]
group = grace_tf.init(timeout=60 if HOW == "threads" else 4)
last = group.rank == group.size - 1


def step_of(key):
    return tf.function(lambda: group.sum([tf.ones([2])], key)[0])


def threads():
    return len(os.listdir("/proc/self/task"))


def grown():
    step, eager = step_of(1 << 20), step_of(1 << 20).python_function
    counts = []
    for once in (step, eager):
        once()
        before = threads()
        for _ in range(100):
            once()
        counts.append(threads() - before)
    return counts


def told():
    step_of(1 << 20)()
    if last and HOW == "late":
        signal.pause()
    try:
        step_of((1 << 20) + (1 if last else 2))()
    except tf.errors.OpError as error:
        return group.explain(error)


print(json.dumps({"threads": grown()} if HOW == "threads" else {"told": told()}), flush=True)
sys.exit(0 if HOW == "threads" else 3)
