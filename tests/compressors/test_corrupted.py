"""Damaged payloads: natively and in the reference a method says so, or goes on, alike.

Of parts with the right shapes and garbage in them, a method gives either a result of the right
shape, the same bits natively and in the reference, or one error of one sentence, the same in both.
Parts of another shape or dtype are refused before TensorFlow sees them.
"""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from grace_tf import ops
from grace_tf.core import registry
from grace_tf.core.context import Context
from grace_tf.core.rounds import Gather
from grace_tf.ops.backend import native

SPECS = [spec for entry in registry.entries() for spec in (entry.name, *entry.examples)]
WAYS = ("native", "reference") if native.available() else ("reference",)
SHAPES = ((37, 5), (70,))
WORKERS = 3
SPECIAL = np.array(
    [0, 1, 2, 31, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0x7F800000, 0xFF800000]
    + [0x7FC00000, 0x7F7FFFFF, 0x00800000, 0x007FFFFF, 0x3F800000],
    np.uint32,
)
SENTENCES = (
    r"Index \d+ is outside tensor \d+ of the list, which has \d+ elements\.",
    r"A worker's indices into tensor \d+ of the list do not ascend strictly\.",
)


def context(shapes=SHAPES, worker=None):
    specs = tuple(tf.TensorSpec(shape, tf.float32) for shape in shapes)
    return Context(specs, tuple(range(len(shapes))), 2, 7, WORKERS, worker)


def damaged(part, kind, draw):
    """An array of the part's shape and dtype: any bits, bits that stand out, or a few flipped."""
    if kind == "flipped":
        data = bytearray(np.asarray(part).tobytes())
        for _ in range(min(len(data), 3)):
            data[draw.integers(len(data))] ^= 1 << draw.integers(8)
    else:
        length = part.shape.num_elements() * part.dtype.size
        words = draw.integers(0, 2**32, -(-length // 4), np.uint32)
        if kind == "special":
            special = SPECIAL[draw.integers(len(SPECIAL), size=words.size)]
            words = np.where(draw.random(words.size) < 0.5, special, words)
        data = words.tobytes()[:length]
    return tf.constant(np.frombuffer(bytes(data), part.dtype.as_numpy_dtype).reshape(part.shape))


def bits(tensor):
    """The bits of floats, all NaNs being one."""
    x = np.asarray(tensor)
    assert x.dtype == np.float32
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))


def outcome(decode, shapes):
    """What came of a decode: the bits of its tensors, or the sentence of its error."""
    try:
        totals = decode()
    except tf.errors.InvalidArgumentError as error:
        told = re.findall("|".join(SENTENCES), str(error))
        assert len(told) == 1, f"not one clear sentence: {error}"
        return told[0]
    assert [tuple(total.shape) for total in totals] == [tuple(shape) for shape in shapes]
    return [bits(total) for total in totals]


def assert_alike(decode, shapes, name):
    """The same outcome natively and in the reference; returns whether it is an error."""
    outcomes = []
    for way in WAYS:
        with ops.using(way):
            outcomes.append(outcome(decode, shapes))
    first, last = outcomes[0], outcomes[-1]
    if isinstance(first, str) or isinstance(last, str):
        assert first == last, name
        return True
    for a, b in zip(first, last):
        np.testing.assert_array_equal(a, b, err_msg=name)
    return False


def drive(compressor, kind, seed, told):
    """The totals of a step of the method's rounds, all of whose replies are damaged.

    `told` keeps them for the next call: what is sent meanwhile may differ in its last bits.
    """
    ctx, draw = context(worker=1), np.random.default_rng(seed)
    xs = [tf.constant(draw.standard_normal(s).astype(np.float32)) for s in SHAPES]
    states = [dict(compressor.init_state(s, ctx.public().lane(i))) for i, s in enumerate(ctx.specs)]
    rounds = compressor.rounds(xs, states, ctx)
    request, count = next(rounds), 0
    try:
        while True:
            if count == len(told):
                told.append(
                    [reply_to(request, payload, kind, draw) for payload in request.payloads]
                )
            request, count = rounds.send(told[count]), count + 1
    except StopIteration as stop:
        return stop.value[0]


def reply_to(request, payload, kind, draw):
    if isinstance(request, Gather):
        payload = stacked(payload)
    return {name: damaged(part, kind, draw) for name, part in payload.items()}


@pytest.mark.rotated
@pytest.mark.parametrize("spec", SPECS)
def test_a_damaged_payload_gives_one_error_or_a_result_alike(spec):
    compressor = registry.get(spec)
    faults = {"any": 0, "special": 0, "flipped": 0}
    for kind in faults:
        for seed in range(3):
            name = f"{spec}, {kind}, seed {seed}"
            if compressor.one_round:
                payload = valid(compressor)
                for decode, shapes in decodes(compressor, payload, kind, seed):
                    faults[kind] += assert_alike(decode, shapes, name)
            steps = functools.partial(drive, compressor, kind, seed, [])
            faults[kind] += assert_alike(steps, SHAPES, name)
    # Sets of indices alone can be wrong.
    assert not any(faults.values()) or "indices" in compressor.wire(context().specs[0])


def valid(compressor):
    draw = np.random.default_rng(0)
    xs = [tf.constant(draw.standard_normal(s).astype(np.float32)) for s in SHAPES]
    return compressor.compress_list(xs, context(worker=0))


def decodes(compressor, payload, kind, seed):
    """Ways into the decoder, each with the shapes of its result."""
    draw, public = np.random.default_rng(seed), context()
    one = compressor.compress(tf.constant(np.ones(SHAPES[0], np.float32)), context(SHAPES[:1], 0))
    single = {name: damaged(part, kind, draw) for name, part in one.items()}
    yield lambda: [compressor.decompress(single, public.lane(0))], SHAPES[:1]
    group = {name: damaged(part, kind, draw) for name, part in payload.items()}
    yield lambda: compressor.decompress_list(group, public), SHAPES
    if compressor.commutes_with_sum:
        return
    rows = {name: damaged(part, kind, draw) for name, part in stacked(payload).items()}
    yield lambda: compressor.aggregate_list(rows, public), SHAPES


def short(part):
    return part[..., :-1]


def long(part):
    return tf.concat([part, part[..., :1]], -1)


def ranked(part):
    return part[tf.newaxis]


def other_dtype(part):
    return tf.cast(part, tf.float64)


@pytest.mark.rotated
@pytest.mark.parametrize("spec", [s for s in SPECS if registry.get(s).one_round])
@pytest.mark.parametrize("damage", [short, long, ranked, other_dtype, None])
def test_parts_of_another_shape_or_dtype_are_refused(spec, damage):
    compressor, public = registry.get(spec), context()
    for name in (payload := valid(compressor)):
        told = [one_refusal(compressor, payload, name, damage, public, way) for way in WAYS]
        assert told[0] == told[-1]


def one_refusal(compressor, payload, name, damage, public, way):
    """The sentences with which the ways into the decoder refuse a part, by themselves."""
    one = compressor.compress(tf.ones(SHAPES[0]), context(SHAPES[:1], 0))
    sentences = []
    for action, parts, ctx in (
        ("decompress", one, public.lane(0)),
        ("decompress_list", payload, public),
        ("aggregate", stacked(one), public.lane(0)),
        ("aggregate_list", stacked(payload), public),
    ):
        parts = dict(parts)
        own = parts.pop(name)
        if damage in (short, long) and not own.shape.num_elements():
            continue  # what is empty is neither shorter nor longer
        if damage:
            parts[name] = damage(own)
        with ops.using(way), pytest.raises((ValueError, TypeError), match=f"part '{name}'") as told:
            getattr(compressor, action)(parts, ctx)
        assert re.fullmatch(r"[^\n]*\.", str(told.value)), told.value
        sentences.append(str(told.value))
    return sentences


def stacked(payload):
    return {name: tf.stack([part] * WORKERS) for name, part in payload.items()}


@pytest.mark.parametrize("way", WAYS)
def test_a_traced_step_names_the_first_faulty_tensor(way):
    """Bit sets without bits: every entry is outside. Of the first tensor none counts."""
    compressor, public = registry.get("threshold"), context()
    payload = {name: tf.zeros_like(part) for name, part in valid(compressor).items()}
    payload["count"] = tf.constant([0, 1])
    decode = tf.function(lambda parts: compressor.decompress_list(parts, public))
    with ops.using(way), pytest.raises(tf.errors.InvalidArgumentError) as told:
        decode(payload)
    assert "Index 70 is outside tensor 1 of the list, which has 70 elements." in str(told.value)
    payload["count"] = tf.constant([0, 0])
    assert not any(tf.reduce_any(total != 0) for total in decode(payload))


def test_under_xla_a_faulty_set_makes_all_totals_nan():
    compressor, public = registry.get("topk"), context()
    decode = tf.function(lambda parts: compressor.decompress_list(parts, public), jit_compile=True)
    sound = valid(compressor)
    assert all(tf.reduce_all(tf.math.is_finite(total)) for total in decode(sound))
    faulty = {**sound, "indices": tf.zeros_like(sound["indices"])}
    assert all(tf.reduce_all(tf.math.is_nan(total)) for total in decode(faulty))
