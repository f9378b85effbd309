"""All ways to carry buffers inside tf.distribute and one process do the same."""

import threading
from concurrent import futures

import numpy as np
import tensorflow as tf
from replicas import mirrored

from grace_tf.transports.lifeline.lifeline import spans_processes
from grace_tf.transports.loopback import Loopback
from grace_tf.transports.tf_distribute import ReplicaContext, across_replicas

SIZE = 3


def rows(dtype="int32", n=5):
    draw = np.random.default_rng(n).integers(-9, 9, [SIZE, n])
    return [tf.cast(tf.constant(row), dtype) for row in draw]


def squares(n=2):
    return [tf.reshape(row, [SIZE, n]) for row in rows(n=SIZE * n)]


def expected(kind, buffers):
    arrays = [b.numpy() for b in buffers]
    if kind == "sum":
        total = arrays[0]
        for array in arrays[1:]:
            total = total + array  # in worker order, as the line promises
        return [total] * SIZE
    if kind == "max":
        return [np.max(arrays, 0)] * SIZE
    if kind == "gather":
        return [np.stack(arrays)] * SIZE
    return [np.stack([array[i] for array in arrays]) for i in range(SIZE)]


CASES = [
    ("sum", rows("float32")),
    ("sum", rows("int32")),
    ("sum", rows("float16")),
    ("max", rows("float32")),
    ("gather", rows("int32")),
    ("all_to_all", squares()),
]


def in_replicas(body):
    """The results of `body(context, i)` of three replicas, traced and eager."""
    strategy = mirrored(SIZE)

    def replica():
        context = tf.distribute.get_replica_context()
        return body(context, context.replica_id_in_sync_group)

    for run in (tf.function(lambda: strategy.run(replica)), lambda: strategy.run(replica)):
        yield strategy.experimental_local_results(run())


def own(buffers, i):
    return tf.gather(tf.stack(buffers), i)


class TransportsTest(tf.test.TestCase):
    def test_loopback(self):
        for devices in (None, ["CPU:0", "CPU:1", "CPU:2"]):
            transport = Loopback(SIZE, devices)
            for kind, buffers in CASES:
                results = getattr(transport, kind)(buffers, 1)
                for i, (ours, theirs) in enumerate(zip(results, expected(kind, buffers))):
                    self.assertAllEqual(ours, theirs, kind)
                    if devices:
                        self.assertEndsWith(ours.device, devices[i])

    def test_replicas_of_one_process(self):
        for kind, buffers in CASES:

            def body(context, i, kind=kind, buffers=buffers):
                def all_at_once(transport, lists):
                    self.assertEqual(transport.workers, (0, 1, 2))
                    return [[r] for r in getattr(transport, kind)([mine for (mine,) in lists], 1)]

                return across_replicas(context, all_at_once, [own(buffers, i)])[0]

            for results in in_replicas(body):
                for ours, theirs in zip(results, expected(kind, buffers)):
                    self.assertAllEqual(ours, theirs, kind)

    def test_one_tensor_made_outside_the_replicas(self):
        outside = tf.constant([1.0, 2.0])

        def body(context, i):
            return across_replicas(
                context,
                lambda transport, lists: [[t] for t in transport.sum([m for (m,) in lists], 1)],
                [outside],
            )[0]

        for results in in_replicas(body):
            self.assertAllEqual(results, [[3.0, 6.0]] * SIZE)

    def test_from_inside_a_replica(self):
        for kind, buffers in CASES:

            def body(context, i, kind=kind, buffers=buffers):
                transport = ReplicaContext(context)
                self.assertEqual(transport.size, SIZE)
                self.assertIn(transport.workers, [(0,), (1,), (2,)])  # known while tracing
                return getattr(transport, kind)([own(buffers, i)], 1)[0]

            for results in in_replicas(body):
                for ours, theirs in zip(results, expected(kind, buffers)):
                    self.assertAllEqual(ours, theirs, kind)

    def test_gathers_move_bits(self):
        """Words travel as floats; those that are signalling NaNs arrive untouched."""
        words = tf.constant([0x7F812345, 1, -5], tf.int32) + tf.range(SIZE)[:, None]
        floats = tf.unstack(tf.bitcast(words, tf.float32))

        def gathers(context, i):
            return ReplicaContext(context).gather([own(floats, i)], 1)[0]

        def swaps(context, i):
            return ReplicaContext(context).all_to_all([tf.stack([own(floats, i)] * SIZE)], 1)[0]

        for results in (Loopback(SIZE).gather(floats, 1), *in_replicas(gathers)):
            for result in results:
                self.assertAllEqual(tf.bitcast(result, tf.int32), words)
        for results in in_replicas(swaps):
            for result in results:
                self.assertAllEqual(tf.bitcast(result, tf.int32), words)

    def test_what_was_handed_over_is_recorded(self):
        transport = Loopback(SIZE)
        with transport.recorded() as handed:
            transport.sum(rows("float16", 8), 1)
            transport.gather(rows("int32", 3), 2)
        transport.sum(rows("float32", 8), 3)
        self.assertEqual([(h.kind, h.nbytes) for h in handed], [("sum", 16), ("gather", 12)])
        alone = Loopback(1)
        with alone.recorded() as record:
            alone.sum([tf.ones([4])], 1)
        self.assertEqual([(h.kind, h.nbytes) for h in record], [("sum", 16)])  # what it would send

    def test_records_of_a_record_and_of_another_transport(self):
        transport, other = Loopback(1), Loopback(1)
        with transport.recorded() as outer:
            transport.sum([tf.ones([1])], 1)
            with transport.recorded() as inner, other.recorded() as others:
                transport.sum([tf.ones([2])], 1)
                other.sum([tf.ones([3])], 1)
            transport.sum([tf.ones([4])], 1)
        transport.sum([tf.ones([5])], 1)
        taken = [[handed.elements for handed in record] for record in (outer, inner, others)]
        self.assertEqual(taken, [[1, 2, 4], [2], [3]])

    def test_threads_record_what_they_hand_over_themselves(self):
        transport, both = Loopback(1), threading.Barrier(2, timeout=60)

        def work(elements):
            with transport.recorded() as record:
                both.wait()
                transport.sum([tf.ones([elements])], 1)
                both.wait()
            return [handed.elements for handed in record]

        with futures.ThreadPoolExecutor(2) as threads:
            self.assertEqual(list(threads.map(work, (7, 8))), [[7], [8]])

    def test_an_error_within_one_process_is_nobody_elses(self):
        error = tf.errors.UnavailableError(None, None, "Collective ops is aborted")
        with self.assertRaises(tf.errors.UnavailableError) as found:
            Loopback(2).explain(error)
        self.assertIs(found.exception, error)

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "3 workers need 3 devices, not 1"):
            Loopback(3, ["CPU:0"])
        with self.assertRaisesRegex(ValueError, "carries 3 buffers.*but got 1"):
            Loopback(3).sum([tf.ones([2])], 1)

    def test_a_mirrored_strategy_lives_in_one_process(self):
        self.assertFalse(spans_processes(mirrored(2)))
