"""Two workers of which one compiles otherwise.

compiled.py group|strategy FAULT    `fit`: worker 1 compiles otherwise, before the first training
                                    or, with "layer" and "again", before the second; or it has half
                                    as many batches
compiled.py group batches           `train_on_batch`: worker 1 compiles anew after some batches
compiled.py loop plan|scaled        a custom loop: after some steps worker 1 trains another variable
                                    or inside a LossScaleOptimizer
"""

import sys

import tensorflow as tf

ENGINE, FAULT = sys.argv[1:3]
TIMEOUT = 100  # nobody may wait so long
if ENGINE == "strategy":  # before anything else runs
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=TIMEOUT
        )
    )

import keras  # noqa: E402
import numpy as np  # noqa: E402

import grace_tf  # noqa: E402

if ENGINE == "strategy":
    rank = strategy.cluster_resolver.task_id
else:
    rank = grace_tf.init(timeout=TIMEOUT).rank
    strategy = tf.distribute.get_strategy()
X = np.random.default_rng(0).normal(size=[48, 8]).astype(np.float32)
HERE = FAULT if rank == 1 else ""


def wrapped():
    return grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd", min_elements=1)


def scaling(optimizer):
    legacy = getattr(keras, "mixed_precision", None)  # of Keras 2
    return getattr(
        legacy, "LossScaleOptimizer", keras.optimizers.__dict__.get("LossScaleOptimizer")
    )(optimizer)


def compiled(model, optimizer):
    with strategy.scope():
        model.compile(
            scaling(optimizer) if HERE == "loss scale" else optimizer,
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
    with strategy.scope():
        model = compiled(keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)]), wrapped())
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
    weights = [tf.Variable(tf.zeros([64]), name=name) for name in "ab"]
    plain = wrapped()
    plain.build(weights)
    train, trained = plain, weights
    for i in range(6):
        if HERE and i == 3:
            train, trained = (plain, weights[1:]) if HERE == "plan" else (scaling(plain), weights)

        @tf.function(autograph=False)
        def step(train=train, trained=trained):
            train.apply_gradients([(tf.ones([64]), w) for w in trained])

        step()


{"loop": loop}.get(ENGINE, by_batch if FAULT == "batches" else fit)()
print("trained", flush=True)
