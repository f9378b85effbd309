"""A worker with an emulated link: it takes part in a sum, and then trains for some steps.

linked.py             a process group
linked.py strategy    a MultiWorkerMirroredStrategy
"""

import json
import os
import sys

import tensorflow as tf

import grace_tf

if sys.argv[1:] == ["strategy"]:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs
    rank = strategy.cluster_resolver.task_id
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    hosts = [address.partition(":")[0] for address in cluster]
else:
    group, strategy = grace_tf.init(timeout=60), tf.distribute.get_strategy()
    rank, hosts = grace_tf.rank(), list(group.hosts)

import numpy as np  # noqa: E402
from this_keras import keras  # noqa: E402


def added_up():
    """The sum over workers of four numbers."""
    if strategy.num_replicas_in_sync > 1:
        own = strategy.run(lambda: tf.fill([4], 1.0 + rank))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, own, axis=None)
    return group.sum([tf.fill([4], 1.0 + rank)], 7)[0]


total = added_up()
keras.utils.set_random_seed(3)
with strategy.scope():
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64)])
    optimizer = grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd")
    model.compile(optimizer=optimizer, loss="mse")
x = np.random.default_rng(rank).normal(size=(64, 32)).astype("float32")
model.fit(x, x @ np.ones((32, 64), "float32"), batch_size=16, verbose=0)
answer = {
    "sum": total.numpy().tolist(),
    "hosts": hosts,
    "weights": float(np.sum(model.get_weights()[0], dtype="float64")),
}
print(json.dumps(answer), flush=True)
