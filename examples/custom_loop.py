"""A training loop of one's own: GradientTape and `grace_tf.Aggregator`, in any number of processes.

    python -m grace_tf run -np 2 examples/custom_loop.py

Alone the same codec runs on the gradients of one worker.
"""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import grace_tf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="topk:ratio=0.05")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    grace_tf.init()
    keras.utils.set_random_seed(grace_tf.rank())  # different weights: broadcast() makes them equal
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    x, x_test, y, y_test = train_test_split(images, labels, test_size=360, random_state=1)
    train = tf.data.Dataset.from_tensor_slices((x, y))
    data = grace_tf.shard(train).shuffle(len(x), seed=1).batch(32, drop_remainder=True)

    hidden = keras.layers.Dense(256, activation="relu")
    model = keras.Sequential([keras.Input((64,)), hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    aggregate = grace_tf.Aggregator(options.method, model.trainable_variables)
    grace_tf.broadcast(model.variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = model.trainable_variables
        grads = aggregate(tape.gradient(value, variables), variables)
        for variable, grad in zip(variables, grads):
            variable.assign_sub(0.3 * grad)
        return value

    for epoch in range(options.epochs):
        for x, y in data:
            value = step(x, y)
        if grace_tf.rank() == 0:
            print(f"epoch {epoch + 1}: loss {float(value):.4f}", flush=True)
    if grace_tf.rank() == 0:
        accuracy = (model(x_test).numpy().argmax(-1) == y_test).mean()
        print(f"test accuracy {accuracy:.4f}, {aggregate.bytes_per_step} bytes per step")


if __name__ == "__main__":
    main()
