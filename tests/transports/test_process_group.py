"""The process group: collectives between real processes, calls of `world.world`, failures."""

import numpy as np
import tensorflow as tf
from launch import launch_once

from grace_tf.advice.network import SMALL_SUM, Collective
from grace_tf.transports.ring import Ring

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


def run(program, workers, *arguments, linger=0.0):
    """(exit code, {rank: its line of JSON}, everything printed) of a run of a program."""
    ended = launch_once(program, *arguments, workers=workers, linger=linger)
    answers = {rank: told[-1] for rank, told in enumerate(ended.answers()) if told}
    return ended.code, answers, ended.text


def operations(collective, *shape):
    """The types of TensorFlow's collectives that `collective` uses for float32 of this shape."""
    traced = tf.function(lambda x: collective([x], 1 << 30)).get_concrete_function(
        tf.TensorSpec(shape)
    )
    return [op.type for op in traced.graph.get_operations() if op.type.startswith("Collective")]


def test_small_sums_of_two_workers_wait_for_the_latency_once():
    two, three = (Ring(size, 0, timeout=1.0) for size in (2, 3))
    small, large = SMALL_SUM // 4, SMALL_SUM // 4 + 1
    assert operations(two.sum, small) == ["CollectiveGatherV2"]
    assert operations(Ring(2, 0, timeout=1.0).sum, large) == ["CollectiveReduceV2"]
    assert operations(three.sum, small) == ["CollectiveReduceV2"]
    hops = [Collective("sum", 4 * n).hops(size) for n, size in [(small, 2), (large, 2), (small, 3)]]
    assert hops == [1, 2, 4]  # as `advise` counts them


class CollectivesTest(tf.test.TestCase):
    def answers(self, workers):
        code, answers, printed = run("collectives.py", workers)
        self.assertEqual(code, 0, printed)
        self.assertLen(answers, workers)
        return answers

    def test_identity(self):
        for size in (2, 3):
            for rank, answer in self.answers(size).items():
                self.assertEqual(answer["identity"], [rank, size, rank, [rank], size])
                self.assertFalse(answer["started_by_import"])

    def test_values_in_every_dtype_eager_and_traced(self):
        for size in (2, 3):
            rows = np.arange(5) + 10 * np.arange(size)[:, None]
            for rank, answer in self.answers(size).items():
                wanted = {
                    "sum": rows.sum(axis=0).tolist(),
                    "max": rows.max(axis=0).tolist(),
                    "gather": rows.tolist(),
                    "all_to_all": (rows + 100 * rank).tolist(),
                }
                self.assertEqual(answer["exact"], {dtype: wanted for dtype in DTYPES})
                self.assertEqual(answer["empty"], [0, size, 0])

    def test_two_bytes_are_announced_for_a_bfloat16(self):
        recorded = self.answers(2)[0]["recorded"]
        # float16 eager and traced, bfloat16 eager and traced, five elements each
        self.assertEqual(recorded, [["sum", 10]] * 4)

    def test_all_workers_get_the_same_bits_of_a_rounded_sum(self):
        for size in (2, 3):
            digests = [answer["rounded"] for answer in self.answers(size).values()]
            self.assertLen(digests[0], 9)
            self.assertAllEqual(digests, digests[:1] * size)

    def test_gathered_bits_are_untouched(self):
        for size in (2, 3):
            words = np.array([0x7FC12345, 0x7F812345, 1, -5]) + np.arange(size)[:, None]
            for answer in self.answers(size).values():
                for dtype in ("int32", "float32", "uint32"):
                    self.assertEqual(answer["bits"][dtype], words.tolist())
                self.assertEqual(answer["bits"]["bfloat16"], [[0x7FA5, 1]] * size)

    def test_one_key_serves_loops_nested_functions_and_traces(self):
        for size in (2, 3):
            total = 0
            for _ in range(4):
                total += size * (1 + total)
            for answer in self.answers(size).values():
                self.assertEqual(answer["repeated"]["loop"], [total] * 3)
                self.assertEqual(answer["repeated"]["nested"], [[3 * size] * 3, [5 * size] * 3])
                self.assertGreater(answer["repeated"]["traces"], 1)

    def test_handshakes_also_while_a_function_is_traced(self):
        for size in (2, 3):
            for answer in self.answers(size).values():
                found = answer["handshakes"]
                self.assertEqual(found["traced"], [[[rank, -(2**63)] for rank in range(size)]])
                self.assertEqual(found["result"], [size, size])
                self.assertEqual(
                    found["rapid"], sum(n * size + sum(range(size)) for n in range(50))
                )

    def test_what_would_abort_tensorflow_is_refused_before(self):
        for answer in self.answers(2).values():
            key, reduced, sent, rows, words, compiled = answer["refused"]
            self.assertIn("cannot carry ('Add', 'float32', (3,))", key)
            self.assertIn("uint8 cannot be reduced; there are float16", reduced)
            self.assertIn("bool cannot be sent; there are", sent)
            self.assertIn("2 rows, but got the shape (3, 2)", rows)
            self.assertIn("at most 64 words, not 65", words)
            self.assertIn("compile the model with jit_compile=False", compiled)


class GroupCallsTest(tf.test.TestCase):
    def answers(self):
        code, answers, printed = run("group_calls.py", 2)
        self.assertEqual(code, 0, printed)
        self.assertLen(answers, 2)
        return answers

    def test_init_again_gives_the_same_group(self):
        for rank, answer in self.answers().items():
            self.assertTrue(answer["again"])
            self.assertEqual(answer["identity"], [rank, rank, 2])
            for question in ("other arguments", "other group"):
                self.assertIn("a process joins one group, once", answer["refusals"][question])

    def test_the_server_leaves_sigterm_to_the_program(self):
        for answer in self.answers().values():
            self.assertEqual(answer["caught"], ["the program's own handler"])

    def test_broadcast_is_bit_exact_for_every_dtype(self):
        for answer in self.answers().values():
            self.assertEqual(answer["dtypes"], [[True] * 45] * 2)
            self.assertTrue(answer["large"])

    def test_broadcast_of_a_keras_model_and_optimizer(self):
        for answer in self.answers().values():
            before, after = answer["model"]
            self.assertNotEqual(before[0][0], before[1][0])
            self.assertNotEqual(before[0][1], before[1][1])
            self.assertEqual(after, [before[0]] * 2)

    def test_what_broadcast_refuses(self):
        for answer in self.answers().values():
            said = answer["refusals"]
            self.assertIn("whose dtype is string", said["string"])
            self.assertIn("TypeError: broadcast() takes a list of variables", said["tensor"])
            self.assertIn("There is no worker 2", said["root"])

    def test_every_worker_says_how_the_variables_differ(self):
        for question, ending in (
            (
                "shapes",
                "worker 0 has 2 with 12 bytes and root 0, worker 1 has 2 with 16 bytes and root 0.",
            ),
            ("same bytes", "1 with 24 bytes and root 0, in other shapes."),
            (
                "count",
                "worker 0 has 1 with 8 bytes and root 0, worker 1 has 2 with 16 bytes and root 0.",
            ),
            ("roots", "bytes and root 0, worker 1 has 1 with 4 bytes and root 1."),
        ):
            first, second = (answer["refusals"][question] for answer in self.answers().values())
            self.assertEqual(first, second)
            self.assertEndsWith(first, ending)

    def test_different_calls_do_not_pair_up(self):
        answers = self.answers()
        self.assertIn(
            "Worker 1 of 2 is not where worker 0 is, which came to barrier()",
            answers[0]["refusals"]["calls"],
        )
        self.assertIn(
            "Worker 0 of 2 is not where worker 1 is, which came to handshake()",
            answers[1]["refusals"]["calls"],
        )
        self.assertIn("all workers must make the same calls", answers[0]["refusals"]["words"])

    def test_shards_are_disjoint_and_equally_long(self):
        for rank, answer in self.answers().items():
            shards = answer["shards"]
            for of in ("examples", "counted", "infinite"):
                self.assertEqual(shards[of], [rank, rank + 2, rank + 4])
            self.assertEqual(shards["batches"], [[[0, 1], [4, 5]], [[2, 3], [6]]][rank])
            self.assertIn("tf.data.experimental.assert_cardinality", shards["unknown"])
            self.assertIn("1, is less than the number of workers, 2", shards["few"])


class FailuresTest(tf.test.TestCase):
    def told(self, how):
        # Once worker 1 is gone the launcher must leave worker 0 the time to say what it sees.
        linger = 60.0 if how in ("killed", "lost", "taken") else 0.0
        code, answers, printed = run("failures.py", 2, how, linger=linger)
        self.assertIn(0, answers, printed)
        return code, answers[0]

    def test_a_worker_that_is_killed(self):
        code, told = self.told("killed")
        self.assertEqual(code, 137)
        self.assertEqual(told["step"][0], "UnavailableError")
        for kind, sentence in (
            told["barrier"],
            told["broadcast"],
            ["RuntimeError", told["explained"]],
        ):
            self.assertEqual(kind, "RuntimeError")
            self.assertStartsWith(sentence, "Worker 0 of 2 cannot go on, worker 1 is gone without")

    def test_a_worker_that_does_not_take_part(self):
        code, told = self.told("late")
        self.assertEqual(code, 3)
        self.assertEqual(told["step"][0], "UnavailableError")
        for kind, sentence in (
            told["barrier"],
            told["broadcast"],
            ["RuntimeError", told["explained"]],
        ):
            self.assertEqual(kind, "RuntimeError")
            self.assertStartsWith(
                sentence, "Worker 0 of 2 cannot go on, worker 1 did not take part within 5 s; "
            )

    def test_a_worker_that_never_comes(self):
        code, told = self.told("never")
        self.assertEqual(code, 3)
        self.assertEqual(told["init"][0], "RuntimeError")
        self.assertRegex(told["init"][1], r"^Worker 1 of 2 did not come to \S+:\d+ within 3 s\.$")
        self.assertIn("call grace_tf.init() first", told["uninitialised"][1])

    def test_a_worker_that_is_lost_between_the_meeting_and_tensorflow_s_start(self):
        code, told = self.told("lost")
        self.assertEqual(code, 137)
        self.assertEqual(told["init"][0], "RuntimeError")
        self.assertStartsWith(
            told["init"][1],
            "Worker 0 of 2 cannot go on, worker 1 is gone without a word: it was killed",
        )

    def test_a_worker_whose_port_is_taken(self):
        code, told = self.told("taken")
        self.assertEqual(code, 3)
        self.assertRegex(
            told["init"][1],
            r"^Worker 0 of 2 cannot go on, worker 1 failed: RuntimeError: Worker 1 cannot listen "
            r"at \S+:\d+: .*[Aa]ddress already in use.*; start all of them again\.$",
        )
