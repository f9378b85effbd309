"""What the process group makes of its surroundings, in this process alone."""

import json
import os
from unittest import mock

import numpy as np
import tensorflow as tf

from grace_tf.transports import process_group
from grace_tf.transports.process_group import ProcessGroup
from grace_tf.transports.world import rank_from_environment, world


class SurroundingsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        for patch in (mock.patch.dict(os.environ), mock.patch.object(world, "_current", None)):
            patch.start()
            self.addCleanup(patch.stop)
        for name in ("TF_CONFIG", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE"):
            os.environ.pop(name, None)

    def config(self, cluster, **task):
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})

    def test_workers_whom_nothing_connects_do_not_begin(self):
        os.environ["HOROVOD_SIZE"] = "2"
        with self.assertRaisesRegex(RuntimeError, "call horovod.tensorflow's init\\(\\) before"):
            world.init()
        with self.assertRaisesRegex(RuntimeError, "call horovod.tensorflow's init\\(\\) first"):
            world.size()
        self.assertIsNone(world.current())

    def test_horovods_workers_come_before_this_process_alone_and_with_no_other_group(self):
        alone, horovods = world.init(), mock.Mock(size=2)
        with mock.patch("grace_tf.transports.horovod.group.running", return_value=horovods):
            self.assertIs(world.current(), horovods)
            with mock.patch.object(alone, "size", 3):
                with self.assertRaisesRegex(RuntimeError, "joined 3 workers, and Horovod runs 2"):
                    world.current()

    def test_alone(self):
        self.assertEqual((world.rank(), world.local_rank(), world.size()), (0, 0, 1))
        self.assertIsNone(world.current())
        self.assertEqual(world.expected_size(), 1)
        made = world.init()
        self.assertIs(world.init(), made)
        self.assertIs(world.current(), made)
        variable, numbers = tf.Variable([1.0, 2.0]), tf.data.Dataset.range(3)
        world.broadcast([variable])
        world.barrier()
        self.assertIs(world.shard(numbers), numbers)
        self.assertAllEqual(made.sum([variable], 1 << 20)[0], [1.0, 2.0])
        self.assertAllEqual(made.max([variable], 1 << 20)[0], [1.0, 2.0])
        self.assertAllEqual(made.gather([variable], 1 << 20)[0], [[1.0, 2.0]])
        self.assertAllEqual(made.all_to_all([variable[None]], 1 << 20)[0], [[1.0, 2.0]])
        self.assertAllEqual(made.handshake([7]), [[7]])

    def test_one_worker_in_tf_config_needs_no_server(self):
        self.config({"worker": ["localhost:1"]}, type="worker", index=0)
        self.assertEqual(world.init().size, 1)

    def test_init_after_an_operation(self):
        self.assertAllEqual(tf.constant(1) + 1, 2)
        with self.assertRaisesRegex(
            RuntimeError, "must come before the first TensorFlow operation"
        ):
            world.init(workers=["localhost:1", "localhost:2"], rank=0)
        self.assertIsNone(world.current())

    def test_ranks_of_chief_and_workers(self):
        cluster = {"chief": ["a:1"], "worker": ["b:1", "b:2"], "evaluator": ["c:1"]}
        for kind, index, wanted in (("chief", 0, 0), ("worker", 0, 1), ("worker", "1", 2)):
            self.config(cluster, type=kind, index=index)
            self.assertEqual(rank_from_environment.of_tf_config(), (wanted, ("a:1", "b:1", "b:2")))
            self.assertEqual(world.expected_size(), 3)
        self.assertEqual(
            [process_group.local_rank(("a:1", "b:1", "b:2"), n) for n in range(3)], [0, 0, 1]
        )

    def test_surroundings_that_cannot_be_a_group(self):
        workers = ["a:1", "b:1"]
        for cluster, task, words in (
            ({"worker": workers, "ps": ["c:1"]}, {"type": "worker", "index": 0}, "speaks of 'ps'"),
            ({"worker": workers}, {"type": "evaluator", "index": 0}, "'evaluator'"),
            ({"worker": workers}, {"type": "worker"}, "has no index"),
            ({"worker": workers}, {"type": "worker", "index": 2}, "There is no worker 2 among 2"),
            ({"worker": ["a:1"]}, {"type": "worker", "index": 3}, "There is no worker 3 among 1"),
            ({"worker": workers}, {"type": "worker", "index": -1}, "There is no worker -1 among 2"),
            ({"worker": workers}, {"type": "chief", "index": 0}, "There is no chief 0 among 0"),
            (
                {"chief": ["c:1"], "worker": workers},
                {"type": "chief", "index": 1},
                "There is no chief 1 among 1",
            ),
            ({"worker": ["a:1", "a:1"]}, {"type": "worker", "index": 0}, "the same address"),
            ({"worker": ["a", "b:1"]}, {"type": "worker", "index": 0}, "is host:port, not 'a'"),
        ):
            self.config(cluster, **task)
            with self.assertRaisesRegex(ValueError, words):
                world.init()
        for text in ("{", "[]", '{"cluster": 3}'):
            os.environ["TF_CONFIG"] = text
            with self.assertRaisesRegex(ValueError, "TF_CONFIG is not a cluster in JSON"):
                world.init()

    def test_wrong_arguments(self):
        for keywords, words in (
            ({"timeout": 0}, "positive number of seconds"),
            ({"timeout": "x"}, "timeout is a positive number of seconds, not 'x'"),
            ({"timeout": True}, "positive number of seconds"),
            ({"timeout": float("inf")}, "positive number of seconds, not inf"),
            ({"workers": ["a:1", "b:99999"], "rank": 1}, "host:port, not 'b:99999'"),
            ({"workers": "a:1,b:2", "rank": 0}, r"not a string: give \['a:1', 'b:2'\]"),
            ({"workers": ["a:1"]}, "or neither"),
            ({"workers": ["a:1", "b:1"], "rank": -1}, "There is no worker -1"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                world.init(**keywords)

    def test_more_workers_expected_than_joined(self):
        for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE"):
            with mock.patch.dict(os.environ, {name: "3"}):
                self.assertEqual(world.expected_size(), 3)
        self.config({"worker": ["a:1", "b:1"]}, type="worker", index=0)
        for call in (world.rank, world.size, world.local_rank, world.barrier):
            with self.assertRaisesRegex(RuntimeError, "to be 2 workers.*grace_tf.init"):
                call()

    def test_each_worker_of_a_host_sees_its_own_gpu(self):
        seen = []
        with (
            mock.patch.object(world, "runtime_started", return_value=False),
            mock.patch.object(tf.config, "get_visible_devices", return_value=["gpu 0", "gpu 1"]),
            mock.patch.object(
                tf.config,
                "set_visible_devices",
                side_effect=lambda own, kind: seen.append((own, kind)),
            ),
            mock.patch.object(world, "ProcessGroup"),
        ):
            addresses = ("a:1", "b:1", "b:2", "b:3")
            for rank in range(4):
                world._make(addresses, rank, 1.0, 0.0, "")
        self.assertEqual(seen, [([f"gpu {n}"], "GPU") for n in (0, 0, 1, 0)])


class OrderTest(tf.test.TestCase):
    def test_rows_are_by_rank_though_tensorflow_orders_tasks_by_name(self):
        members, me = [0, 10, 2, 1], 2
        members = np.argsort(np.argsort(members)).tolist()  # as if these four were all
        alone = ProcessGroup(["localhost"], 0)
        alone.size, alone.rank, alone._members = 4, me, members

        def moved(op, buffer, key):
            if op is tf.raw_ops.CollectiveGatherV2:
                return tf.concat([buffer + 10.0 * (worker - me) for worker in members], 0)
            return tf.stack([buffer[members.index(me)] + 10.0 * (w - me) for w in members])

        with mock.patch.object(alone, "_move", moved):
            gathered = alone.gather([tf.constant([20.0, 21.0])], 1 << 20)[0]
            rows = tf.constant([[100.0 * to + 10 * me] for to in range(4)])
            exchanged = alone.all_to_all([rows], 1 + (1 << 20))[0]
        self.assertAllEqual(gathered, [[10.0 * w, 10.0 * w + 1] for w in range(4)])
        self.assertAllEqual(exchanged, [[100.0 * me + 10 * w] for w in range(4)])


if __name__ == "__main__":
    tf.test.main()
