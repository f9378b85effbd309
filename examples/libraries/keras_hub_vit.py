"""KerasHub: a small vision transformer with random weights tells scikit-learn's digits.

python -m grace_tf run -np 2 examples/libraries/keras_hub_vit.py
"""

import math

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from comparison import Trained, compare
from sklearn.datasets import load_digits

import grace_tf


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 16, 16, 3] from -1 to 1, and their digits."""
    images, labels = load_digits(return_X_y=True)
    images = np.kron(images.reshape(-1, 8, 8) / 8 - 1, np.ones((2, 2)))
    return np.repeat(images[..., None], 3, axis=-1).astype("float32"), labels.astype("int32")


def train(method: str, seed: int) -> Trained:
    keras.utils.set_random_seed(2 * seed + grace_tf.rank())
    x, y = digits()
    data = grace_tf.shard(tf.data.Dataset.from_tensor_slices((x[360:], y[360:])))

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(16, 16, 3),
        patch_size=4,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        mlp_dim=128,
    )
    model = keras_hub.models.ViTImageClassifier(backbone, num_classes=10)
    model.compile(
        optimizer=grace_tf.wrap(keras.optimizers.AdamW(1e-3), method),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    batches = data.shuffle(2000).batch(16, drop_remainder=True)
    model.fit(batches, epochs=40, shuffle=False, verbose=0)

    loss = model.evaluate(x[:360], y[:360], return_dict=True, verbose=0)["loss"]
    sent = grace_tf.keras.aggregator_of(model.optimizer).bytes_per_step
    return Trained(loss, math.log(10), model.trainable_weights, sent)


if __name__ == "__main__":
    compare(train, "KerasHub: a vision transformer, crossentropy of digits")
