"""TensorFlow Probability: a network of Bayesian layers tells scikit-learn's digits.

python -m grace_tf run -np 2 examples/libraries/probability_flipout.py
"""

import math

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras
from comparison import Trained, compare
from sklearn.datasets import load_digits

import grace_tf

HELD_OUT, SAMPLES = 360, 20


def train(method: str, seed: int) -> Trained:
    tf_keras.utils.set_random_seed(2 * seed + grace_tf.rank())
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype("float32"), labels.astype("int32")
    seen = len(x) - HELD_OUT
    data = grace_tf.shard(tf.data.Dataset.from_tensor_slices((x[HELD_OUT:], y[HELD_OUT:])))

    def divergence(posterior, prior, _):
        return tfp.distributions.kl_divergence(posterior, prior) / seen

    bayesian = {"kernel_divergence_fn": divergence}
    model = tf_keras.Sequential(
        [
            tf_keras.Input((64,)),
            tfp.layers.DenseFlipout(64, activation="relu", **bayesian),
            tfp.layers.DenseFlipout(10, **bayesian),
        ]
    )
    crossentropy = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=grace_tf.wrap(tf_keras.optimizers.Adam(1e-2), method, min_elements=256),
        loss=crossentropy,  # Keras adds the layers' divergences: together the negative ELBO
    )
    model.fit(data.shuffle(2000).batch(32, drop_remainder=True), epochs=20, verbose=0)

    tf_keras.utils.set_random_seed(0)  # every worker draws the same weights
    drawn = [tf.nn.softmax(model(x[:HELD_OUT])) for _ in range(SAMPLES)]
    chances = np.mean(drawn, axis=0)[np.arange(HELD_OUT), y[:HELD_OUT]]
    sent = grace_tf.keras.aggregator_of(model.optimizer).bytes_per_step
    loss = float(-np.log(chances).mean())
    return Trained(loss, math.log(10), model.trainable_variables, sent)


if __name__ == "__main__":
    compare(train, "TensorFlow Probability: Bayesian layers, crossentropy of digits")
