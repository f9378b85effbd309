"""Two workers of a MultiWorkerMirroredStrategy; prints lines of JSON.

multiworker.py           custom loops (cells.py runs fit)
multiworker.py differ    what the workers must not train on: the sentence of each
"""

import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import tensorflow as tf  # noqa: E402

DIFFER = sys.argv[1:] == ["differ"]
strategy = tf.distribute.MultiWorkerMirroredStrategy(  # before anything else runs
    communication_options=tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=10 if DIFFER else None
    )
)

import models  # noqa: E402
import numpy as np  # noqa: E402
from this_keras import keras  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.keras import aggregator_of  # noqa: E402

METHODS = ("none", "qsgd", "topk:ratio=0.1", "powersgd:rank=1", "signsgd", "natural>two_hop")
METHODS += () if models.KERAS_3 else ("legacy topk:ratio=0.2",)
rank = strategy.cluster_resolver.task_id


def custom(method):
    with strategy.scope():
        made = models.model()
        chosen = models.sgd_by_name(method)
    models.loop(made, chosen, strategy, 10)
    state = aggregator_of(chosen).state
    return {
        "sha": models.sha(made),
        "step": state.step,
        "workers": list(state.workers),
        "size": state.size,
    }


def embedded(wrapped):
    """The weights after Adam has seen sparse gradients, wrapped so."""
    with strategy.scope():
        made = models.embedding()
        chosen = wrapped(keras.optimizers.Adam(0.01))
    models.embedding_loop(made, chosen, strategy)
    return models.sha(made)


def embeddings():
    """Weights after: no wrapping, `none`, plain rows beside compressed lanes, compressed rows."""
    mixed = {"memory": "none", "exclude": ".*table.*", "min_elements": 1}
    return [
        embedded(lambda adam: adam),
        embedded(lambda adam: grace_tf.wrap(adam, "none")),
        embedded(lambda adam: grace_tf.wrap(adam, "topk:ratio=1.0", **mixed)),
        embedded(lambda adam: grace_tf.wrap(adam, "none", memory="residual", min_elements=1)),
    ]


def rows():
    return {method: numbers_of_rows(method) for method in ("bf16", "topk:ratio=1.0")}


def numbers_of_rows(method):
    """Sums of what comes of ones, with other numbers of rows in each step, none among them."""
    with strategy.scope():
        table = tf.Variable(tf.zeros([500, 8]))
        aggregate = grace_tf.Aggregator(method, min_elements=1, memory="none")

    def one(count):
        def replica():
            values, rows = tf.ones([count, 8]), tf.range(count) + rank
            (total,) = aggregate([tf.IndexedSlices(values, rows, tf.constant([500, 8]))], [table])
            return tf.reduce_sum(tf.convert_to_tensor(total))

        return strategy.run(replica)

    step = tf.function(one, input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
    loop = tf.function(lambda counts: tf.map_fn(one, counts, fn_output_signature=tf.float32))
    mine = [(0, 0), (5, 0), (0, 70), (3, 3), (0, 0)]
    mine = [counts[rank] for counts in mine]
    return [[float(step(n)) for n in mine], loop(tf.constant(mine)).numpy().tolist()]


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


def one_overflows():
    """A custom loop with loss scaling; worker 1 overflows as float16 in the third of five steps.

    Returns what `scaled_loop` returns of this training, and of the same training without that step.
    """
    return [scaled_loop([1, 2, 1e8, 3, 4]), scaled_loop([1, 2, 3, 4])]


def scaled_loop(factors):
    """Trains a variable for a step with each factor.  Returns its values, the scale and the steps.

    In each step, worker 1 multiplies its gradient by the factor.  Worker 0 does so too, but by 4 at
    most.  So a large factor overflows on worker 1 alone.
    """
    with strategy.scope():
        variable = tf.Variable(tf.zeros([8]))
        inner = grace_tf.wrap(keras.optimizers.SGD(0.1), "fp16", min_elements=1)
        scaled = models.loss_scaled(inner, initial_scale=2.0**10)

    def replica(factor):
        with tf.GradientTape() as tape:
            value = models.scaled_loss(scaled, factor * tf.reduce_sum(tf.range(8.0) * variable))
        models.apply_scaled(scaled, [(tape.gradient(value, variable), variable)])

    step = tf.function(lambda factor: strategy.run(replica, (factor,)))
    for factor in factors:
        step(tf.constant(factor if rank == 1 else min(factor, 4), tf.float32))
    return {
        "weights": variable.numpy().tolist(),
        "scale": models.scale_of(scaled),
        "step": aggregator_of(inner).state.step,
    }


def sentence(reduce):
    """What a step of `reduce(gradients, variables)` in the replica context raises."""
    with strategy.scope():
        variable = tf.Variable(tf.zeros([2000]))

    @tf.function(autograph=False)  # which would wrap the sentence in a traceback
    def step():
        strategy.run(lambda: reduce([tf.ones([2000])], [variable]))

    try:
        step()
    except (RuntimeError, tf.errors.OpError) as error:
        return {"error": type(error).__name__, "sentence": str(error)}
    return {"error": None}


def applying(chosen):
    return sentence(lambda grads, variables: chosen.apply_gradients(zip(grads, variables)))


def wrapped(*method, **keywords):
    with strategy.scope():
        return grace_tf.wrap(keras.optimizers.SGD(1.0), *method, **keywords)


def differ():
    say("equal", applying(wrapped("qsgd")))
    say("seed", applying(wrapped("qsgd", seed=rank)))
    say("plan", applying(wrapped(["qsgd", "fp16"][rank])))
    say("reduce", sentence(grace_tf.Aggregator("fp16", reduce=["sum", "mean"][rank])))
    chosen = wrapped("qsgd")
    say("wrapped once", applying(chosen if rank == 0 else grace_tf.unwrap(chosen)))


def say(name, told):
    print(json.dumps({name: told}), flush=True)


def train():
    for method in METHODS:
        print(json.dumps({"custom": method, **custom(method)}))
    say("embeddings", embeddings())
    say("rows", rows())
    say("nan", nan_on_worker_1())
    say("overflow", one_overflows())


differ() if DIFFER else train()
