"""Segmentation Models: trains a U-Net to find handwritten digits in noisy images.

Its encoder is a ResNet-18.  All weights start from random values.

python -m grace_tf run -np 2 examples/libraries/segmentation_unet.py
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Segmentation Models was written for Keras 2
os.environ["SM_FRAMEWORK"] = "tf.keras"

import numpy as np  # noqa: E402
import segmentation_models as sm  # noqa: E402
import tensorflow as tf  # noqa: E402
from comparison import Trained, compare  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

import grace_tf  # noqa: E402


def pictures(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a digit at a random place, and where the digit is."""
    draw = np.random.default_rng(0)
    digits = np.kron(load_digits().images / 16, np.ones((2, 2)))
    x = draw.uniform(0, 0.6, size=(count, 32, 32, 3)).astype("float32")
    y = np.zeros((count, 32, 32, 1), "float32")
    for picture, mask in zip(x, y):
        digit = digits[draw.integers(len(digits))]
        row, column = draw.integers(0, 17, size=2)
        place = slice(row, row + 16), slice(column, column + 16)
        picture[place] += 0.4 * digit[..., None]
        mask[place] = digit[..., None] > 0.3
    return x, y


def train(method: str, seed: int) -> Trained:
    tf.keras.utils.set_random_seed(2 * seed + grace_tf.rank())
    x, y = pictures(512)
    data = grace_tf.shard(tf.data.Dataset.from_tensor_slices((x[128:], y[128:])))

    model = sm.Unet(
        "resnet18",
        input_shape=(32, 32, 3),
        encoder_weights=None,
        decoder_filters=(64, 32, 32, 16, 16),
        activation="sigmoid",
    )
    for layer in model.layers:  # 240 steps are too few for averages of the last hundred
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.momentum = 0.9
    model.compile(
        optimizer=grace_tf.wrap(tf.keras.optimizers.Adam(1e-3), method),
        loss=sm.losses.bce_jaccard_loss,
    )
    chance = model.evaluate(x[:128], y[:128], verbose=0)
    model.fit(data.shuffle(400).batch(16, drop_remainder=True), epochs=20, verbose=0)

    loss = model.evaluate(x[:128], y[:128], verbose=0)
    sent = grace_tf.keras.aggregator_of(model.optimizer).bytes_per_step
    return Trained(loss, chance, model.trainable_variables, sent)


if __name__ == "__main__":
    compare(train, "Segmentation Models: a U-Net, crossentropy + Jaccard loss of masks")
