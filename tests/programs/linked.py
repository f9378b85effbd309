"""A worker behind an emulated link: a sum, and some steps of training."""

import json

import grace_tf

group = grace_tf.init(timeout=60)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from this_keras import keras  # noqa: E402

rank = grace_tf.rank()
(total,) = group.sum([tf.fill([4], 1.0 + rank)], 7)
keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64)])
optimizer = grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd")
model.compile(optimizer=optimizer, loss="mse")
x = np.random.default_rng(rank).normal(size=(64, 32)).astype("float32")
model.fit(x, x @ np.ones((32, 64), "float32"), batch_size=16, verbose=0)
answer = {
    "sum": total.numpy().tolist(),
    "hosts": list(group.hosts),
    "weights": float(np.sum(model.get_weights()[0], dtype="float64")),
}
print(json.dumps(answer), flush=True)
