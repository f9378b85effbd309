"""The bytes that an Aggregator reports."""

import tensorflow as tf
from test_aggregator import LOSSLESS, some

import grace_tf
from grace_tf.transports.loopback import Loopback


class HandedTest(tf.test.TestCase):
    def test_what_others_hand_over_is_not_counted(self):
        """A process group is one transport for all: metrics, barriers and every aggregator."""
        variables, (grads, *_) = some()
        aggregate = grace_tf.Aggregator("none")
        transport = Loopback(2)
        aggregate.aggregate_replicas(transport, [grads, grads], variables, [None, None])
        # All dense is left to the host, which carries the gradients as they are.
        self.assertEqual(aggregate.bytes_per_step, sum(4 * int(tf.size(g)) for g in grads))
        aggregate = grace_tf.Aggregator(LOSSLESS, min_elements=1)
        aggregate.aggregate_replicas(transport, [grads, grads], variables, [None, None])
        bytes_ = aggregate.bytes_per_step
        self.assertGreater(bytes_, 0)
        transport.sum([tf.ones([9])] * 2, 1)
        self.assertEqual(aggregate.bytes_per_step, bytes_)

    def test_alone_it_tells_what_one_of_several_would_hand_over(self):
        variables, (grads, *_) = some()
        specs = ["qsgd", "topk:ratio=0.1", "powersgd:rank=1", "none"]
        for traced in (False, True):
            for spec in specs:
                alone = grace_tf.Aggregator(spec, min_elements=1)
                call = tf.function(alone) if traced else alone
                call(grads, variables)
                several = grace_tf.testing.Workers(2, spec, min_elements=1)
                several([grads, grads])
                self.assertGreater(alone.bytes_per_step, 0)
                self.assertEqual(alone.bytes_per_step, several.bytes_per_step, spec)
