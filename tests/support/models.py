"""A small model, its data and its trainings, for the tests of the Keras and tf.distribute doors."""

import contextlib
import pathlib
import subprocess
import sys

import numpy as np
import tensorflow as tf
from digests import digest
from this_keras import KERAS_3, keras

import grace_tf

ROWS = 24  # of a global batch: divisible by 1, 2 and 3 replicas


def data(batches=1, rows=ROWS, seed=0):
    """(x, y) of a regression that can be learnt."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=[batches * rows, 8]).astype(np.float32)
    y = np.tanh(x @ draw.normal(size=[8, 4])).astype(np.float32)
    return x, y


def model(seed=1):
    """Dense(16) and Dense(4) on 8 inputs, with the same weights for the same seed."""
    first = keras.initializers.GlorotUniform(seed=seed)
    second = keras.initializers.GlorotUniform(seed=seed + 1)
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "tanh", kernel_initializer=first),
            keras.layers.Dense(4, kernel_initializer=second),
        ]
    )


def tokens(batches=12, workers=1, rows=6, seed=0):
    """(x, y) of a task on sentences of 5 tokens, of which many repeat; leading axis: batches."""
    draw = np.random.default_rng(seed)
    x = draw.integers(0, 9, [batches, workers, rows, 5]).astype(np.int32)
    y = draw.normal(size=[batches, workers, rows, 4]).astype(np.float32)
    return x, y


def embedding(seed=1):
    """An Embedding of 40 rows, whose gradient is IndexedSlices, and a Dense(4)."""
    table = keras.initializers.RandomUniform(seed=seed)
    kernel = keras.initializers.GlorotUniform(seed=seed + 1)
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(40, 8, embeddings_initializer=table, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(4, kernel_initializer=kernel),
        ]
    )


def embedding_loop(made, optimizer, strategy, steps=12):
    """A custom training loop on sentences; replicas see different ones."""
    step = step_function(made, optimizer, strategy)
    for x, y in zip(*tokens(steps, strategy.num_replicas_in_sync)):
        step(tf.constant(x), tf.constant(y))


def loss_scaled(inner, **keywords):
    """The loss scaling optimizer of this Keras around `inner`."""
    if KERAS_3:
        return keras.optimizers.LossScaleOptimizer(inner, **keywords)
    return keras.mixed_precision.LossScaleOptimizer(inner, **keywords)


def scaled_loss(optimizer, loss):
    return optimizer.scale_loss(loss) if KERAS_3 else optimizer.get_scaled_loss(loss)


def apply_scaled(optimizer, pairs):
    """Applies gradients of a scaled loss, as the loop of a user of this Keras does."""
    grads, variables = zip(*pairs)
    if not KERAS_3:
        grads = optimizer.get_unscaled_gradients(grads)
    optimizer.apply_gradients(zip(grads, variables))


def scale_of(optimizer):
    return float((optimizer.dynamic_scale if KERAS_3 else optimizer.loss_scale).numpy())


def scope(strategy):
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def compiled(optimizer, strategy=None, make=model, **keywords):
    """A model compiled with `optimizer()`, both made in the strategy's scope."""
    with scope(strategy):
        made = make()
        made.compile(optimizer(), "mse", **keywords)
    return made


def sgd_by_name(name):
    """A wrapped SGD with momentum, of a name such as "qsgd", "natural>two_hop" or "legacy topk".

    After ">" stands the exchange.  "legacy" is the SGD of Keras 2's older optimizers.
    """
    kinds = keras.optimizers.legacy if name.startswith("legacy ") else keras.optimizers
    method, _, exchange = name.removeprefix("legacy ").partition(">")
    sgd = kinds.SGD(0.1, momentum=0.9)
    return grace_tf.wrap(sgd, method, exchange=exchange or "auto", min_elements=1, seed=4)


def fit(made, batches=20, epochs=1, rows=ROWS, seed=0, **keywords):
    x, y = data(batches, rows, seed)
    return made.fit(x, y, batch_size=rows, epochs=epochs, shuffle=False, verbose=0, **keywords)


def step_function(made, optimizer, strategy):
    """A traced step of a custom loop; takes (x, y) with a leading axis of replicas."""
    replicas = strategy.num_replicas_in_sync

    @tf.function
    def step(x, y):
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            mine, wanted = tf.gather(x, i), tf.gather(y, i)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(made(mine, training=True) - wanted)) / replicas
            grads = tape.gradient(loss, made.trainable_variables)
            optimizer.apply_gradients(zip(grads, made.trainable_variables))

        strategy.run(replica)

    return step


def loop(made, optimizer, strategy, steps=20):
    """A custom training loop; replicas see different rows."""
    replicas = strategy.num_replicas_in_sync
    step = step_function(made, optimizer, strategy)
    x, y = (tf.reshape(a, [steps, replicas, -1, a.shape[-1]]) for a in data(steps))
    for i in range(steps):
        step(x[i], y[i])


def replicas_of(variable):
    """The values of a variable on every replica."""
    plain = getattr(variable, "_value", variable)
    return [component.numpy() for component in getattr(plain, "values", (plain,))]


def on_replica(variables, replica):
    """The values of variables on one replica."""
    rows = map(replicas_of, variables)
    return [each[replica if len(each) > 1 else 0] for each in rows]


def sha(made, replica=0):
    """A digest of the weights of one replica."""
    return digest(on_replica(made.variables, replica))


def shas(made, strategy):
    """The digests of the weights of all replicas."""
    count = 1 if strategy is None else strategy.num_replicas_in_sync
    return [sha(made, i) for i in range(count)]


def slots(optimizer):
    """The optimizer's own variables, in all Keras generations."""
    own = optimizer.variables
    return [
        np.array(v.numpy()) for v in (own() if callable(own) and not isinstance(own, list) else own)
    ]


def program(name, *arguments):
    """The last line that a program of tests/programs prints, run in a fresh process."""
    file = pathlib.Path(__file__).parents[1] / "programs" / name
    done = subprocess.run(
        [sys.executable, str(file), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]
