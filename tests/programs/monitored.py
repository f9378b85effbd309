"""Two workers that measure their steps; prints lines of JSON.

monitored.py group | strategy    plain processes (or Horovod's), or MultiWorkerMirroredStrategy
monitored.py alone               a Monitor on worker 0 only: the sentence that ends both
"""

import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import tensorflow as tf  # noqa: E402

ENGINE = sys.argv[1]
strategy = tf.distribute.get_strategy()
if ENGINE == "strategy":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs

import models  # noqa: E402
import numpy as np  # noqa: E402
from this_keras import keras  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.keras import Monitor  # noqa: E402

if ENGINE == "strategy":
    rank, size = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
else:
    group = grace_tf.init(timeout=60)
    rank, size = group.rank, group.size

METHODS = ("qsgd", "topk:ratio=0.1", "powersgd", "signsgd")
SHAPES = ((300, 200), (70,))  # more elements than a sketch has sums
STEPS = 5


def gradient(worker, step):
    draw = np.random.default_rng([worker, step])
    return [draw.normal(size=shape).astype(np.float32) for shape in SHAPES]


def measured(method, exact):
    """The metrics of a loop beside what NumPy makes of its gradients and aggregates."""
    with strategy.scope():
        variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    aggregate = grace_tf.Aggregator(method, min_elements=1, reduce="mean")
    aggregate.measure(every=2, exact=exact)

    @tf.function(autograph=False)
    def step(*grads):
        got = strategy.run(lambda *each: aggregate(each, variables), grads)
        return [strategy.experimental_local_results(each)[0] for each in got]

    for number in range(STEPS):
        totals = step(*map(tf.constant, gradient(rank, number)))
    mean = np.mean([_flat(gradient(w, STEPS - 1)) for w in range(size)], axis=0)
    got = _flat([total.numpy() for total in totals])
    error = float(np.sum((got - mean) ** 2) / np.sum(mean**2))
    if method == "signsgd":
        error = float(1 - np.dot(got, mean) ** 2 / (np.dot(got, got) * np.dot(mean, mean)))
    own, state = _flat(gradient(rank, STEPS - 1)), aggregate.state.arrays()
    left = [rows.ravel() for name, rows in state.items() if name.endswith("memory/residual")]
    ratio = float(np.linalg.norm(np.concatenate(left)) / np.linalg.norm(own)) if left else None
    told = grace_tf.explain(aggregate).as_dict()["step"]
    return {**aggregate.metrics(), "numpy": error, "norms": ratio, "told": told}


def _flat(arrays):
    return np.concatenate([each.ravel() for each in arrays]).astype(np.float64)


def fitted(monitors):
    """Trains with these callbacks.  Returns the SHA of the weights and Monitor's logs."""
    with strategy.scope():
        made = models.model()
        optimizer = grace_tf.wrap(keras.optimizers.SGD(0.1), "topk:ratio=0.1", min_elements=1)
        made.compile(optimizer, "mse", **({"jit_compile": False} if models.KERAS_3 else {}))
    history = models.fit(made, 8, epochs=2, callbacks=monitors)
    return models.sha(made), {k: v for k, v in history.history.items() if "grace" in k}


def say(**told):
    print(json.dumps(told), flush=True)


def train():
    for method in METHODS:
        for exact in (False, True):
            say(method=method, exact=exact, **measured(method, exact))
    plain, _ = fitted([])
    watched, logs = fitted([Monitor(every=3)])
    say(shas=[plain, watched], logs=logs)


if ENGINE == "alone":
    fitted([Monitor(every=3)] if rank == 0 else [])
    say(trained=True)
else:
    train()
