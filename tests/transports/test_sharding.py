"""Every worker's share of datasets and arrays, computed in one process for all of them."""

import json
import os
from unittest import mock

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.transports.world.data_shards import share


def shares(data, size, drop=False):
    return [share(data, rank, size, drop) for rank in range(size)]


def listed(dataset):
    return [tf.nest.map_structure(lambda t: t.numpy().tolist(), e) for e in dataset]


class ShardingTest(tf.test.TestCase):
    def test_arrays_keep_their_structure_and_lose_the_remainder(self):
        x, y = np.arange(14).reshape(7, 2), tf.range(7)
        for size in (2, 3):
            for rank, mine in enumerate(shares({"pair": (x, y), "x": x}, size)):
                rows = np.arange(7)[: 7 - 7 % size][rank::size]
                self.assertAllEqual(mine["pair"][0], x[rows])
                self.assertAllEqual(mine["pair"][1], rows)
                self.assertAllEqual(mine["x"], x[rows])
                self.assertIsInstance(mine["x"], np.ndarray)

    def test_rounds_of_an_unknown_number_of_elements(self):
        """Batches of another size, tuples and dicts: all workers get equally many, none twice."""
        for count in (5, 6, 7):
            numbers = tf.data.Dataset.range(count).filter(lambda n: n >= 0)
            for dataset in (
                numbers,
                numbers.batch(2),
                numbers.map(lambda n: (n, {"twice": 2 * n})),
                numbers.map(lambda n: {"n": n, "pair": (n, -n)}),
            ):
                everything = listed(dataset)
                for size in (2, 3):
                    dealt = [listed(mine) for mine in shares(dataset, size, drop=True)]
                    whole = len(everything) - len(everything) % size
                    wanted = [everything[:whole][rank::size] for rank in range(size)]
                    self.assertEqual(dealt, wanted)

    def test_a_known_number_is_dealt_as_ever(self):
        for drop in (False, True):
            dealt = [listed(mine) for mine in shares(tf.data.Dataset.range(7), 3, drop)]
            self.assertEqual(dealt, [[0, 3], [1, 4], [2, 5]])

    def test_refusals(self):
        for data, kind, words in (
            ((np.ones(4), np.ones(5)), ValueError, "equally many, but they have 4, 5"),
            (np.ones(1), ValueError, "fewer rows, 1, than workers, 2"),
            ((), ValueError, "but they have none"),
            (np.float32(1), TypeError, "got a value of type float32 without rows"),
            (5, TypeError, "but got a value of type int"),
            ([1, 2, 3], TypeError, "but got a value of type int"),
            (
                "train.csv",
                TypeError,
                "takes a tf.data.Dataset or arrays .* but got a value of type str",
            ),
            (
                tf.data.Dataset.range(4).filter(lambda n: n > 0),
                ValueError,
                'uneven="drop".*assert_cardinality',
            ),
        ):
            with self.assertRaisesRegex(kind, words):
                share(data, 0, 2, False)
            # Alone too, so that a program that runs alone runs with several workers.
            if "workers, 2" not in words:
                with self.assertRaisesRegex(kind, words):
                    grace_tf.shard(data)
        with self.assertRaisesRegex(ValueError, 'uneven is "refuse" or "drop", not True'):
            grace_tf.shard(np.ones(4), uneven=True)

    def test_without_init_the_sentence_tells_what_a_strategy_needs(self):
        cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
        for call in (lambda: grace_tf.shard(np.ones(4)), grace_tf.rank, grace_tf.size):
            with mock.patch.dict(os.environ, {"TF_CONFIG": config}):
                with self.assertRaisesRegex(
                    RuntimeError,
                    r"There are to be 2 workers.*call grace_tf.init\(\) first.*Under "
                    r"MultiWorkerMirroredStrategy call neither init\(\) nor shard\(\).*batch_size",
                ):
                    call()

    def test_alone_everything_is_this_workers(self):
        x = np.ones(3)
        self.assertIs(grace_tf.shard(x, uneven="drop"), x)
