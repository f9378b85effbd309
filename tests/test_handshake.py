"""What the first step compares, and the sentence for each difference."""

import numpy as np
import tensorflow as tf

from grace_tf import handshake
from grace_tf.plan import make_plan, settings


class Group:
    """Stands for the group of three workers, the last of which differs in one column."""

    size = 3

    def __init__(self, column=None):
        self.column = column

    def handshake(self, words):
        self.words = words
        table = np.array([words] * 3, np.int64)
        if self.column is not None:
            table[2, self.column] += 1
        return table


class HandshakeTest(tf.test.TestCase):
    def compare(self, column, traced=False):
        plan = make_plan(settings("qsgd"), ["v"], [tf.TensorSpec([2000])], [0])
        variables = [tf.Variable(tf.ones([2000]))]

        def call():
            handshake.compare(Group(column), plan, variables)
            return tf.constant(0)

        tf.function(call)() if traced else call()

    def test_equal_workers_go_on(self):
        self.compare(None)
        self.compare(None, traced=True)

    def test_each_difference_names_the_way_out(self):
        for column, sentence in enumerate(
            ["install the same one", "the same seed", "wrap the same model", r"grace_tf\.broadcast"]
        ):
            for traced in (False, True):
                with self.assertRaisesRegex(
                    RuntimeError, f"{sentence}.*worker 2 of 3 differs from worker 0"
                ):
                    self.compare(column, traced)

    def test_the_terms_are_part_of_the_plan(self):
        plan, group = make_plan(settings("qsgd"), ["v"], [tf.TensorSpec([2000])], [0]), Group()
        told = []
        for terms in ("", "sum", "mean", "sum"):
            handshake.compare(group, plan, (), terms)
            told.append(group.words)
        self.assertLen(set(told), 3)
        self.assertLen({(version, seed, weights) for version, seed, _, weights in told}, 1)

    def test_the_digest_tells_shape_dtype_and_bits(self):
        base = np.arange(6, dtype=np.float32)
        others = [base.reshape(2, 3), base.astype(np.float64), base + 1, -base, base[:5]]
        digests = {handshake.digest([a]) for a in [base, *others]}
        self.assertLen(digests, 6)
        self.assertEqual(handshake.digest([base]), handshake.digest([base.copy()]))
        self.assertNotEqual(
            handshake.digest([np.float32(0.0)]), handshake.digest([np.float32(-0.0)])
        )
        self.assertLess(max(digests), 2**56)
