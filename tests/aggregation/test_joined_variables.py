"""Small leaves that share a variable behave as leaves with variables of their own."""

from unittest import mock

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.aggregation.state import joined_variables
from grace_tf.aggregation.state.joined_variables import JoinedVariable, Part
from grace_tf.testing.workers import Workers

SHAPES = [4, 3], [5], [2, 2, 2]


def gradients(step, workers=1):
    generator = np.random.default_rng(step)
    return [
        [generator.normal(size=shape).astype(np.float32) for shape in SHAPES]
        for _ in range(workers)
    ]


def flat(results):
    """All that the workers got, as one array."""
    return np.concatenate([np.ravel(each) for mine in results for each in mine])


def apart():
    """Makes every leaf's variable its own."""
    return mock.patch.object(joined_variables, "fits", lambda value: False)


def aggregated(aggregate, step, variables):
    grads = [tf.constant(g) for g in gradients(step)[0]]
    return aggregate(grads[: len(variables)], variables)


class JoinedVariablesTest(tf.test.TestCase):
    def test_training_and_saved_state_are_those_of_leaves_apart(self):
        for method in ("topk:ratio=0.5", "powersgd:rank=1", "dgc:ratio=0.5"):
            joined = Workers(2, method)
            with apart():
                separate = Workers(2, method)
                expected = [flat(separate(gradients(step, 2))) for step in range(3)]
            results = [flat(joined(gradients(step, 2))) for step in range(3)]
            self.assertAllEqual(results, expected)
            self.assertLess(len(joined.state.variables), len(separate.state.variables), method)
            saved, wanted = joined.state.arrays(), separate.state.arrays()
            bits = [{n: a.tobytes() for n, a in each.items()} for each in (saved, wanted)]
            self.assertEqual(*bits)
            with apart():
                other = Workers(2, method)
                other.state.restore(saved)
                expected = flat(separate(gradients(3, 2)))
                self.assertAllEqual(flat(other(gradients(3, 2))), expected)
            other = Workers(2, method)
            other.state.restore(wanted)
            self.assertAllEqual(flat(other(gradients(3, 2))), expected)

    def test_eager_and_compiled_steps_store_the_same(self):
        eager, traced = Workers(1, "topk:ratio=0.5"), Workers(1, "topk:ratio=0.5")
        compiled = Workers(1, "topk:ratio=0.5")
        step = tf.function(compiled.step, autograph=False, jit_compile=True)
        for number in range(3):
            grads = [[tf.constant(g) for g in mine] for mine in gradients(number)]
            expected = flat(eager.step(grads))
            self.assertAllEqual(flat(traced(grads)), expected)
            self.assertAllClose(flat(step(grads)), expected)
        self.assertAllEqual(traced.state.variables[1], eager.state.variables[1])
        self.assertAllClose(compiled.state.variables[1], eager.state.variables[1])

    def test_what_equals_on_all_workers_shares_no_variable_with_what_does_not(self):
        workers = Workers(1, "powersgd:rank=1")
        workers(gradients(0))
        alike = {id(variable) for variable in workers.state.alike_variables}
        self.assertLen(workers.state.variables, 3)  # the step, residuals, second factors
        self.assertLen(alike, 2)

    def test_a_step_of_some_variables_keeps_the_leaves_of_the_others(self):
        variables = [tf.Variable(tf.zeros(shape), name=f"v{i}") for i, shape in enumerate(SHAPES)]
        aggregate = grace_tf.Aggregator("topk:ratio=0.5", min_elements=1)
        aggregated(aggregate, 0, variables)
        before = aggregate.state.arrays()
        aggregated(aggregate, 1, variables[:2])
        after = aggregate.state.arrays()
        (kept,) = (name for name in before if name.startswith("v2/"))
        (gone,) = (name for name in before if name.startswith("v1/"))
        self.assertAllEqual(after[kept], before[kept])
        self.assertNotAllEqual(after[gone], before[gone])

    def test_rows_of_a_variable_reach_a_leaf_that_a_dense_gradient_has_joined(self):
        def residuals(joined):
            variables = [tf.Variable(tf.zeros([4, 3]), name=f"v{i}") for i in range(2)]
            aggregate = grace_tf.Aggregator("topk:ratio=0.5", min_elements=1)
            dense = [tf.constant(g[0]) for g in (gradients(0)[0], gradients(1)[0])]
            aggregate(dense, variables)
            rows = tf.IndexedSlices(tf.constant(gradients(2)[0][0][:2]), [3, 1], [4, 3])
            self.assertIsInstance(aggregate([dense[1], rows], variables)[1], tf.IndexedSlices)
            self.assertEqual(joined, len(aggregate.state.variables) == 2)
            return {n: a.tobytes() for n, a in aggregate.state.arrays().items()}

        with apart():
            expected = residuals(False)
        self.assertEqual(residuals(True), expected)

    def test_a_refused_step_keeps_all(self):
        workers = Workers(1, "topk:ratio=0.5")
        workers(gradients(0))
        before = workers.state.variables[1].numpy()
        bad = gradients(1)
        bad[0][1][2] = np.inf
        workers(bad)
        self.assertAllEqual(workers.state.variables[1], before)


class PartTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        values = [np.full(shape, i, np.float32) for i, shape in enumerate(SHAPES)]
        self.joined = JoinedVariable(values, "joined")

    def test_assigning_one_leaves_the_others(self):
        self.joined.parts[1].assign(np.arange(5.0))
        self.assertAllEqual(self.joined.parts[0].numpy(), np.zeros([4, 3]))
        self.assertAllEqual(self.joined.parts[1].numpy(), np.arange(5.0))
        self.assertAllEqual(self.joined.parts[2].numpy(), np.full([2, 2, 2], 2.0))

    def test_a_value_of_another_shape_is_refused(self):
        with self.assertRaises(ValueError):
            self.joined.parts[1].assign(np.zeros([4]))

    def test_rows_are_read_as_of_a_variable(self):
        part = self.joined.parts[2]
        self.assertIsInstance(part, Part)
        self.assertAllEqual(tf.gather(part, [1]), np.full([1, 2, 2], 2.0))


if __name__ == "__main__":
    tf.test.main()
