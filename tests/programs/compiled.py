"""Two workers of which one compiles otherwise.

compiled.py group|strategy FAULT    `fit`: worker 1 compiles otherwise, before the first training
                                    or, with "layer" and "again", before the second; or it has half
                                    as many batches
compiled.py strategy FAULT          the same with "rate", "width" or "optimizer", which the making
                                    of variables shows; "killed": worker 0 is, before the scope
compiled.py group batches           `train_on_batch`: worker 1 compiles anew after some batches
compiled.py loop plan|scaled        a custom loop: after some steps worker 1 trains another variable
                                    or inside a LossScaleOptimizer
compiled.py strategy plan           the same under the strategy
compiled.py strategy again 0        worker 0 compiles again, in place of worker 1
"""

import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import tensorflow as tf  # noqa: E402

ENGINE, FAULT = sys.argv[1:3]
TIMEOUT = 100  # nobody may wait so long
if ENGINE == "strategy":  # before anything else runs
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=TIMEOUT
        )
    )

import numpy as np  # noqa: E402
from models import loss_scaled  # noqa: E402
from this_keras import keras  # noqa: E402

import grace_tf  # noqa: E402

if ENGINE == "strategy":
    rank = strategy.cluster_resolver.task_id
else:
    rank = grace_tf.init(timeout=TIMEOUT).rank
    strategy = tf.distribute.get_strategy()
X = np.random.default_rng(0).normal(size=[48, 8]).astype(np.float32)
FAULTY = int(sys.argv[3]) if len(sys.argv) > 3 else 1
HERE = FAULT if rank == FAULTY else ""


def wrapped():
    kind = keras.optimizers.Adam if HERE == "optimizer" else keras.optimizers.SGD
    return grace_tf.wrap(kind(0.2 if HERE == "rate" else 0.1), "qsgd", min_elements=1)


def compiled(model, optimizer):
    with strategy.scope():
        model.compile(
            loss_scaled(optimizer) if HERE == "loss scale" else optimizer,
            "mae" if HERE == "loss" else "mse",
            steps_per_execution=2 if HERE == "steps" else 1,
        )
    return model


def batches():
    data = tf.data.Dataset.from_tensor_slices((X, X[:, :4])).batch(
        16 if HERE == "batch size" else 8
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return data.with_options(options)


def fit():
    if HERE == "policy":
        keras.mixed_precision.set_global_policy("mixed_float16")
    if FAULT == "killed" and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with strategy.scope():
        hidden = [keras.layers.Dense(6 if HERE == "width" else 5)] * (FAULT == "width")
        layers = [keras.Input((8,)), *hidden, keras.layers.Dense(4)]
        model = compiled(keras.Sequential(layers), wrapped())
    if FAULT in ("layer", "again"):
        model.fit(batches(), verbose=0)
        if HERE == "layer":
            model.add(keras.layers.Dense(4))
        if HERE:
            compiled(model, wrapped())
    model.fit(batches(), epochs=2, verbose=0)


def by_batch():
    model = compiled(keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)]), wrapped())
    for i in range(6):
        if HERE and i == 3:
            compiled(model, wrapped())
        model.train_on_batch(X, X[:, :4])


def loop():
    with strategy.scope():
        weights = [tf.Variable(tf.zeros([64]), name=name) for name in "ab"]
        plain = wrapped()
        plain.build(weights)
    train, trained = plain, weights
    for i in range(6):
        if HERE and i == 3:
            changed = (plain, weights[1:]) if HERE == "plan" else (loss_scaled(plain), weights)
            train, trained = changed

        @tf.function(autograph=False)
        def step(train=train, trained=trained):
            strategy.run(lambda: train.apply_gradients([(tf.ones([64]), w) for w in trained]))

        step()


by_fault = {"batches": by_batch, "plan": loop, "scaled": loop}
by_fault.get(FAULT, fit)()
print("trained", flush=True)
