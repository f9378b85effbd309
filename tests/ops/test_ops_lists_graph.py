"""Where the fused operations on lists run, what they leave in a graph, and what they refuse."""

import pytest
import tensorflow as tf

from grace_tf import ops
from grace_tf.ops import dispatch, quantization, signs
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.quantization import Code

pytestmark = [
    pytest.mark.rotated,
    pytest.mark.skipif(not native.available(), reason=native.why_not()),
]


class ChoiceTest(tf.test.TestCase):
    def test_runs_here_follows_the_choice_of_ops(self):
        xs = [tf.ones([3]), tf.ones([2, 2])]
        self.assertTrue(dispatch.runs_here(xs))
        with ops.using("reference"):
            self.assertFalse(dispatch.runs_here(xs))
            with ops.using("native"):
                self.assertTrue(dispatch.runs_here(xs))
        seen = []

        def note(x):
            seen.append(dispatch.runs_here([x]))
            return x

        tf.function(note)(xs[0])
        tf.function(note, jit_compile=True).get_concrete_function(tf.TensorSpec([3]))
        self.assertEqual(seen, [True, False])

    def test_shapes_are_static_and_a_list_is_one_node(self):
        shapes = [(3, 5), (), (70,)]
        specs = [tf.TensorSpec(shape) for shape in shapes]
        code = Code(7, 4, 32, "max")

        @tf.function(input_signature=[specs, specs])
        def step(xs, residuals):
            got = quantization.encode(xs, residuals, 0.5, code, None)
            rows = got.words[tf.newaxis], got.scales[tf.newaxis]
            totals, _ = quantization.decode(*rows, shapes, tf.constant(1.0), code)
            for x, total, kept in zip(xs, totals, got.residuals_out):
                self.assertEqual(total.shape, x.shape)
                self.assertEqual(kept.shape, x.shape)
            return totals, got.residuals_out, got.finite

        graph = step.get_concrete_function().graph
        ours = [op.type for op in graph.get_operations() if op.type.startswith("Grace")]
        self.assertEqual(ours, ["Grace>QuantizeList", "Grace>DequantizeList"])

    def test_what_does_not_fit_is_refused(self):
        x, zero = tf.ones([40]), tf.constant(1.0)
        encode, decode, code = quantization.encode, quantization.decode, Code(7, 4, 32, "max")
        words, scales = tf.zeros([1, 8], tf.int32), tf.zeros([1, 2])
        key = arguments.ListKey(0, 0, 0, (1, 2), 0)
        for call in (
            lambda: encode([], None, 1.0, code, None),
            lambda: encode([x], [x[1:]], 1.0, code, None),
            lambda: encode([x], [x, x], 1.0, code, None),
            lambda: encode([x], None, 1.0, code._replace(levels=8), None),
            lambda: encode([x], None, 1.0, code._replace(block=0), None),
            lambda: encode([x], None, 1.0, code._replace(norm="l1"), None),
            lambda: encode([x], None, 1.0, code, key),
            lambda: decode(words, scales, [[31]], zero, code),
            lambda: decode(words, scales[:, 1:], [[40]], zero, code),
            lambda: decode(words, tf.zeros([2, 2]), [[40]], zero, code),
            lambda: signs.vote_list(words, [[40]], zero),
        ):
            with self.assertRaises(ValueError):
                call()
        with self.assertRaises(TypeError):
            signs.sign_list([tf.ones([3], tf.float64)], 1.0)


if __name__ == "__main__":
    tf.test.main()
