"""What is kept in fewer bits: native, reference and NumPy agree bit for bit."""

import numpy as np
import numpy_ops
import pytest
import tensorflow as tf
from ops_cases import isas

from grace_tf import ops
from grace_tf.ops import dispatch, narrow_storage, weighted_sum
from grace_tf.ops.backend import native
from grace_tf.ops.backend.arguments import ListKey

pytestmark = pytest.mark.rotated

SHAPES = [(), (1,), (31,), (4, 8), (33,), (255,), (257,), (7, 101), (2049,)]
KEY = ListKey(5, 2, 9, tuple(range(3, 3 + len(SHAPES))), 255)
CORNERS = np.uint32(
    [0, 1 << 31, 1, 0x80000001, 0x007FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F0000, 0x7F7F0001]
).view(np.float32)


def tensors(kind):
    draw = np.random.default_rng(4)
    each = []
    for shape in SHAPES:
        x = draw.standard_normal(shape)
        if kind == "corners":
            x = draw.choice(CORNERS, shape)
        if kind == "of all sizes":
            x = x * 2.0 ** draw.integers(-140, 120, shape)
        if kind == "zeros":
            x = 0 * x
        each.append(np.asarray(x, np.float32))
    return each


KINDS = ("normal", "corners", "of all sizes", "zeros")


def everywhere(function, xs):
    """(name, result) of a function of a list: reference, traced, and natively, each as NumPy."""

    def numpy(results):
        return [x.numpy() for x in results]

    xs = [tf.constant(x) for x in xs]
    with ops.using("reference"):
        yield "eager reference", numpy(function(xs))
        yield "traced reference", numpy(tf.function(function, autograph=False)(xs))
    if not native.available():
        return
    with ops.using("native"):
        for isa in isas():
            native.set_isa(isa)
            for threads in (1, 3):
                native.set_threads(threads)
                yield f"native {isa}, {threads} threads", numpy(function(xs))
        native.set_isa("auto")
        native.set_threads(0)
        yield "native, traced", numpy(tf.function(function, autograph=False)(xs))


def assert_bits(name, got, wanted):
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{name}, tensor {i}"
        assert a.tobytes() == b.tobytes(), f"{name}, tensor {i}: {a} is not {b}"


def halves_of(x, key):
    bits = x.reshape(-1).view(np.uint32)
    drawn = numpy_ops.coarse_words(x.size, key) >> 16
    rounded = (bits + drawn).astype(np.uint32)
    finite = rounded & 0x7FFFFFFF < 0x7F800000
    return (np.where(finite, rounded, bits) >> 16).astype(np.uint16).reshape(x.shape)


def bytes_of(x, key):
    x = x.reshape(-1)
    scales = numpy_ops.block_scales(x, 256, "max")
    codes = numpy_ops.quantize(x, scales, 127, 8, 256, key)
    return (
        np.concatenate([codes.view(np.uint8), scales.view(np.uint8)]).view(np.int8).reshape(-1, 4)
    )


def keys():
    return [ops.Key(KEY.seed, KEY.worker, KEY.step, v, KEY.draw) for v in KEY.variables]


@pytest.mark.parametrize("kind", KINDS)
def test_halves(kind):
    xs = tensors(kind)
    wanted = [halves_of(x, key) for x, key in zip(xs, keys())]
    for name, got in everywhere(lambda xs: narrow_storage.to_halves_list(xs, KEY), xs):
        assert_bits(name, got, wanted)
    floats = [
        (h.reshape(-1).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(h.shape)
        for h in wanted
    ]
    for name, got in everywhere(narrow_storage.from_halves_list, wanted):
        assert_bits(name, got, floats)
        assert all(np.isfinite(x).all() for x in got)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes(kind):
    xs = tensors(kind)
    wanted = [bytes_of(x, key) for x, key in zip(xs, keys())]
    for name, got in everywhere(lambda xs: narrow_storage.to_bytes_list(xs, KEY), xs):
        assert_bits(name, got, wanted)
    floats = []
    for stored, x in zip(wanted, xs):
        words = stored.view(np.int32).reshape(-1)
        codes, scales = np.split(words, [ops.packed_words(x.size, 8)])
        scales = scales.view(np.float32)[None]
        back = numpy_ops.dequantize_sum(codes[None], scales, x.size, 127, 8, 256)
        floats.append(back.reshape(x.shape))
    for name, got in everywhere(lambda s: narrow_storage.from_bytes_list(s, SHAPES), wanted):
        assert_bits(name, got, floats)


@pytest.mark.skipif(not native.available(), reason="the native operations are not there")
def test_one_node_a_list():
    def stored_and_loaded(xs, of_bytes):
        if of_bytes:
            return narrow_storage.from_bytes_list(narrow_storage.to_bytes_list(xs, KEY), SHAPES)
        return narrow_storage.from_halves_list(narrow_storage.to_halves_list(xs, KEY))

    specs = [tf.TensorSpec(shape) for shape in SHAPES]
    for of_bytes in (False, True):
        function = tf.function(stored_and_loaded, autograph=False)
        graph = function.get_concrete_function(specs, of_bytes).graph
        assert dispatch.runs_here(graph.inputs)
        assert sum(op.type.startswith("Grace>") for op in graph.get_operations()) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_mixed(kind):
    xs, ys = tensors(kind), tensors("normal")

    def flushed(x):
        return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)

    a, b = np.float32(0.3), np.float32(0.7)
    wanted = [
        flushed(flushed(b * flushed(y)) + flushed(a * flushed(x))).astype(np.float32)
        for x, y in zip(xs, ys)
    ]
    for name, got in everywhere(lambda xs: weighted_sum.mix_list(xs, 0.3, ys, 0.7), xs):
        for x, y in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=name)


def test_what_does_not_fit_is_refused():
    x = tf.zeros([300])
    with pytest.raises(ValueError, match="names 9 variables for 1 tensors"):
        narrow_storage.to_halves_list([x], KEY)
    stored = narrow_storage.to_bytes_list([x], ListKey(0, 0, 0, (1,), 255))
    with pytest.raises(ValueError, match="does not belong to tensors of these shapes"):
        narrow_storage.from_bytes_list(stored, [(600,)])
    with pytest.raises(TypeError, match="stored must be uint16, not float32"):
        narrow_storage.from_halves_list([x])
