"""The nodes of a step's graph, which the first step goes over several times to optimise it."""

from unittest import mock

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.aggregation.state import conditions
from grace_tf.ops.backend import native
from grace_tf.testing.workers import Workers

# A gradient goes in, is computed and goes out; small leaves of the state share a variable.
ALONE = {"qsgd": 3, "topk:ratio=0.5": 3, "powersgd": 3}


def size_of(graph):
    """The nodes of a graph as TensorFlow optimises it: a condition's tensors become nodes of it."""
    definition = graph.as_graph_def(add_shapes=False)
    functions = {function.signature.name: function for function in definition.library.function}
    nodes = len(definition.node)
    for node in definition.node:
        if node.op in ("If", "StatelessIf") and node.attr["_lower_using_switch_merge"].b:
            nodes += len(node.input)
            for branch in ("then_branch", "else_branch"):
                nodes += len(functions[node.attr[branch].func.name].node_def)
    return nodes


def step_of(method, variables):
    made = [tf.Variable(tf.zeros([16, 8]), name=f"v{i}") for i in range(variables)]
    aggregate = grace_tf.Aggregator(method, made, min_elements=1)
    spec = [tf.TensorSpec([16, 8])] * variables

    def step(*grads):
        return aggregate([tf.identity(g) for g in grads], made)

    return tf.function(step, autograph=False).get_concrete_function(*spec)


class NodesTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        if not native.available():
            self.skipTest(native.why_not())

    def test_the_state_of_a_variable_is_a_few_nodes_and_in_no_condition(self):
        for method, most in ALONE.items():
            few, many = (size_of(step_of(method, n).graph) for n in (4, 14))
            self.assertLessEqual((many - few) / 10, most, method)

    def test_what_is_not_compressed_is_a_few_nodes_between_workers(self):
        def size(variables):
            workers = Workers(2, "none")
            spec = [[tf.TensorSpec([16, 8])] * variables] * 2
            step = tf.function(workers.step, autograph=False)
            return size_of(step.get_concrete_function(spec).graph)

        # For each of two workers: in and out.
        self.assertLessEqual((size(14) - size(4)) / 20, 2)

    def test_native_nodes_tell_the_optimiser_the_shapes_of_all_outputs(self):
        """Else it infers a node again for each of its inputs, so for squares of their number."""
        workers = Workers(2, "none")
        spec = [[tf.TensorSpec([16, 8])] * 5] * 2
        between = tf.function(workers.step, autograph=False).get_concrete_function(spec).graph
        for graph in (between, *(step_of(method, 5).graph for method in ALONE)):
            nodes = [
                node
                for node in graph.get_operations()
                if node.type.startswith("Grace>") or node.type == "_ReadVariablesOp"
            ]
            self.assertNotEmpty(nodes)
            for node in nodes:
                told = [tf.TensorShape(shape) for shape in node.get_attr("_output_shapes")]
                self.assertEqual(told, [output.shape for output in node.outputs], node.name)

    def test_a_condition_with_many_tensors_is_one_node_that_runs_one_branch(self):
        held = [tf.Variable(float(i)) for i in range(9)]

        @tf.function(autograph=False)
        def step(flag):
            def assign():
                for each in held:
                    each.assign_add(1.0)
                return tf.constant(True)

            with mock.patch.object(conditions, "_one_device", return_value=True):
                return conditions.cond(flag, assign, lambda: tf.constant(False))

        self.assertTrue(step(tf.constant(True)))
        self.assertFalse(step(tf.constant(False)))
        self.assertAllEqual(held, np.arange(9) + 1.0)
        graph = step.get_concrete_function(tf.constant(True)).graph
        self.assertEqual(size_of(graph), len(graph.get_operations()))

    def test_a_refused_step_keeps_every_leaf_and_the_count(self):
        workers = Workers(1, "powersgd:rank=1")
        good = [np.ones([4, 3], np.float32), np.arange(6, dtype=np.float32).reshape([3, 2])]
        workers([good])
        before = [v.numpy() for v in workers.state.variables]
        bad = [good[0], np.full([3, 2], np.inf, np.float32)]
        (totals,) = workers([bad])
        self.assertTrue(all(np.isnan(total).all() for total in totals))
        for kept, variable in zip(before, workers.state.variables, strict=True):
            self.assertEqual(kept.tobytes(), variable.numpy().tobytes(), variable.name)
        workers([good])
        self.assertEqual(workers.state.step, 2)


if __name__ == "__main__":
    tf.test.main()
