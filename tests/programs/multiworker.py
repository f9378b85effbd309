"""Two workers of a MultiWorkerMirroredStrategy: custom loops and fit; lines of JSON."""

import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import tensorflow as tf  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs

import keras  # noqa: E402
import models  # noqa: E402
import numpy as np  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.keras import aggregator_of  # noqa: E402

METHODS = ("none", "qsgd", "topk:ratio=0.1", "powersgd:rank=1", "signsgd")
FITTED = ("none", "topk:ratio=0.1")
rank = strategy.cluster_resolver.task_id


def optimizer(method):
    return grace_tf.wrap(keras.optimizers.SGD(0.1, momentum=0.9), method, min_elements=1, seed=4)


def custom(method):
    with strategy.scope():
        made = models.model()
        chosen = optimizer(method)
    models.loop(made, chosen, strategy, 10)
    state = aggregator_of(chosen).state
    return {
        "sha": models.sha(made),
        "step": state.step,
        "workers": list(state.workers),
        "size": state.size,
    }


def fitted(method):
    data = tf.data.Dataset.from_tensor_slices(models.data(10)).batch(models.ROWS).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = data.with_options(options)
    made = models.compiled(lambda: optimizer(method), strategy, metrics=["mae"])
    keywords = {"validation_data": data, "validation_steps": 2, "verbose": 0}
    history = made.fit(data, steps_per_epoch=10, **keywords)
    return {"sha": models.sha(made), "history": history.history}


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
    if method in FITTED:
        print(json.dumps({"fit": method, **fitted(method)}))
print(json.dumps({"nan": nan_on_worker_1()}))
