"""`model.fit` under MirroredStrategy with compressed gradients: two virtual CPU devices.

    python examples/mirrored.py --method topk:ratio=0.05

On a machine with GPUs leave `split_the_cpu` and the devices out: MirroredStrategy takes all GPUs.
"""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import grace_tf


def split_the_cpu(devices: int) -> tf.distribute.Strategy:
    """A strategy over virtual CPU devices; must come before TensorFlow runs anything."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(cpu, parts)
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(devices)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="qsgd")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    strategy = split_the_cpu(2)
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    x, x_test, y, y_test = train_test_split(images, labels, test_size=360, random_state=1)
    # Batches of 64 are for both devices together.
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(64)
    with strategy.scope():
        model = build()
        optimizer = grace_tf.wrap(
            keras.optimizers.SGD(0.05, momentum=0.9), options.method, min_elements=256
        )
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(train, epochs=options.epochs, shuffle=False, verbose=2)
    test = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(64)
    _, accuracy = model.evaluate(test, verbose=0)
    sent = grace_tf.keras.aggregator_of(optimizer).bytes_per_step
    print(f"{options.method}: test accuracy {accuracy:.4f}, {sent} bytes per replica and step")


if __name__ == "__main__":
    main()
