"""Every fused form gives the bits of its composition: sent, given to the optimizer, and kept."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf import ops
from grace_tf.core import registry, rounds
from grace_tf.line import exchange
from grace_tf.ops.backend import native
from grace_tf.testing import Workers
from grace_tf.transports.loopback import Loopback

SIZE = 3
SPECS = [spec for entry in registry.entries() for spec in (entry.name, *entry.examples)]
MEMORIES = ("none", "residual", "dgc")
# Memories with hyperparameters, each with one method.
FURTHER = (
    ("dgc:ratio=0.05", "dgc:nesterov=true"),
    ("dgc:ratio=0.05", "dgc:masking=false,clip=1.0"),
    ("none", "dgc:nesterov=true"),
    # With momentum 0 a graph may drop the sum 0·u + x, which changes the sign of a zero.
    ("none", "dgc:clip=1.0"),
)
# Blocks and words end within variables; many small ones and a scalar; more than one thread's piece.
CORNERS = {
    "odd": [(33,), (5, 7), (), (1,), (31,), (32,), (513,), (64, 3)],
    "many": [(n,) for n in (2, 3, 7, 8, 15, 17, 63, 64, 65, 129)],
    "large": [(70_001,), (3, 3, 64, 64), (1025,)],
    "matrices": [(40, 48), (7,), (3, 3, 8, 33), (17, 100), (600, 16), (9000, 17), (130, 37)],
}
# Of the odd ones: what a graph is made of, whose tracing takes most of the time.
TRACED = [(33,), (5, 7), (), (513,)]
# Their sums over a worker's own gradient are TensorFlow's in the reference operations.
SUMMED_OTHERWISE = ("powersgd", "acpsgd")


class Recording(Loopback):
    """Keeps what is handed over."""

    def __init__(self, size):
        super().__init__(size)
        self.sent = []

    def _note(self, kind, buffers):
        self.sent += [tf.identity(buffer) for buffer in buffers]
        super()._note(kind, buffers)


def fused_specs():
    """(spec, memory) of every registered method and example that has a fused form."""
    for spec, memory in [*itertools.product(SPECS, MEMORIES), *FURTHER]:
        compressor, owner = grace_tf.get(spec), registry.get_memory(memory)
        outer = getattr(compressor, "outer", compressor)
        form = rounds._FUSED.get((type(outer), type(owner)))
        encodes = outer is compressor and owner.in_encode and getattr(outer, "encodes", False)
        if not (encodes or form and (outer is compressor or form.composites)):
            continue
        if compressor.nonexpansive or not owner.requires_nonexpansive:
            yield spec, memory


SPECS_AND_MEMORIES = list(fused_specs())
NAMES = {entry.name for entry in registry.entries()}
needs_native = pytest.mark.skipif(not native.available(), reason=native.why_not())


def gradients(shapes, step):
    """Normal gradients; in later steps with zeros, denormals, ties and values of all sizes."""
    draw = np.random.default_rng(step)
    mine = []
    for _ in range(SIZE):
        grads = [draw.normal(size=shape).astype(np.float32) for shape in shapes]
        for g in grads:
            if step == 1:
                g *= np.float32(2.0) ** draw.integers(-149, 60, g.shape).astype(np.float32)
            if step == 2:
                g[...] = np.round(g)
                g[g == 0] = -0.0
        mine.append(grads)
    return mine


def run(spec, memory, shapes, summed, traced, bad=None, numbers=(0, 1, 2)):
    """The aggregates, the states and what was sent, of each of the steps of these numbers.

    `bad` has, by the number of a step, a value that is put into a gradient of worker 1.
    """
    transport = Recording(SIZE)
    workers = Workers(SIZE, spec, memory=memory, summed=summed, transport=transport)

    def step(*grads):
        transport.sent.clear()
        return workers.step(grads), list(transport.sent)

    step = tf.function(step, autograph=False) if traced else step
    told = []
    for number in numbers:
        grads = gradients(shapes, number)
        if bad and number in bad:
            grads[1][0].flat[0] = bad[number]
        results, sent = step(*[[tf.constant(g) for g in mine] for mine in grads])
        told.append([t.numpy() for mine in results for t in mine])
        told[-1] += [words.numpy() for words in sent]
        arrays = workers.state.arrays()
        told[-1] += [arrays[name] for name in sorted(arrays) if arrays[name].dtype != object]
    return told


def bits(array):
    """The bits; of NaN, whose bits mean nothing, that it is one."""
    array = np.asarray(array)
    if array.dtype.kind == "f" or array.dtype == tf.bfloat16.as_numpy_dtype:
        array = np.where(np.isnan(array), np.zeros_like(array) + np.float32(0.125), array)
    return array.tobytes()


def assert_same(fused, composed):
    for number, (a, b) in enumerate(zip(fused, composed)):
        assert len(a) == len(b)
        for i, (x, y) in enumerate(zip(a, b)):
            assert bits(x) == bits(y), f"step {number}, array {i} of {len(a)}: {x} is not {y}"


@needs_native
@pytest.mark.rotated
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("spec, memory", SPECS_AND_MEMORIES)
def test_a_fused_form_is_its_composition(spec, memory, corner):
    # Of the other corners two steps are enough.
    ways, numbers = [(CORNERS[corner], False, False)], (0, 1)
    if corner == "odd":
        ways, numbers = [*ways, (TRACED, True, True)], (0, 1, 2)
    for shapes, summed, traced in ways:
        fused = run(spec, memory, shapes, summed, traced, numbers=numbers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exchange, "fused", lambda *_: None)
            assert_same(fused, run(spec, memory, shapes, summed, traced, numbers=numbers))


# The twins of single operations, with other hyperparameters, are compared in tests/ops.
@needs_native
@pytest.mark.rotated
@pytest.mark.parametrize("spec, memory", [one for one in SPECS_AND_MEMORIES if one[0] in NAMES])
def test_a_fused_form_is_the_composition_of_reference_operations(spec, memory):
    shapes = [(33,), (5, 7), (513,)]
    exact = spec.split(":")[0] not in SUMMED_OTHERWISE
    # Of values of all sizes, what is left of a matrix of low rank is but rounding.
    numbers = (0, 1, 2) if exact else (0, 2)
    fused = run(spec, memory, shapes, True, True, numbers=numbers)
    with ops.using("reference"):
        composed = run(spec, memory, shapes, True, False, numbers=numbers)
    if exact:
        return assert_same(composed, fused)
    for a, b in zip(composed, fused):
        for x, y in zip(a, b):
            np.testing.assert_allclose(x, y, atol=1e-4 * np.abs(x).max(), rtol=0)


@needs_native
@pytest.mark.rotated
@pytest.mark.parametrize("spec, memory", SPECS_AND_MEMORIES)
def test_a_fused_form_sees_what_is_not_finite(spec, memory):
    shapes, bad = [(5, 7), (33,), ()], {0: np.nan, 1: np.inf, 2: -np.inf}
    for step in run(spec, memory, shapes, False, False, bad):
        assert all(np.isnan(total).all() for total in step[: SIZE * len(shapes)])


@needs_native
@pytest.mark.parametrize("memory", ["lowpass", "lowpass:beta=1", "residual:dtype=int8"])
@pytest.mark.parametrize("spec", ["qsgd:rounding=nearest", "topk:ratio=0.1|values=fp16"])
def test_the_forms_of_the_residual_serve_memories_like_it(spec, memory):
    compressor, kept = grace_tf.get(spec), registry.get_memory(memory)
    assert rounds.fused(compressor, kept, [tf.zeros([3])])
    fused = run(spec, memory, TRACED, True, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "fused", lambda *_: None)
        assert_same(fused, run(spec, memory, TRACED, True, True))
    with ops.using("reference"):
        assert_same(run(spec, memory, TRACED, True, False), fused)


@needs_native
def test_a_memory_that_changes_another_acts_by_itself():
    """A subclass of a memory does not use the fused form of its base class.

    It uses the fused form of the memory `none`, and its own actions before and after it.
    """

    class Own(type(registry.get_memory("residual"))):
        def settle(self, carry, sent, total, state, ctx):
            return total, {"residual": 0.5 * (carry - sent)}

    spec, x = "qsgd:rounding=nearest", tf.constant([1.0, 0.3, -0.7])
    assert rounds.fused(grace_tf.get(spec), Own(), [x])
    told = []
    for forms in (rounds.fused, lambda *_: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exchange, "fused", forms)
            workers = Workers(1, spec, memory=Own())
            ((total,),) = workers.step([[x]])
            ((residual,),) = workers.state.arrays()["0/memory/residual"][None]
            np.testing.assert_array_equal(residual, 0.5 * (x.numpy() - total.numpy()))
            told.append(total.numpy().tobytes())
    assert told[0] == told[1]


def test_methods_that_users_meet_first_are_fused():
    have = SPECS_AND_MEMORIES
    for spec, memory in (("qsgd", "none"), ("topk", "residual"), ("signsgd", "none")):
        assert (spec, memory) in have
    assert ("topk:ratio=0.1|values=qsgd:bits=4,rounding=nearest", "residual") in have
