"""MultiWorkerMirroredStrategy: two processes end with the bits of two replicas of one process."""

import pytest
import tensorflow as tf
from launch import launch_once
from models import KERAS_3, loop, model, sgd_by_name, sha
from replicas import mirrored


def trained(*arguments):
    """The exit code, what each of the two workers said, and everything that was printed."""
    run = launch_once("multiworker.py", *arguments)
    return run.code, run.answers(), run.text


@pytest.mark.slow
class MultiWorkerTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        code, cls.workers, everything = trained()
        assert code == 0, everything[-4000:]
        cls.said = [{k: v for r in worker for k, v in r.items()} for worker in cls.workers]

    def test_workers_end_with_the_same_bits_as_replicas(self):
        first, second = ([r for r in worker if "custom" in r] for worker in self.workers)
        self.assertLen(first, 6 + (not KERAS_3))
        strategy = mirrored(2)
        for one, two in zip(first, second):
            method = one["custom"]
            self.assertEqual(one["sha"], two["sha"], method)
            self.assertEqual([one["workers"], two["workers"]], [[0], [1]], method)
            with strategy.scope():
                made = model()
                optimizer = sgd_by_name(method)
            loop(made, optimizer, strategy, 10)
            self.assertEqual(one["sha"], sha(made), method)
        self.assertLen({r["sha"] for r in first[:6]}, 6)

    def test_sparse_gradients_go_the_strategys_own_way(self):
        first = self.said[0]["embeddings"]
        for plain, *wrapped, messages in [said["embeddings"] for said in self.said]:
            self.assertEqual(wrapped, [plain] * 2)
            self.assertEqual(plain, first[0])
            self.assertEqual(messages, first[-1])  # whose rows are added up in another order

    def test_the_number_of_rows_may_change_and_be_none(self):
        """TensorFlow's own exchange of no rows at all ends the processes."""
        for said in self.said:
            for method, found in said["rows"].items():
                self.assertEqual(found, [[0.0, 40.0, 560.0, 48.0, 0.0]] * 2, method)

    def test_a_nan_on_one_worker_leaves_state_alone_on_both(self):
        for said in self.said:
            self.assertEqual(said["nan"], {"untouched": True, "step": 2, "nan": True})

    def test_a_custom_loop_skips_a_step_in_which_one_worker_overflows_on_both(self):
        for said in self.said:
            found, without = said["overflow"]
            self.assertEqual(without["scale"], 2.0**10)
            self.assertEqual(found, {**without, "scale": 2.0**9})
            self.assertEqual(found["step"], 4)
            self.assertEqual(found, self.said[0]["overflow"][0])


class DifferTest(tf.test.TestCase):
    def test_workers_that_differ_raise_one_sentence(self):
        """Both the same; where one does not compress at all, each its own in bounded time."""
        _, (first, second), everything = trained("differ")
        self.assertLen(first, 5, everything[-4000:])
        self.assertEqual(first[:4], second[:4])
        told = {name: value for line in first for name, value in line.items()}
        self.assertEqual(told["equal"], {"error": None})
        for name, sentence in [
            ("seed", "the seeds differ"),
            ("plan", "the plans differ"),
            ("reduce", "the plans differ"),
        ]:
            self.assertEqual(told[name]["error"], "RuntimeError")
            self.assertRegex(
                told[name]["sentence"],
                rf"^Workers cannot train together, {sentence}: .*\(worker 1 of 2 differs from "
                r"worker 0\)\.$",
            )
        self.assertRegex(
            told["wrapped once"]["sentence"],
            "^Worker 1 of 2 does not compress: its SGD is not wrapped, as worker 0's is; call ",
        )
        for line in second[4:]:
            self.assertIsNotNone(line["wrapped once"]["error"])
