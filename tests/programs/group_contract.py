"""The checks of every Group, on one of several processes: group_contract.py group|strategy.

Prints "held" when all have passed.  A process has two threads for operations, and collectives of
different keys are started in opposite orders by the first worker and the others.
"""

import itertools
import pathlib
import sys

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import group_contract  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.transports.base import PLAN_KEYS  # noqa: E402
from grace_tf.transports.multi_worker import MultiWorkerGroup  # noqa: E402

keys = itertools.count(PLAN_KEYS)
COUNT = 40


def in_opposite_orders(group):
    """One tf.function starts all; each input waits for the input before it, not for its result."""
    orders = list(range(COUNT))
    base = next(keys) + 1000

    @tf.function
    def step(x):
        found, last = {}, None
        for k in orders if group.rank == 0 else orders[::-1]:
            with tf.control_dependencies([] if last is None else [last]):
                last = tf.identity(x + float(k))
            if k % 3 == 0:
                found[k] = group.sum([last], base + k)[0]
            elif k % 3 == 1:
                found[k] = tf.reduce_sum(group.gather([last], base + k)[0], 0)
            else:
                sent = tf.stack([last] * group.size)
                found[k] = tf.reduce_sum(group.all_to_all([sent], base + k)[0], 0)
        return tf.stack([found[k] for k in orders])

    wanted = np.repeat(group.size * (1.0 + np.arange(COUNT))[:, None], 4096, 1)
    for _ in range(3):
        assert np.array_equal(step(tf.ones([4096])), wanted)


def plain():
    for threads in (
        tf.config.threading.set_inter_op_parallelism_threads,
        tf.config.threading.set_intra_op_parallelism_threads,
    ):
        threads(2)
    group = grace_tf.init(timeout=60)
    assert group.workers == (group.rank,) and group.processes == group.size
    group_contract.carries(group, keys, ("float16", "bfloat16", "float32", "int32", "int64"))
    in_opposite_orders(group)
    group_contract.compares(group)


def under_a_strategy():
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(timeout_seconds=30)
    )

    @tf.autograph.experimental.do_not_convert
    def replica():
        group_contract.carries(MultiWorkerGroup(strategy), keys)

    strategy.run(replica)
    group = MultiWorkerGroup(strategy)
    told = group_contract.raised(RuntimeError, lambda: group.sum([tf.ones([2])], next(keys)))
    assert "inside strategy.run" in told
    group_contract.compares(group)


under_a_strategy() if sys.argv[1] == "strategy" else plain()
print("held", flush=True)
