"""Workers of which some wait in collectives; prints the sentences of their errors.

waits.py threads      prints how many threads 200 steps have left behind
waits.py late         the last worker takes no part in the second step
waits.py elsewhere    the last worker sums with another key than the others
waits.py caught       a step fails on all workers alike, which then do without it for a while
"""

import json
import os
import signal
import sys
import time

import tensorflow as tf

import grace_tf

HOW = sys.argv[1]
TIMEOUT = 60 if HOW == "threads" else 4
group = grace_tf.init(timeout=TIMEOUT)
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


def caught():
    """What is summed after a failed step and more than the timeout without it."""

    @tf.function
    def fails(x):
        total = group.sum([x], 1 << 20)[0]
        with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_sum(x), 0.0)]):
            return total + 1.0

    try:
        fails(tf.ones([2]))
    except tf.errors.InvalidArgumentError:
        ended = time.monotonic() + 2 * TIMEOUT
        while time.monotonic() < ended:
            tf.linalg.matmul(tf.ones([300, 300]), tf.ones([300, 300])).numpy()
    return step_of((1 << 20) + 1)().numpy().tolist()


if HOW == "caught":
    print(json.dumps({"sum": caught()}), flush=True)
    sys.exit()
print(json.dumps({"threads": grown()} if HOW == "threads" else {"told": told()}), flush=True)
sys.exit(0 if HOW == "threads" else 3)
