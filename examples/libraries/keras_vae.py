"""A variational autoencoder in Keras 3 with a `train_step` of its own, on scikit-learn's digits.

python -m grace_tf run -np 2 examples/libraries/keras_vae.py
"""

import keras
import numpy as np
import tensorflow as tf
from comparison import Trained, compare
from keras import layers, ops
from sklearn.datasets import load_digits

import grace_tf

LATENT = 4


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(2 * LATENT),
            ]
        )
        self.decoder = keras.Sequential(
            [
                keras.Input((LATENT,)),
                layers.Dense(4 * 4 * 16, activation="relu"),
                layers.Reshape((4, 4, 16)),
                layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu"),
                layers.Conv2D(1, 3, padding="same"),
            ]
        )
        self.noise = keras.random.SeedGenerator()
        self.seen = [keras.metrics.Mean(name) for name in ("loss", "reconstruction", "divergence")]

    @property
    def metrics(self):
        return self.seen

    def losses_of(self, images, noise):
        """The losses of a batch: their sum, the reconstruction, the divergence from N(0, 1)."""
        mean, log_variance = ops.split(self.encoder(images), 2, axis=-1)
        logits = self.decoder(mean + ops.exp(log_variance / 2) * noise)
        entropy = ops.binary_crossentropy(images, logits, from_logits=True)
        reconstruction = ops.mean(ops.sum(entropy, axis=(1, 2, 3)))
        squares = ops.square(mean) + ops.exp(log_variance) - 1 - log_variance
        divergence = ops.mean(ops.sum(squares, axis=-1)) / 2
        return reconstruction + divergence, reconstruction, divergence

    def train_step(self, images):
        noise = keras.random.normal((ops.shape(images)[0], LATENT), seed=self.noise)
        with tf.GradientTape() as tape:
            losses = self.losses_of(images, noise)
        grads = tape.gradient(losses[0], self.trainable_weights)
        self.optimizer.apply(grads, self.trainable_weights)
        for metric, value in zip(self.seen, losses):
            metric.update_state(value)
        return {metric.name: metric.result() for metric in self.seen}


def train(method: str, seed: int) -> Trained:
    keras.utils.set_random_seed(2 * seed + grace_tf.rank())
    images = (load_digits().images / 16).astype("float32")[..., None]
    data = grace_tf.shard(tf.data.Dataset.from_tensor_slices(images[360:]))

    model = Autoencoder()
    model.compile(optimizer=grace_tf.wrap(keras.optimizers.Adam(3e-3), method))
    batches = data.shuffle(1000).batch(32, drop_remainder=True)
    model.fit(batches, epochs=40, shuffle=False, verbose=0)

    noise = np.random.default_rng(0).normal(size=(360, LATENT)).astype("float32")
    loss = float(model.losses_of(images[:360], noise)[0])
    mean = images[:360].mean(axis=0)  # of each pixel
    entropy = ops.binary_crossentropy(images[:360], np.broadcast_to(mean, images[:360].shape))
    chance = float(ops.mean(ops.sum(entropy, axis=(1, 2, 3))))
    sent = grace_tf.keras.aggregator_of(model.optimizer).bytes_per_step
    return Trained(loss, chance, model.trainable_weights, sent)


if __name__ == "__main__":
    compare(train, "Keras: a variational autoencoder, nats a digit")
