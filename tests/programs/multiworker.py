"""Two workers of a MultiWorkerMirroredStrategy: custom loops, and fit where Keras can; lines of JSON."""

import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs

import keras
import models
import numpy as np

import grace_tf
from grace_tf.keras import aggregator_of

METHODS = ("none", "qsgd", "topk:ratio=0.1", "powersgd:rank=1", "signsgd")
rank = strategy.cluster_resolver.task_id


def optimizer(method):
    return grace_tf.wrap(keras.optimizers.SGD(0.1, momentum=0.9), method, min_elements=1, seed=4)


def custom(method):
    with strategy.scope():
        made = models.model()
        chosen = optimizer(method)
    models.loop(made, chosen, strategy, 10)
    state = aggregator_of(chosen).state
    return {"sha": models.sha(made), "step": state.step, "workers": list(state.workers), "size": state.size}


def fitted(method):
    x, y = models.data(10)
    own = np.arange(len(x)).reshape(10, 2, -1)[:, rank].ravel()
    data = tf.data.Dataset.from_tensor_slices((x[own], y[own])).batch(12).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    made = models.compiled(lambda: optimizer(method), strategy)
    made.fit(data.with_options(options), steps_per_epoch=10, epochs=1, verbose=0)
    return {"sha": models.sha(made)}


def nan_on_worker_1():
    """State stays as it is on both workers, and training goes on."""
    with strategy.scope():
        variable = tf.Variable(tf.zeros([8]))
        chosen = grace_tf.wrap(keras.optimizers.SGD(0.1), "topk:ratio=0.25", min_elements=1)

    @tf.function
    def step(poison):
        grad = tf.range(8.0) + poison
        strategy.run(lambda: chosen.apply_gradients([(grad, variable)]))

    state = aggregator_of(chosen).state
    step(0.0)
    before = state.arrays()
    step(np.nan if rank == 1 else 0.0)
    after = state.arrays()
    step(0.0)
    return {
        "untouched": all(np.array_equal(before[k], after[k]) for k in before),
        "step": state.step,
        "nan": bool(np.isnan(variable.numpy()).all()),
    }


for method in METHODS:
    print(json.dumps({"custom": method, **custom(method)}))
    if not models.KERAS_3:
        print(json.dumps({"fit": method, **fitted(method)}))
print(json.dumps({"nan": nan_on_worker_1()}))
