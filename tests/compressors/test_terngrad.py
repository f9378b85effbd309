"""Ternary gradients."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core.context import Context
from grace_tf.testing import Workers, cases


def sent(spec, x, steps=1):
    """What one worker sends of x on each of some steps, [steps, n]."""
    workers = Workers(1, spec)
    return np.stack([workers([[x]])[0][0].numpy() for _ in range(steps)])


def clipped(x, clip):
    """The paper's gradient clipping, and the scale of what it leaves."""
    bound = np.inf if clip is None else clip * np.std(x.astype(np.float64))
    x = np.clip(x.astype(np.float64), -bound, bound)
    return x, np.abs(x).max()


@pytest.mark.parametrize("clip", [2.5, 1.0, None])
@pytest.mark.parametrize("options", ["", ",packing=bits", ",shared=true"])
def test_it_sends_the_scale_with_the_papers_probabilities(clip, options):
    x = cases.normal((53,), 3)
    exact, scale = clipped(x, clip)
    spec = f"terngrad:clip={'none' if clip is None else clip}{options}"
    got = sent(spec, x, 2000)
    np.testing.assert_allclose(np.unique(np.abs(got)), [0, scale], rtol=1e-6)
    assert not np.any(got * x < 0)
    chance = np.abs(exact) / scale
    error = np.sqrt(np.maximum(chance * (1 - chance), 1e-9) / 2000)
    assert np.all(np.abs(np.mean(got != 0, 0) - chance) <= 4 * error)
    assert grace_tf.get(spec).unbiased == (clip is None)


def test_bytes():
    spec = tf.TensorSpec([1_000_000], tf.float32)
    for options, nbytes in (
        ("", 200_004),
        (":packing=bits", 250_004),
        (":shared=true,workers=1", 250_004),
        (":shared=true,workers=3", 400_004),
        (":shared=true", 500_004),
        (":shared=true,workers=127", 1_000_004),
    ):
        assert grace_tf.get(f"terngrad{options}").nbytes(spec) == nbytes


def test_what_is_handed_over_is_what_is_announced():
    for spec, rounds in (("terngrad", ["gather"]), ("terngrad:shared=true", ["max", "sum"])):
        workers = Workers(3, spec)
        workers([[cases.normal((4096,), w)] for w in range(3)])
        assert [handed.kind for handed in workers.handed] == rounds
        flag = 4
        announced = grace_tf.get(spec).nbytes(tf.TensorSpec([4096], tf.float32))
        assert workers.bytes_per_step == announced + flag


def test_grace_bug_24_a_zero_gradient_gives_zeros():
    # GRACE divided by the scale, 0/0, and cast NaN to an integer.
    zero = np.zeros(1000, np.float32)
    for spec in ("terngrad", "terngrad:packing=bits", "terngrad:clip=none", "terngrad:shared=true"):
        np.testing.assert_array_equal(sent(spec, zero), zero[None])
        # A worker without a gradient does not disturb the others.
        got = Workers(2, spec)([[zero], [np.full(1000, 3.0, np.float32)]])[0][0]
        np.testing.assert_allclose(got, np.full(1000, 1.5), rtol=1e-6)


def test_equal_elements_are_not_clipped():
    # Their standard deviation is 0, or what rounding leaves of it.
    for x in (np.full(4757, 0.3, np.float32), np.float32([7.0]), np.full(3, -1e-20, np.float32)):
        np.testing.assert_allclose(sent("terngrad", x)[0], x, rtol=1e-6)


def test_workers_round_independently():
    x = tf.constant(cases.normal((4096,)))
    compressor, spec = grace_tf.get("terngrad"), tf.TensorSpec([4096], tf.float32)
    contexts = [Context((spec,), (0,), 0, 0, 2, w) for w in range(2)]
    errors = [compressor.decompress(compressor.compress(x, c), c.public()) - x for c in contexts]
    assert abs(np.corrcoef(errors[0], errors[1])[0, 1]) < 0.1


def test_a_shared_scale_is_the_largest_and_sums_are_exact():
    grads = [[cases.normal((2000,), w) * (w + 1)] for w in range(7)]
    scale = max(clipped(g[0], 2.5)[1] for g in grads)
    mean = Workers(7, "terngrad:shared=true")(grads)[0][0].numpy()
    digits = np.rint(7 * mean / scale)
    assert set(np.unique(digits)) <= set(range(-7, 8)) and len(np.unique(digits)) > 5
    np.testing.assert_allclose(mean, digits * scale / 7, rtol=1e-6)
    alike = Workers(7, "terngrad:shared=true")([[np.full(50, -2.0, np.float32)]] * 7)
    np.testing.assert_array_equal(alike[3][0], np.full(50, -2.0))  # all seven, in a full field


def test_the_mean_of_a_shared_scale_is_unbiased():
    grads = [[cases.normal((40,), w)] for w in range(3)]
    workers = Workers(3, "terngrad:shared=true,clip=none")
    means = np.stack([workers(grads)[0][0].numpy() for _ in range(2000)])
    error = means.std(0, ddof=1) / np.sqrt(2000)
    assert np.all(np.abs(means.mean(0) - np.mean([g[0] for g in grads], 0)) <= 4 * error)


def test_more_workers_than_fields_have_room_for_are_refused():
    grads = [[np.ones(40, np.float32)]] * 4
    with pytest.raises(
        ValueError, match="room for workers=3, but there are 4 workers; set workers=4"
    ):
        Workers(4, "terngrad:shared=true,workers=3")(grads)
    Workers(4, "terngrad:workers=3")(grads)  # no sums, no fields


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ("clip=0", ValueError, "clip is positive or none"),
        ("clip=true", TypeError, "clip is a finite number"),
        ("packing=bytes", ValueError, "packing is one of trits, bits"),
        ("shared=2", ValueError, "shared is one of"),
        ("workers=0", ValueError, "workers is from 1 to 32767"),
        ("workers=32768", ValueError, "workers is from 1 to 32767"),
    ],
)
def test_what_is_out_of_range(options, error, words):
    with pytest.raises(error, match=words):
        grace_tf.get(f"terngrad:{options}")


def test_a_residual_is_refused():
    with pytest.raises(ValueError, match="nonexpansive|residual"):
        grace_tf.Aggregator("terngrad", memory="residual")


def test_it_refines_a_part_of_another_method_unless_scales_are_shared():
    grace_tf.get("topk:ratio=0.1|values=terngrad:clip=none")
    with pytest.raises(ValueError, match="only methods of one round compose"):
        grace_tf.get("topk:ratio=0.1|values=terngrad:shared=true")
