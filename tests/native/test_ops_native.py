"""Native is the reference, bit for bit: any length, instruction set, thread count, any bits."""

import itertools
import os
import subprocess
import sys

import hypothesis
import numpy as np
import numpy_ops
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from ops_cases import KEY, LENGTHS, LONG, SameBits, everything, gradient, isas

from grace_tf import ops
from grace_tf.ops.backend import native
from grace_tf.ops.backend.arguments import ListKey

needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())


@needs_native
class NativeTest(SameBits):
    def compare(self, n, blocks, threads):
        x = tf.constant(gradient(n))
        with ops.using("reference"):
            wanted = everything(x, n, blocks)
        for isa, count in itertools.product(isas(), threads):
            native.set_isa(isa)
            native.set_threads(count)
            with ops.using("native"):
                got = everything(x, n, blocks)
            for name in wanted:
                self.assert_same_bits(got[name], wanted[name], f"{name} of {n} on {isa}, {count}")

    def test_equals_reference_for_short_lengths(self):
        for n in LENGTHS:
            self.compare(n, [100, n], [1])

    def test_equals_reference_for_any_number_of_threads(self):
        self.compare(LONG[0], [512, 70000], [1, 2, 3])

    def test_equals_reference_for_a_long_vector(self):
        n = LONG[1]
        x = tf.constant(gradient(n))
        results = {}
        for name in ("reference", "native"):
            with ops.using(name):
                scales = ops.block_scales(x, n, "l2")
                words = ops.quantize(x, scales, 7, 4, n, KEY)
                results[name] = {
                    "scales": scales,
                    "max": ops.block_scales(x, 100000, "max"),
                    "words": words,
                    "values": ops.dequantize(words, scales, n, 7, 4, n),
                    "signs": ops.pack_signs(x),
                    "top": ops.top_k(x, n // 100)[1],
                    "ties": ops.top_k(tf.ones([n]), n // 100)[1],
                }
        for name, wanted in results["reference"].items():
            self.assert_same_bits(results["native"][name], wanted, name)

    def test_the_choice_is_native_on_the_cpu_and_reference_under_xla(self):
        def traced(**options):
            function = tf.function(ops.pack_signs, **options)
            graph = function.get_concrete_function(tf.TensorSpec([40])).graph
            return {op.type for op in graph.get_operations()}

        self.assertIn("Grace>SignList", traced())
        self.assertNotIn("Grace>SignList", traced(jit_compile=True))

    def test_one_trace_serves_every_step(self):
        traces = []

        @tf.function
        def words(step, worker):
            traces.append(1)
            return ops.random_words(9, ops.Key(1, worker, step, 0, 0))

        for step, worker in [(0, 0), (1, 0), (2**31 + 5, 9)]:
            got = words(tf.constant(step, tf.int64), tf.constant(worker))
            self.assert_same_bits(got, numpy_ops.random_words(9, ops.Key(1, worker, step, 0, 0)))
        self.assertLen(traces, 1)

    def test_one_call_serves_a_list_of_tensors(self):
        module = native._ops()
        key = ListKey(KEY.seed, KEY.worker, KEY.step, (4, 2, 9), KEY.draw)
        xs = [tf.constant(gradient(n)) for n in (5, 70, 33)]
        scales = module.grace_block_scales(xs=xs, block=32, l2=True)
        words = module.grace_quantize(
            xs=xs,
            scales=scales,
            levels=7,
            bits=4,
            block=32,
            stochastic=True,
            **native.streams(key),
        )
        for i, variable in enumerate([4, 2, 9]):
            self.assert_same_bits(scales[i], ops.block_scales(xs[i], 32, "l2"))
            key = KEY._replace(variable=variable)
            self.assert_same_bits(words[i], ops.quantize(xs[i], scales[i], 7, 4, 32, key))

    def test_sizes_that_do_not_fit_are_refused_by_the_kernels(self):
        module = native._ops()
        x = tf.zeros([40])
        zero = tf.constant(0, tf.int64)
        stream = dict(seed=zero, worker=zero, step=zero)
        code = dict(levels=1, bits=2, block=8)
        calls = [
            lambda: module.grace_block_scales(xs=[x], block=0, l2=False),
            lambda: module.grace_quantize(
                xs=[x], scales=[x], stochastic=True, variables=[0], draw=0, **code, **stream
            ),
            lambda: module.grace_quantize(
                xs=[x], scales=[x[:5]], stochastic=True, variables=[], draw=0, **code, **stream
            ),
            lambda: module.grace_gather(xs=[x], indices=[tf.constant([0, 40])]),
            lambda: module.grace_gather(xs=[x], indices=[tf.constant([-1])]),
        ]
        for i, call in enumerate(calls):
            with self.assertRaises(tf.errors.InvalidArgumentError, msg=f"call {i}"):
                call()

    def test_bad_indices_are_refused(self):
        values = tf.ones([1, 3])
        with ops.using("native"), tf.device("/CPU:0"):  # a GPU's kernels raise no errors
            for indices in ([0, 1, 5], [-1, 0, 1], [0, 2, 1], [0, 1, 1]):
                with self.assertRaises(tf.errors.InvalidArgumentError):
                    ops.scatter_sum(values, tf.constant([indices]), None, 5)
            unused = ops.scatter_sum(values, tf.constant([[0, 4, -9]]), tf.constant([2]), 5)
        self.assertAllEqual(unused, [1, 0, 0, 0, 1])


# Asks for a tensor of eight gigabytes, after the process was limited to one more than it uses.
TOO_LARGE = """
import resource
import tensorflow as tf
from grace_tf import ops

def scatter(n):
    return ops.scatter_sum(tf.ones([1, 3]), tf.constant([[0, 1, 2]]), None, n)

with ops.using("native"):
    scatter(5)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
    try:
        scatter(2**31 - 1)
    except tf.errors.ResourceExhaustedError:
        print("told")
"""


@needs_native
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="there is no /proc")
def test_a_lack_of_memory_is_told_as_such():
    ended = subprocess.run([sys.executable, "-c", TOO_LARGE], capture_output=True, text=True)
    assert ended.stdout == "told\n", ended.stderr


@needs_native
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(
    data=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300),
    isa=st.sampled_from(isas() if native.available() else ["generic"]),
    fraction=st.floats(0, 1),
)
def test_any_bits_are_handled_alike(data, isa, fraction):
    """Whatever the 32 bits of each element: NaN, infinities, denormals."""
    x = tf.constant(np.array(data, np.uint32).view(np.float32))
    k = max(1, int(fraction * len(data)))
    results = []
    for name in ("native", "reference"):
        native.set_isa(isa)
        with ops.using(name):
            scales = ops.block_scales(x, 50, "max")
            words = ops.quantize(x, scales, 7, 4, 50, KEY)
            outcome = [scales, words, ops.pack_signs(x), *ops.top_k(x, k)]
            results.append([np.asarray(tensor).tobytes() for tensor in outcome])
    native.set_isa("auto")
    assert results[0] == results[1]


if __name__ == "__main__":
    tf.test.main()
