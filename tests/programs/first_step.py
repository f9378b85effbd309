"""Two workers whose first steps differ; prints lines of JSON, one per case.

first_step.py group    one plain process per worker: values that are taken, mistakes, lazy models
first_step.py mwms     MultiWorkerMirroredStrategy: the mistakes
"""

import json
import logging
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import tensorflow as tf  # noqa: E402

ENGINE = sys.argv[1]
if ENGINE == "mwms":  # before anything else runs
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(timeout_seconds=30)
    )
else:
    import grace_tf

    group = grace_tf.init(timeout=60)
    strategy = tf.distribute.get_strategy()

import models  # noqa: E402
import numpy as np  # noqa: E402
from digests import digest  # noqa: E402
from this_keras import keras  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.keras import aggregator_of  # noqa: E402
from grace_tf.line.inputs import local, plain  # noqa: E402

rank = strategy.cluster_resolver.task_id if ENGINE == "mwms" else group.rank
METHOD = "randomk:ratio=0.25"
KEYWORDS = {"jit_compile": False} if models.KERAS_3 else {}
said: list = []  # log lines of the case that runs


class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


logging.getLogger("grace_tf").addHandler(Said())


def case(name, run, *arguments):
    """Prints what a case returns, or the sentence with which it ends."""
    said.clear()
    told = {"case": name}
    try:
        told["sha"] = run(*arguments)
    except RuntimeError as error:
        told["sentence"] = str(error)
    print(json.dumps({**told, "said": list(said)}), flush=True)


def adam(rate=0.01, **settings):
    """An optimizer, wrapped, made where the strategy wants it."""
    with strategy.scope():
        return grace_tf.wrap(keras.optimizers.Adam(rate, **settings), METHOD, min_elements=1)


def variables(seed=0, name="w"):
    value = np.random.default_rng(seed).normal(size=[40]).astype(np.float32)
    with strategy.scope():
        return [tf.Variable(value, name=name)]


def train(weights, optimizer, steps=1):
    """Steps of a custom loop on every worker's own gradients; the digest of the weights."""

    @tf.function(autograph=False)  # which would wrap the sentence in a traceback
    def step(seed):
        def replica():
            grads = [tf.random.stateless_normal(w.shape, [rank, seed]) for w in weights]
            optimizer.apply_gradients(zip(grads, weights))

        strategy.run(replica)

    for number in range(steps):
        step(tf.constant(number))
    return sha(weights)


def sha(weights):
    return digest(local(plain(w)).numpy() for w in weights)


def mistakes():
    """What is made otherwise on worker 1."""
    case("rate", lambda: train(variables(), adam([0.01, 0.02][rank])))
    case("setting", lambda: train(variables(), adam(beta_1=[0.9, 0.8][rank])))
    decay = keras.optimizers.schedules.ExponentialDecay
    case("schedule", lambda: train(variables(), adam(decay(0.1, [10, 20][rank], 0.9))))
    pairs = [(variables(0, "a"), adam()), (variables(1, "b"), adam())]
    weights, chosen = pairs[rank]
    case("order", train, weights, chosen)


def other_optimizer():
    """Last, since a strategy's workers make unequal numbers of variables in it."""
    other = [keras.optimizers.Adam, keras.optimizers.SGD][rank]
    with strategy.scope():
        chosen = grace_tf.wrap(other(0.01), METHOD, min_elements=1)
    case("optimizer", train, variables(), chosen)


def trained(steps):
    """A folder with a checkpoint of this worker after so many steps."""
    weights, chosen = variables(), adam()
    train(weights, chosen, steps)
    return checkpoint(weights, chosen).write(f"{tempfile.mkdtemp()}/{rank}")


def checkpoint(weights, optimizer):
    return tf.train.Checkpoint(weights=weights, optimizer=optimizer)


def resumed(path, broadcast=False):
    weights, chosen = variables(rank if ENGINE == "group" else 0), adam()
    if path:
        checkpoint(weights, chosen).read(path)
    if broadcast:
        chosen.build(weights)
        own = chosen.variables
        grace_tf.broadcast([*weights, *(own() if callable(own) else own)])
    told = train(weights, chosen, 3)
    assert aggregator_of(chosen).state.step in (3, 11, 13)
    return told


def restored():
    early, late = trained(8), trained(10)
    case("all restored", resumed, late)
    case("only worker 0 restored", resumed, late if rank == 0 else None)
    case("only worker 1 restored", resumed, late if rank == 1 else None)
    case("files of different steps", resumed, [late, early][rank])
    if ENGINE == "group":
        case("worker 0 restored and broadcast", resumed, late if rank == 0 else None, True)


def fitted(path=""):
    """The digest after an eager `fit`, and the steps of all of them, also of a restored file."""
    made = models.model(seed=1 + rank)
    made.compile(grace_tf.wrap(keras.optimizers.SGD(0.1), METHOD, min_elements=1), "mse")
    made.run_eagerly = True
    made.optimizer.build(made.trainable_variables)
    if path:
        made.load_weights(path)
    models.fit(made, 3)
    return made, f"{sha(made.weights)} {aggregator_of(made.optimizer).state.step}"


def restored_in_eager_fit():
    made, _ = fitted()
    path = f"{tempfile.mkdtemp()}/{rank}.weights.h5"
    made.save_weights(path)
    case("fit, only worker 0 restored", lambda: fitted(path if rank == 0 else "")[1])


class Own(keras.Model):
    """A subclassed model whose layers are built by their first call."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(16, "tanh"), keras.layers.Dense(4)

    def call(self, x):
        return self.out(self.hidden(x))


def lazy(make, **keywords):
    made = make()
    made.compile(grace_tf.wrap(keras.optimizers.Adam(), METHOD, min_elements=1), "mse", **KEYWORDS)
    made.run_eagerly = keywords.pop("eager", False)
    x, y = models.data(4, seed=rank)
    made.fit(x, y, batch_size=24, epochs=2, verbose=0, **keywords)
    return sha(made.weights)


def sequential():
    return keras.Sequential([keras.layers.Dense(16, "tanh"), keras.layers.Dense(4)])


def frozen():
    """Transfer learning: what is frozen differs, and no optimizer knows it."""
    base = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh")])
    base.trainable = False
    return keras.Sequential([keras.Input((8,)), base, keras.layers.Dense(4)])


def with_aggregator(empty):
    """A custom loop whose model is made in its first traced step."""
    net, aggregate = sequential(), grace_tf.Aggregator(METHOD, min_elements=1)
    x, y = map(tf.constant, models.data(1, seed=rank))
    if empty:
        grace_tf.broadcast(net.variables)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(net(x) - y))
        weights = net.trainable_variables
        for w, g in zip(weights, aggregate(tape.gradient(loss, weights), weights)):
            w.assign_sub(0.1 * g)

    for _ in range(3):
        step()
    return sha(net.weights)


def accumulated(batches, eager=False):
    """Trains in a call of `fit` for each of these numbers of batches; two make one step."""
    made = models.model()
    sgd = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    made.compile(grace_tf.wrap(sgd, METHOD, min_elements=1), "mse", **KEYWORDS)
    made.run_eagerly = eager
    x, y = models.data(sum(batches), seed=rank)
    for count in batches:
        made.fit(
            *(x[: 24 * count], y[: 24 * count]),
            **dict(batch_size=24, shuffle=False, verbose=0),
        )
        x, y = x[24 * count :], y[24 * count :]
    return sha(made.weights)


def own_gradients():
    case("accumulated", accumulated, [6])
    case("accumulated in two calls", accumulated, [3, 3])
    case("accumulated eagerly", accumulated, [6], True)


def without_seeds():
    case("sequential", lazy, sequential)
    case("subclassed", lazy, Own)
    case("frozen", lazy, frozen)
    case("callback", lambda: lazy(sequential, callbacks=[grace_tf.keras.Callback()]))
    case("aggregator", with_aggregator, False)
    try:
        with_aggregator(True)
    except ValueError as error:
        print(json.dumps({"case": "empty broadcast", "sentence": str(error)}), flush=True)


mistakes()
restored()
if ENGINE == "group":
    restored_in_eager_fit()
    without_seeds()
    if models.KERAS_3:
        own_gradients()
other_optimizer()
