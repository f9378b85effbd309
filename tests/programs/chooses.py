"""A worker that trains with "auto"; prints the choice and a digest of the weights.

chooses.py group      one plain process per worker, a loop of its own, half eager and half traced
chooses.py strategy   MultiWorkerMirroredStrategy and `fit`
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

from schedule_cases import digest, gradients_of  # noqa: E402
from this_keras import keras  # noqa: E402

import grace_tf  # noqa: E402
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
    """`fit` of 240 steps."""
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([40]), keras.layers.Dense(48)])
        optimizer = grace_tf.wrap(keras.optimizers.SGD(0.01), "auto", min_elements=1)
        model.compile(optimizer=optimizer, loss="mse")
    draws = np.random.default_rng(5)
    x, y = (draws.normal(size=[960, n]).astype(np.float32) for n in (40, 48))
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return aggregator_of(optimizer), [strategy.experimental_local_results(model.weights[0])[0]]


aggregate, weights = looped() if strategy is None else fitted()
tuner = aggregate._stages.tuner
answer = {"reason": tuner.reason, "agreements": tuner.agreement._count}
answer["saved"] = aggregate.state.choices[0].numpy().tolist()
print(json.dumps({**answer, "bits": digest(tf.convert_to_tensor(weights[0]))}))
