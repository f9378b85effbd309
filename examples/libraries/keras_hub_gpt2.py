"""KerasHub: a small GPT-2 with random weights learns the source of Python's own modules.

    python -m grace_tf run -np 2 examples/libraries/keras_hub_gpt2.py

A token is a character.
"""

import inspect
import tarfile
import typing

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from comparison import Trained, compare

import grace_tf

LENGTH, WORDS = 64, 128


def windows() -> np.ndarray:
    """Windows of LENGTH + 1 characters."""
    text = "".join(inspect.getsource(module) for module in (inspect, tarfile, typing))
    coded = np.frombuffer(text.encode("ascii", "ignore"), np.uint8).astype("int32")
    count = len(coded) // (LENGTH + 1)
    return coded[: count * (LENGTH + 1)].reshape(count, LENGTH + 1)


def inputs(rows):
    """What a model of KerasHub takes without a preprocessor, and the next characters."""
    tokens = rows[:, :-1]
    return {"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}, rows[:, 1:]


def train(method: str, seed: int) -> Trained:
    keras.utils.set_random_seed(2 * seed + grace_tf.rank())
    rows = np.random.default_rng(0).permutation(windows())
    data = grace_tf.shard(tf.data.Dataset.from_tensor_slices(rows[256:]))

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=WORDS,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        intermediate_dim=128,
        max_sequence_length=LENGTH,
    )
    model = keras_hub.models.GPT2CausalLM(backbone)
    model.compile(
        optimizer=grace_tf.wrap(keras.optimizers.Adam(3e-3), method),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    batches = data.shuffle(10_000).batch(16, drop_remainder=True).map(inputs)
    model.fit(batches, epochs=1, shuffle=False, verbose=0)

    often = np.bincount(rows[:256].ravel(), minlength=WORDS) / rows[:256].size
    chance = -float(np.sum(often * np.log(np.maximum(often, 1e-9))))
    loss = model.evaluate(*inputs(rows[:256]), batch_size=64, return_dict=True, verbose=0)["loss"]
    sent = grace_tf.keras.aggregator_of(model.optimizer).bytes_per_step
    return Trained(loss, chance, model.trainable_weights, sent)


if __name__ == "__main__":
    compare(train, "KerasHub: GPT-2, nats a character")
