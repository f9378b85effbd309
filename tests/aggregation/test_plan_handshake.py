"""What the first step compares of plans and optimizers, and the sentence for each difference."""

import numpy as np
import tensorflow as tf

from grace_tf.aggregation.consistency import plan_handshake as handshake
from grace_tf.aggregation.consistency.plan_handshake import OptimizerInfo
from grace_tf.line.plan import make_plan
from grace_tf.line.settings import settings


class Group:
    """Stands for a group of three workers, the last of which has words of its own."""

    size = 3

    def __init__(self, other=None):
        self.other = other

    def handshake(self, words, purpose):
        self.words = words
        return np.array([words, words, self.other or words], np.int64)


def plan(compressor="qsgd", path="v", **keywords):
    return make_plan(settings(compressor, **keywords), [path], [tf.TensorSpec([2000])], [0])


ADAM = OptimizerInfo("GraceAdam", {"beta_1": 0.9, "beta_2": 0.999, "schedule": {"rate": 0.1}})


class HandshakeTest(tf.test.TestCase):
    def words(self, made, owner=ADAM, reduce="mean"):
        group = Group()
        handshake.compare_plans(group, made, owner, reduce)
        return group.words

    def test_equal_workers_go_on(self):
        handshake.compare_plans(Group(self.words(plan())), plan(), ADAM, "mean")
        tf.function(
            lambda: handshake.compare_plans(Group(self.words(plan())), plan(), ADAM, "mean")
        )()

    def test_each_difference_names_the_way_out(self):
        others = {
            "install the same ones": None,
            "the same seed": self.words(plan(seed=1)),
            "the optimizers differ": self.words(plan(), OptimizerInfo("GraceSGD")),
            "wrap the same model": self.words(plan("fp16")),
            "of different variables, 'v' here": self.words(plan(path="w")),
            r"settings \(beta_1\)": self.words(
                plan(), OptimizerInfo("GraceAdam", {**ADAM.config, "beta_1": 0.8})
            ),
            r"settings \(schedule\)": self.words(
                plan(), OptimizerInfo("GraceAdam", {**ADAM.config, "schedule": {"rate": 0.2}})
            ),
        }
        others["install the same ones"] = [1 + self.words(plan())[0], *self.words(plan())[1:]]
        for sentence, other in others.items():
            for call in (lambda f: f(), lambda f: tf.function(f, autograph=False)()):
                with self.assertRaisesRegex(
                    RuntimeError, f"{sentence}.*worker 2 of 3 differs from worker 0"
                ):
                    call(lambda of=other: handshake.compare_plans(Group(of), plan(), ADAM, "mean"))

    def test_what_the_door_does_is_part_of_the_plan(self):
        with self.assertRaisesRegex(RuntimeError, "the plans differ"):
            handshake.compare_plans(Group(self.words(plan(), reduce="sum")), plan(), ADAM, "mean")

    def test_one_more_optimizer_for_the_same_variables_is_told(self):
        other = self.words(plan())
        other[5] += 1
        with self.assertRaisesRegex(RuntimeError, "different numbers of optimizers"):
            handshake.compare_plans(Group(other), plan(), ADAM, "mean")

    def test_settings_beyond_those_compared_one_by_one_count_too(self):
        many = {f"setting_{i:02}": i for i in range(40)}
        other = self.words(plan(), OptimizerInfo("A", {**many, "setting_39": -1}))
        self.assertLen(other, len(self.words(plan())))
        with self.assertRaisesRegex(RuntimeError, r"settings \(other settings\)"):
            handshake.compare_plans(Group(other), plan(), OptimizerInfo("A", many), "mean")

    def test_settings_that_are_objects_are_told_by_their_class(self):
        words = [
            self.words(plan(), OptimizerInfo("A", {"f": made}))
            for made in (self.test_equal_workers_go_on, np.float32(0.5), np.float32(0.25), object())
        ]
        self.assertLen({tuple(each) for each in words}, 4)
        self.assertEqual(words[3], self.words(plan(), OptimizerInfo("A", {"f": object()})))

    def test_the_digest_tells_shape_dtype_and_bits(self):
        base = np.arange(6, dtype=np.float32)
        others = [base.reshape(2, 3), base.astype(np.float64), base + 1, -base, base[:5]]
        digests = {handshake.digest_of_arrays([a]) for a in [base, *others]}
        self.assertLen(digests, 6)
        self.assertEqual(
            handshake.digest_of_arrays([base]), handshake.digest_of_arrays([base.copy()])
        )
        self.assertNotEqual(
            handshake.digest_of_arrays([np.float32(0.0)]),
            handshake.digest_of_arrays([np.float32(-0.0)]),
        )
        self.assertLess(max(digests), 2**56)
