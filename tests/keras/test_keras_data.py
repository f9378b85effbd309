"""What `fit` says of the data that workers train on."""

import types
from unittest import mock

import numpy as np
import tensorflow as tf

from grace_tf.keras import training
from grace_tf.transports.world import data_shards

X = np.ones((4, 2), np.float32)


def policy(chosen):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = chosen
    return tf.data.Dataset.from_tensor_slices(X).with_options(options)


class LookAtDataTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        worker = types.SimpleNamespace(rank=0)
        for name, value in (
            ("_said_who_deals", False),
            ("spans_processes", lambda strategy: strategy.spans),
            ("several", lambda: worker),
        ):
            patch = mock.patch.object(training, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        patch = mock.patch.object(data_shards, "_taken", False)
        patch.start()
        self.addCleanup(patch.stop)
        self.taken = mock.Mock()

    def look(self, x, spans):
        training._look_at_data(self.taken, types.SimpleNamespace(spans=spans), x)

    def test_arrays_are_compared_only_where_the_strategy_does_not_deal_them_out(self):
        with self.assertNoLogs("grace_tf"):
            self.look(X, spans=True)
            self.taken.compare_data.assert_not_called()
            self.look(X, spans=False)
            self.taken.compare_data.assert_called_once_with(X)
            self.look(tf.data.Dataset.from_tensor_slices(X), spans=False)
        self.taken.compare_data.assert_called_once_with(X)

    def test_a_share_of_a_share_is_said_once(self):
        data_shards.share(X, 0, 1, False)  # alone: no share was taken
        with self.assertNoLogs("grace_tf"):
            self.look(X, spans=True)
        data_shards.share(X, 1, 2, False)
        auto = tf.data.experimental.AutoShardPolicy
        with self.assertNoLogs("grace_tf"):
            self.look(X, spans=False)
            self.look(policy(auto.OFF), spans=True)
        with self.assertLogs("grace_tf", "WARNING") as said:
            self.look(policy(auto.DATA), spans=True)
            self.look(X, spans=True)
        self.assertLen(said.output, 1)
        self.assertIn("MultiWorkerMirroredStrategy deals out data itself", said.output[0])
