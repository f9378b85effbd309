"""A worker that trains with "auto"; prints the choice and a digest of the weights.

chooses.py group      one plain process per worker, a loop of its own, half eager and half traced
chooses.py strategy   MultiWorkerMirroredStrategy and `fit`
chooses.py short      one plain process per worker and three short calls of `fit`, on a network on
                      which "eden" is said to be worth a trial
"""

import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

strategy = None
if sys.argv[1] == "strategy":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs

from digests import digest  # noqa: E402
from schedule_cases import gradients_of  # noqa: E402
from this_keras import keras  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.aggregation.choice import foresight, pruning, tuner  # noqa: E402
from grace_tf.aggregation.choice.pruning import Foreseen  # noqa: E402
from grace_tf.keras import aggregator_of  # noqa: E402


def looped():
    """A loop of 150 steps; after the 20th it is traced."""
    grace_tf.init()
    variable = tf.Variable(tf.zeros([48, 40]), name="v")
    aggregate = grace_tf.Aggregator("auto:quality=aggressive", min_elements=1)

    def step(gradient):
        variable.assign_sub(aggregate([gradient], [variable])[0])

    traced = tf.function(step, autograph=False)
    for i in range(150):
        (gradient,) = gradients_of(i, grace_tf.rank(), (48, 40))
        (step if i < 20 else traced)(gradient)
    return aggregate, [variable]


def fitted():
    """`fit` of 240 steps, in which the network is measured."""
    pruning.measuring_pays = lambda *_: True
    with strategy.scope():
        model, optimizer = compiled()
    model.fit(*data(), batch_size=8, epochs=2, verbose=0)
    return aggregator_of(optimizer), [strategy.experimental_local_results(model.weights[0])[0]]


def short():
    """Three times `fit` of 80 steps."""
    grace_tf.init()
    pruning.measuring_pays = lambda *_: True
    tuner.FAR = 0.0  # so `none` is dropped, whatever the machine does
    micros = enumerate((900_000, 500_000, 600_000, 200_000))
    seen = {arm: Foreseen(each, each, 0) for arm, each in micros}
    foresight.foresee = lambda *_: seen
    model, optimizer = compiled()
    for _ in range(3):
        model.fit(*(each[:640] for each in data()), batch_size=8, shuffle=False, verbose=0)
    return aggregator_of(optimizer), [model.trainable_variables[0]]


def compiled():
    """A model and its optimizer."""
    model = keras.Sequential([keras.layers.Input([40]), keras.layers.Dense(48)])
    optimizer = grace_tf.wrap(keras.optimizers.SGD(0.01), "auto", min_elements=1)
    model.compile(optimizer=optimizer, loss="mse")
    return model, optimizer


def data():
    draws = np.random.default_rng(5 + (grace_tf.rank() if strategy is None else 0))
    return [draws.normal(size=[960, n]).astype(np.float32) for n in (40, 48)]


aggregate, weights = {"group": looped, "strategy": fitted, "short": short}[sys.argv[1]]()
choice = aggregate._stages.tuner
answer = {
    "held": list(choice._traced),
    "measured": choice._foresight.measured,
    "reason": choice.reason,
    "agreements": choice.agreement._count,
}
answer["saved"] = aggregate.state.choices[0].numpy().tolist()
print(json.dumps({**answer, "bits": digest([tf.convert_to_tensor(weights[0])])}))
