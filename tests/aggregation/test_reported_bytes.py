"""The bytes that an Aggregator reports."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from test_aggregator import LOSSLESS, some

import grace_tf
from grace_tf.transports.loopback import Loopback


class Counted(Loopback):
    """Counts the bytes of the buffers that worker 0 hands over, as they are."""

    nbytes = 0

    def _count(self, buffers):
        self.nbytes += buffers[0].shape.num_elements() * buffers[0].dtype.size
        return buffers

    def _sum(self, buffers, key):
        return super()._sum(self._count(buffers), key)

    def _max(self, buffers, key):
        return super()._max(self._count(buffers), key)

    def _gather(self, buffers, key):
        return super()._gather(self._count(buffers), key)

    def _all_to_all(self, buffers, key):
        return super()._all_to_all(self._count(buffers), key)


DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
SPECS = ("fp16", "bf16", "qsgd", "topk:ratio=0.1", "powersgd:rank=2", "signsgd", "eden")


class CountedTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(dtype=DTYPES, spec=SPECS, size=(2, 5))
    def test_it_is_what_the_transport_carries(self, dtype, spec, size):
        """Of variables of any float: a compressed one, one that travels as it is, and a bias."""
        draw = np.random.default_rng(1)
        shapes = {"kernel": (60, 50), "exact": (40, 30), "bias": (50,)}
        variables = [tf.Variable(tf.zeros(s, dtype), name=name) for name, s in shapes.items()]
        workers = [
            [tf.cast(draw.normal(size=v.shape), dtype) for v in variables] for _ in range(size)
        ]
        aggregate = grace_tf.Aggregator(spec, exclude="exact")
        transport = Counted(size)
        totals = aggregate.aggregate_replicas(transport, workers, variables, [None] * size)
        self.assertEqual(aggregate.bytes_per_step, transport.nbytes)
        dense = (40 * 30 + 50) * dtype.size
        self.assertBetween(transport.nbytes, dense + 1, dense + 3000 * 4 - 1)
        self.assertEqual({total.dtype for total in totals[0]}, {dtype})
        exact = np.mean([np.asarray(tf.cast(grads[1], tf.float64)) for grads in workers], 0)
        self.assertAllClose(tf.cast(totals[0][1], tf.float64), exact * size, 0.02, 0.1)


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
