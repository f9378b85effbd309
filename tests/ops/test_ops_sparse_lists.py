"""Sparse operations on lists: the nodes that they are in a graph, and what they refuse."""

import numpy as np
import pytest
import tensorflow as tf
from ops_cases import gradient
from sparse_list_cases import ListsTest, list_key

from grace_tf import ops
from grace_tf.ops import cast, selection
from grace_tf.ops.backend import native

pytestmark = [
    pytest.mark.rotated,
    pytest.mark.skipif(not native.available(), reason=native.why_not()),
]

KEY = ops.Key(seed=7, worker=3, step=5, variable=2, draw=1)


class GraphTest(ListsTest):
    def test_a_list_is_one_node_whatever_its_length(self):
        def nodes(tensors):
            specs = [tf.TensorSpec([4, 5])] * tensors

            @tf.function
            def step(xs, residuals):
                ks, shapes = [3] * tensors, [(4, 5)] * tensors
                values, indices, kept, _ = selection.top_k_list(xs, residuals, 1.0, ks)
                kept = selection.refine_list(kept, indices, values, values, ks)
                factor = tf.constant(1.0)
                totals, _ = selection.scatter_list(
                    values[None], indices[None], None, ks, shapes, factor
                )
                self.assertEqual([t.shape for t in (*kept, *totals)], [(4, 5)] * 2 * tensors)
                return kept, totals

            graph = step.get_concrete_function(specs, specs).graph
            return [op for op in graph.get_operations() if op.type != "Placeholder"]

        # Beside them only the identities of what a function returns.
        few, many = nodes(2), nodes(20)
        self.assertEqual(
            len([op for op in few if op.type != "Identity"]),
            len([op for op in many if op.type != "Identity"]),
        )
        self.assertNotIn("Reshape", {op.type for op in many})

    def test_the_step_of_a_key_may_be_a_tensor(self):
        x = tf.constant(gradient(500))

        @tf.function
        def draw(step):
            key = selection.ListKey(7, 3, step, (2,), 1)
            return selection.random_k_list([x], None, 1.0, [9], key)[0]

        for step in (0, 5, 2**31 + 1):
            wanted = ops.gather(x, ops.random_indices(500, 9, KEY._replace(step=step)))
            self.assert_same_bits(draw(tf.constant(step, tf.int64)), wanted)


class RefusalsTest(ListsTest):
    def scatter(self, indices, counts=None):
        return selection.scatter_list(
            tf.ones([1, 5]),
            tf.constant([indices]),
            counts,
            [2, 3],
            [(2, 2), (7,)],
            tf.constant(1.0),
        )[0]

    def test_a_bad_index_is_named(self):
        for indices, fault in [
            ([0, 3, 1, 2, 7], "Index 7 is outside tensor 1 of the list, which has 7 elements"),
            ([0, 4, 1, 2, 3], "Index 4 is outside tensor 0 "),
            ([0, 3, -1, 2, 3], "Index -1 is outside tensor 1 "),
            ([0, 3, 5, 9, 6], "Index 9 is outside tensor 1 "),
            ([3, 0, 1, 2, 3], "tensor 0 of the list do not ascend"),
            ([0, 1, 2, 2, 3], "tensor 1 of the list do not ascend"),
        ]:
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, fault):
                self.scatter(indices)
            kept = [tf.zeros([2, 2]), tf.zeros([7])]
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, fault):
                one = tf.ones([5])
                selection.refine_list(kept, tf.constant(indices), one, one, [2, 3])
        unused = self.scatter([0, 9, 4, -1, 9], tf.constant([[1, 1]]))
        self.assertAllEqual(unused[0], [[1, 0], [0, 0]])
        self.assertAllEqual(unused[1], [0, 0, 0, 0, 1, 0, 0])

    def test_what_does_not_fit_is_refused(self):
        x, key, one = tf.zeros([4]), list_key(1), tf.constant(1.0)
        values, indices = tf.zeros([1, 2]), tf.constant([[0, 1]])
        top_k, scatter = selection.top_k_list, selection.scatter_list
        for call in [
            lambda: top_k([], None, 1.0, []),
            lambda: top_k([x], None, 1.0, [0]),
            lambda: top_k([x], None, 1.0, [5]),
            lambda: top_k([x], None, 1.0, [1, 1]),
            lambda: top_k([x], [x, x], 1.0, [1]),
            lambda: top_k([x], [tf.zeros([2, 2])], 1.0, [1]),
            lambda: top_k([tf.zeros([0])], None, 1.0, [1]),
            lambda: selection.threshold_list([x], None, 1.0, -1.0, [1]),
            lambda: selection.threshold_list([x], None, 1.0, np.nan, [1]),
            lambda: selection.random_k_list([x], None, 1.0, [1], list_key(2)),
            lambda: selection.random_k_list([x], None, 1.0, [1], key._replace(draw=256)),
            lambda: selection.scatter_random_list(x, [3], [(4,)], key, one),
            lambda: scatter(values, indices, None, [3], [(4,)], one),
            lambda: scatter(values, indices, None, [2], [(1,)], one),
            lambda: scatter(values, indices[:, :1], None, [2], [(4,)], one),
            lambda: scatter(values, indices, tf.constant([[1, 1]]), [2], [(4,)], one),
            lambda: cast.uncast_list(tf.zeros([3], tf.float16), [(4,)], one),
        ]:
            with self.assertRaises(ValueError):
                call()
        for call in [
            lambda: top_k([tf.zeros([4], tf.float64)], None, 1.0, [1]),
            lambda: cast.cast_list([x], None, 1.0, tf.float64),
            lambda: cast.uncast_list(x, [(4,)], one),
        ]:
            with self.assertRaises(TypeError):
                call()

    def test_the_kernels_check_for_themselves(self):
        module, x, one = native._ops(), tf.zeros([4]), tf.constant(1.0)
        zero = tf.constant(0, tf.int64)
        stream = dict(seed=zero, worker=zero, step=zero, variables=[0], draw=0)
        values, indices, none = tf.zeros([1, 2]), tf.constant([[0, 1]]), tf.zeros([0, 0], tf.int32)
        sparse = dict(values=values, indices=indices, counts=none, factor=one, N=1)
        half = tf.zeros([3], tf.float16)
        calls = [
            lambda: module.grace_top_k_list(xs=[x], residuals=[x, x], multiplier=1.0, ks=[1]),
            lambda: module.grace_top_k_list(xs=[x], residuals=[x[:3]], multiplier=1.0, ks=[1]),
            lambda: module.grace_top_k_list(xs=[x], residuals=[], multiplier=1.0, ks=[5]),
            lambda: module.grace_top_k_list(xs=[x], residuals=[], multiplier=1.0, ks=[1, 1]),
            lambda: module.grace_threshold_list(
                xs=[x], residuals=[], multiplier=1.0, threshold=-1.0, capacities=[1]
            ),
            lambda: module.grace_random_k_list(
                xs=[x, x], residuals=[], multiplier=1.0, ks=[1, 1], **stream
            ),
            lambda: module.grace_random_indices(n=4, k=5, **stream),
            lambda: module.grace_scatter_random_list(
                values=x, factor=one, N=1, ks=[5], scales=[], ranks=[1], dims=[5], **stream
            ),
            lambda: module.grace_scatter_random_list(
                values=x, factor=one, N=1, ks=[4], scales=[1, 1], ranks=[1], dims=[4], **stream
            ),
            lambda: module.grace_scatter_list(ks=[3], ranks=[1], dims=[4], counted=False, **sparse),
            lambda: module.grace_scatter_list(ks=[2], ranks=[2], dims=[4], counted=False, **sparse),
            lambda: module.grace_scatter_list(ks=[2], ranks=[1], dims=[4], counted=True, **sparse),
            lambda: module.grace_refine_list(
                residuals_out=[x], indices=indices[0], values=x, decoded=x, ks=[4]
            ),
            lambda: module.grace_uncast_list(halves=half, factor=one, N=1, ranks=[1], dims=[4]),
        ]
        for i, call in enumerate(calls):
            with self.assertRaises(tf.errors.InvalidArgumentError, msg=f"call {i}"):
                call()


if __name__ == "__main__":
    tf.test.main()
