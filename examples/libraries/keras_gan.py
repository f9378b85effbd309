"""A generative adversarial network in Keras 3: a `train_step` with two optimizers, on digits.

    python -m grace_tf run -np 2 examples/libraries/keras_gan.py

The loss that is reported is the Fréchet distance of pixels between made digits and real ones.
"""

import keras
import numpy as np
import tensorflow as tf
from comparison import Trained, compare
from keras import layers, ops
from sklearn.datasets import load_digits

import grace_tf

LATENT = 16


def make_generator() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((LATENT,)),
            layers.Dense(2 * 2 * 32),
            layers.LeakyReLU(0.2),
            layers.Reshape((2, 2, 32)),
            layers.Conv2DTranspose(32, 4, strides=2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ],
        name="generator",
    )


def make_discriminator() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 4, strides=2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Dropout(0.4),  # without it the distance does not become smaller
            layers.Conv2D(64, 4, strides=2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Dropout(0.4),
            layers.Flatten(),
            layers.Dense(1),
        ],
        name="discriminator",
    )


class Adversaries(keras.Model):
    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.noise = keras.random.SeedGenerator()

    def compile(self, generator_optimizer, discriminator_optimizer):
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def made(self, count):
        noise = keras.random.normal((count, LATENT), seed=self.noise)
        return self.generator(noise, training=True)

    def train_step(self, real):
        count = ops.shape(real)[0]
        both = ops.concatenate([self.made(count), real], axis=0)
        labels = ops.concatenate([ops.zeros((count, 1)), ops.ones((count, 1))], axis=0)
        with tf.GradientTape() as tape:
            told_apart = self.loss_fn(labels, self.discriminator(both, training=True))
        weights = self.discriminator.trainable_weights
        self.discriminator_optimizer.apply(tape.gradient(told_apart, weights), weights)

        with tf.GradientTape() as tape:
            judged = self.discriminator(self.made(count), training=True)
            fooled = self.loss_fn(ops.ones((count, 1)), judged)
        weights = self.generator.trainable_weights
        self.generator_optimizer.apply(tape.gradient(fooled, weights), weights)
        return {"told_apart": told_apart, "fooled": fooled}


def frechet_distance(one: np.ndarray, other: np.ndarray) -> float:
    """Between two sets of images, each taken for a normal distribution of their pixels."""
    one, other = (x.reshape(len(x), -1).astype(np.float64) for x in (one, other))
    between = np.cov(one, rowvar=False) @ np.cov(other, rowvar=False)
    roots = np.sqrt(np.linalg.eigvals(between).real.clip(0)).sum()
    spread = one.var(axis=0, ddof=1).sum() + other.var(axis=0, ddof=1).sum()
    return float(np.square(one.mean(0) - other.mean(0)).sum() + spread - 2 * roots)


def train(method: str, seed: int) -> Trained:
    keras.utils.set_random_seed(2 * seed + grace_tf.rank())
    images = (load_digits().images / 16).astype("float32")[..., None]
    data = grace_tf.shard(tf.data.Dataset.from_tensor_slices(images[360:]))

    model = Adversaries(make_generator(), make_discriminator())
    # Rounding noise of their own: the two optimizers have different seeds.
    optimizers = [
        grace_tf.wrap(keras.optimizers.Adam(1e-3, beta_1=0.5), method, seed=i) for i in range(2)
    ]
    model.compile(*optimizers)
    batches = data.shuffle(1000).batch(32, drop_remainder=True)
    noise = np.random.default_rng(0).normal(size=(1000, LATENT)).astype("float32")

    def distance():
        return frechet_distance(model.generator.predict(noise, verbose=0), images[:360])

    chance = distance()
    model.fit(batches, epochs=100, shuffle=False, verbose=0)

    loss = distance()
    sent = sum(grace_tf.keras.aggregator_of(each).bytes_per_step for each in optimizers)
    return Trained(loss, chance, model.trainable_weights, sent)


if __name__ == "__main__":
    compare(train, "Keras: a generative adversarial network, Fréchet distance of pixels")
