"""write_files.py FOLDER   trains a little and writes the files that later versions must load.

Into FOLDER go, of the Keras that is there, a model with a wrapped optimizer, a checkpoint of an
Aggregator, the configuration of an optimizer with a schedule, and what further steps come to.
"""

import json
import os
import sys

import numpy as np

STEPS = 3


def batch(step):
    draw = np.random.default_rng(step)
    x = draw.normal(size=[8, 6]).astype(np.float32)
    return x, np.tanh(x[:, :2])


def model():
    from this_keras import keras

    import grace_tf

    keras.utils.set_random_seed(3)
    made = keras.Sequential([keras.layers.Input([6]), keras.layers.Dense(9), keras.layers.Dense(2)])
    sgd = keras.optimizers.SGD(0.125, momentum=0.5)
    optimizer = grace_tf.wrap(sgd, "topk:ratio=0.25@0/0.125@2", min_elements=1, seed=4)
    made.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    return made


def train(made, first):
    """Further steps; the weights after them."""
    for step in range(first, first + STEPS):
        made.train_on_batch(*batch(step))
    return [each.tolist() for each in made.get_weights()]


def aggregator():
    """(an Aggregator, its variables, and a checkpoint of it)."""
    import tensorflow as tf

    import grace_tf

    variables = [tf.Variable(tf.zeros([7, 5]), name="a"), tf.Variable(tf.zeros([40]), name="b")]
    aggregate = grace_tf.Aggregator("powersgd:rank=2", variables, min_elements=1, seed=5)
    return aggregate, variables, tf.train.Checkpoint(aggregator=aggregate)


def aggregated(aggregate, variables, first):
    import tensorflow as tf

    for step in range(first, first + STEPS):
        draw = np.random.default_rng(step)
        grads = [tf.constant(draw.normal(size=v.shape), tf.float32) for v in variables]
        found = aggregate(grads, variables)
    return [each.numpy().tolist() for each in found]


def main(folder):
    from this_keras import keras

    os.makedirs(folder, exist_ok=True)
    made = model()
    train(made, 0)
    made.save(os.path.join(folder, "model.keras"))
    aggregate, variables, checkpoint = aggregator()
    aggregated(aggregate, variables, 0)
    checkpoint.write(os.path.join(folder, "aggregator"))
    told = {
        "config": made.optimizer.get_config()["grace"],
        "model": train(made, STEPS),
        "aggregator": aggregated(aggregate, variables, STEPS),
        "keras": keras.__version__,
    }
    with open(os.path.join(folder, "told.json"), "w", encoding="utf-8") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main(sys.argv[1])
