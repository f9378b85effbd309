"""Words travel as float32 wherever TensorFlow keeps int32 in the host's memory."""

import numpy as np
import pytest
import tensorflow as tf
from test_two_hops import BLOCKED, VOTES

from grace_tf.core import registry
from grace_tf.ops.backend import native, words_as_floats
from grace_tf.testing.workers import Workers

# What moves numbers, and has its int32 kernels for GPUs in the host's memory.
MOVES = set("ConcatV2 ExpandDims Pack Pad PadV2 Reshape Slice Split SplitV Squeeze".split())
MOVES |= set("StridedSlice Tile Transpose Unpack".split())
SHAPES = ((70, 33), (5000,), (513,), (64, 40))
SPECS = [spec for entry in registry.entries() for spec in (entry.name, *entry.examples)]
# Their tables, and the places in chunks, are made by TensorFlow's arithmetic on int32, which runs
# in the host's memory also beside a GPU.
COMPUTED = ("sketch:ratio=0.1,rows=2", "chunktopk", "countsketch")
PATTERNS = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0x80000000, 1, 0], np.uint32).view("i4")


def moved_words(size, spec, **keywords):
    """The operations of a step that move more int32 numbers than a shape has."""
    workers = Workers(size, spec, **keywords)
    grads = [[tf.TensorSpec(shape) for shape in SHAPES] for _ in range(size)]
    step = tf.function(workers.step, autograph=False).get_concrete_function(grads)
    graphs = [step.graph]
    found = []
    while graphs:
        graph = graphs.pop()
        graphs += [f.graph for f in graph._functions.values() if hasattr(f, "graph")]
        for op in graph.get_operations():
            for out in op.outputs:
                words = out.dtype in (tf.int32, tf.uint32) and op.type in MOVES
                if words and (out.shape.num_elements() or 0) > 16:
                    found.append(f"{op.type} {op.name} {out.shape}")
    return found


@pytest.mark.rotated
@pytest.mark.skipif(not native.available(), reason=native.why_not())
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("spec", [spec for spec in SPECS if not spec.startswith(COMPUTED)])
def test_no_operation_moves_words_as_int32(spec, size):
    assert moved_words(size, spec, exchange="gather") == []


@pytest.mark.rotated
@pytest.mark.skipif(not native.available(), reason=native.why_not())
@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("spec", [*BLOCKED, *VOTES])
def test_nor_does_one_in_two_hops(spec, size):
    assert moved_words(size, spec, exchange="two_hop") == []


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_every_bit_pattern_survives(dtype):
    words = tf.constant(PATTERNS.view(dtype))
    seen = []

    def move(parts):
        seen.extend(part.dtype for part in parts)
        return tf.split(tf.concat([*parts, tf.zeros([2], parts[0].dtype)], 0), [6, 6, 2])

    first, second, zeros = words_as_floats.carried(move, [words, words])
    assert seen == [words_as_floats.CARRIER] * 2
    for part in (first, second, words_as_floats.one_row({"a": words})["a"][0]):
        assert part.dtype == words.dtype and part.numpy().tobytes() == words.numpy().tobytes()
    assert zeros.numpy().tolist() == [0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "int16"])
def test_other_parts_stay_what_they_are(dtype):
    part = tf.cast(tf.range(4), dtype)
    assert words_as_floats.as_carrier(part) is part
    rows = {"a": tf.stack([part, part + part])}
    assert words_as_floats.row(rows, 1)["a"].dtype == part.dtype
    joined = words_as_floats.joined([{"a": part}, {"a": part}])["a"]
    assert joined.dtype == part.dtype and joined.shape == [8]
