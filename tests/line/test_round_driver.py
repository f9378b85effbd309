"""A worker alone gets the same replies as from collectives, without buffers being made."""

import dataclasses

import numpy as np
import tensorflow as tf

from grace_tf.core.rounds import AllToAll, Gather, Max, Sum
from grace_tf.line.round_driver import communicate, returned
from grace_tf.transports.loopback import Loopback


class AloneTest(tf.test.TestCase):
    def test_a_worker_alone_gets_what_collectives_would_give_it(self):
        halves = {
            "a": tf.constant([1.5, -0.0, np.nan], tf.float16),
            "b": tf.constant([7], tf.int32),
        }
        requests = [
            Sum([{"x": tf.constant([1.0, -0.0])}, {"x": tf.constant([3.0])}], tf.constant(True)),
            None,
            Max([{"x": tf.constant([2, 5])}], tf.constant(True)),
            Gather([halves, {"a": tf.constant([2.0], tf.float16)}], tf.constant(True)),
            AllToAll([{"rows": tf.constant([[1.0, 2.0]])}]),
        ]
        for finite in True, False:
            requests[3] = dataclasses.replace(requests[3], finite=tf.constant(finite))
            found = []
            for carry in communicate, returned:
                transport = Loopback(1)
                with transport.recorded() as handed:
                    replies, flags = carry([requests], transport, lambda kind, dtype: 1, True)
                found.append((replies, flags, handed))
            (replies, flags, handed), (alone, own_flags, own_handed) = found
            tf.nest.assert_same_structure(alone, replies)
            for a, b in zip(tf.nest.flatten(alone), tf.nest.flatten(replies)):
                self.assertEqual(a is None, b is None)
                if a is not None:
                    self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
                    self.assertEqual(a.numpy().tobytes(), b.numpy().tobytes())
            self.assertAllEqual(own_flags, flags)
            self.assertAllEqual(own_flags, [finite])
            self.assertEqual(own_handed, handed)
        replies, flags = returned([[None, requests[0]]], Loopback(1), lambda kind, dtype: 1, False)
        self.assertEqual((replies[0][0], flags), (None, []))
