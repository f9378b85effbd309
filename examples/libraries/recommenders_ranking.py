"""TF Recommenders: a deep and cross network that foretells ratings, on MovieLens 100K.

pip install --no-deps recbole    # has the ratings; it is not imported
python -m grace_tf run -np 2 examples/libraries/recommenders_ranking.py
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # TF Recommenders demands it

import tensorflow as tf  # noqa: E402
import tensorflow_recommenders as tfrs  # noqa: E402
from comparison import Trained, compare  # noqa: E402
from movielens import ratings  # noqa: E402

import grace_tf  # noqa: E402

WIDTH = 16


class Ranking(tfrs.Model):
    def __init__(self, users: int, films: int):
        super().__init__()
        self.user_table = tf.keras.layers.Embedding(users, WIDTH)
        self.film_table = tf.keras.layers.Embedding(films, WIDTH)
        self.network = tf.keras.Sequential(
            [
                tfrs.layers.dcn.Cross(),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(1),
            ]
        )
        self.task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.MeanSquaredError(),
            metrics=[tf.keras.metrics.RootMeanSquaredError()],
        )

    def call(self, features):
        tables = self.user_table(features["user"]), self.film_table(features["film"])
        return 3.5 + self.network(tf.concat(tables, axis=-1))

    def compute_loss(self, features, training=False):
        return self.task(labels=features["rating"][:, None], predictions=self(features))


def train(method: str, seed: int) -> Trained:
    tf.keras.utils.set_random_seed(2 * seed + grace_tf.rank())
    table, held_out = ratings()
    dataset = tf.data.Dataset.from_tensor_slices(table)
    data = grace_tf.shard(dataset).shuffle(100_000).batch(256, drop_remainder=True)

    model = Ranking(table["user"].max() + 1, table["film"].max() + 1)
    model.compile(optimizer=grace_tf.wrap(tf.keras.optimizers.Adam(3e-3), method))
    model.fit(data, epochs=2, verbose=0)

    test = tf.data.Dataset.from_tensor_slices(held_out).batch(2500)
    loss = model.evaluate(test, return_dict=True, verbose=0)["root_mean_squared_error"]
    chance = float(held_out["rating"].std())
    sent = grace_tf.keras.aggregator_of(model.optimizer).bytes_per_step
    return Trained(loss, chance, model.trainable_variables, sent)


if __name__ == "__main__":
    compare(train, "TF Recommenders: a deep and cross network, RMSE of ratings")
