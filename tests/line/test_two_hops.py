"""Two hops: who owns what, the bits that arrive, and what is kept."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from grace_tf.core.context import Context
from grace_tf.core.registry import get
from grace_tf.line import two_hops
from grace_tf.testing.workers import Workers

SHAPES = ((70, 33), (5000,), (513,), (409, 3))
BLOCKED = (
    "qsgd",
    "qsgd:rounding=nearest",
    "qsgd:bits=2,norm=minmax,rounding=stratified",
    "natural",
    "u8bit:block=512",
    "efsignsgd:block=512",
)
VOTES = ("signsgd", "signum")


def gradients(size, shapes=SHAPES, step=0):
    random = np.random.default_rng(1000 * size + step)
    return [[random.standard_normal(s).astype(np.float32) for s in shapes] for _ in range(size)]


def hopping(size, spec, **keywords):
    return Workers(size, spec, exchange="two_hop", **keywords)


def arrays(results):
    return [[t.numpy() for t in mine] for mine in results]


def context(specs, size, worker=None):
    return Context(tuple(specs), tuple(range(len(specs))), 0, 0, size, worker)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 64])
@pytest.mark.parametrize("block", [4, 32, 512])
def test_chunks_hold_every_element_once_and_are_cut_at_blocks(size, block):
    for counts in ([100_000], [1], [513, 7, 4096, 1], [5] * 9, [block] * size):
        pieces = two_hops._divided(counts, size, block)
        found = sorted(itertools.chain(*pieces))
        for lane, n in enumerate(counts):
            mine = [piece for piece in found if piece.lane == lane]
            assert [p.start for p in mine] == [0, *(p.stop for p in mine[:-1])]
            assert mine[-1].stop == n
            assert all(p.start % block == 0 for p in mine)
        assert list(itertools.chain(*pieces)) == found, "chunks are in the order of elements"
        fair = sum(counts) / size
        sizes = [sum(p.stop - p.start for p in mine) for mine in pieces]
        assert max(sizes) <= fair + block


@pytest.mark.rotated
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("spec", [*BLOCKED, *VOTES])
def test_all_workers_get_the_same_bits(spec, size):
    workers = hopping(size, spec)
    for step in range(2):
        results = arrays(workers(gradients(size, step=step)))
        for other in results[1:]:
            for mine, its in zip(results[0], other):
                np.testing.assert_array_equal(mine, its)
    assert [h.kind for h in workers.handed] == ["all_to_all", "gather"]


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("spec", VOTES)
def test_a_vote_is_the_same_as_of_gathered_signs_ties_too(spec, size):
    grads = gradients(size)
    for mine in grads:
        mine[1][:7] = 0
    for w, mine in enumerate(grads):
        mine[2][:100] = (-1) ** w  # tied where the number of workers is even
    gathered = arrays(Workers(size, spec, exchange="gather")(grads))
    hopped = arrays(hopping(size, spec)(grads))
    for mine, its in zip(gathered[0], hopped[0]):
        np.testing.assert_array_equal(mine, its)
    assert (hopped[0][2][:100] == (0 if size % 2 == 0 else 1)).all()


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("spec", BLOCKED)
def test_what_arrives_is_the_sum_of_payloads_compressed_by_the_owner_of_each_chunk(spec, summed):
    size, compressor = 3, get(spec)
    grads = gradients(size)
    results = hopping(size, spec, memory="none", summed=summed)(grads)[0]
    specs = [tf.TensorSpec(shape, tf.float32) for shape in SHAPES]
    order = list(range(len(SHAPES)))[::-1]  # lanes are in backward order
    sent = []
    for w, mine in enumerate(grads):
        for i, x in enumerate(mine):
            x = tf.constant(x) * (float(size) if summed else 1.0)
            lane = Context((specs[i],), (i,), 0, 0, size, w)
            payload = compressor.compress(x, lane)
            sent.append(compressor.decompress(payload, lane.public()).numpy().ravel())
    sums = []
    for i in range(len(SHAPES)):
        total = np.zeros_like(sent[i])
        for w in range(size):
            total = total + sent[w * len(SHAPES) + i]
        sums.append(total)
    counts = [specs[i].shape.num_elements() for i in order]
    wanted = [np.empty_like(total) for total in sums]
    for w, pieces in enumerate(two_hops._divided(counts, size, compressor.block)):
        for piece in pieces:
            i = order[piece.lane]
            lane = Context((piece.spec,), (i,), 0, 0, size, w).hop()
            own = tf.constant(sums[i][piece.start : piece.stop])
            back = compressor.decompress(compressor.compress(own, lane), lane.public())
            wanted[i][piece.start : piece.stop] = back.numpy()
    for i, result in enumerate(results):
        mean = wanted[i].reshape(SHAPES[i]) * np.float32(1 / size)
        np.testing.assert_allclose(result.numpy(), mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("spec", "memory", "scale"),
    [
        ("qsgd:rounding=nearest", "residual", 1.0),
        ("natural", "residual", 1.0),
        ("efsignsgd:block=512", "residual", 1.0),
        ("qsgd:rounding=nearest", "lowpass:beta=0.5", 2.0),
    ],
)
@pytest.mark.parametrize("granularity", ["variable", "model"])
def test_nothing_is_lost_between_the_hops(spec, memory, scale, granularity):
    """The sum of all gradients is what arrived, N times the means, and what residuals hold."""
    size, steps = 3, 5
    workers = hopping(size, spec, memory=memory, granularity=granularity)
    given = [np.zeros(shape) for shape in SHAPES]
    arrived = [np.zeros(shape) for shape in SHAPES]
    for step in range(steps):
        grads = gradients(size, step=step)
        means = workers(grads)[0]
        for i in range(len(SHAPES)):
            given[i] += sum(mine[i].astype(np.float64) for mine in grads)
            arrived[i] += size * means[i].numpy().astype(np.float64)
    kept = {name: rows for name, rows in workers.state.arrays().items() if "/residual" in name}
    assert len(kept) == len(SHAPES)
    for i, name in enumerate(sorted(kept)):
        held = scale * kept[name].astype(np.float64).sum(0)
        np.testing.assert_allclose(arrived[i] + held.reshape(SHAPES[i]), given[i], atol=2e-4)
        assert np.abs(held).max() > 0.01


def test_the_error_of_the_second_hop_is_kept_by_its_owner_alone():
    size, spec = 4, "qsgd:rounding=nearest"
    grads = gradients(size, ((4096,),))
    kept = []
    for exchange in "gather", "two_hop":
        workers = Workers(size, spec, memory="residual", exchange=exchange)
        workers(grads)
        (rows,) = [v for k, v in workers.state.arrays().items() if k.endswith("/residual")]
        kept.append(rows.reshape(size, 4096))
    for w in range(size):
        changed = np.flatnonzero(kept[0][w] != kept[1][w])
        assert changed.min() >= 1024 * w and changed.max() < 1024 * (w + 1)
        assert len(changed) > 512


@pytest.mark.parametrize("spec", ["qsgd", "natural"])
def test_it_is_unbiased_where_the_compressor_is(spec):
    size, steps = 4, 400
    workers = hopping(size, spec)
    grads = gradients(size, ((64, 40),))
    mean = sum(mine[0] for mine in grads) / size
    total, squares = np.zeros([64, 40]), np.zeros([64, 40])
    for _ in range(steps):
        found = workers(grads)[0][0].numpy()
        total += found
        squares += found.astype(np.float64) ** 2
    average = total / steps
    deviation = np.sqrt(np.maximum(squares / steps - average**2, 0) / steps)
    error = np.abs(average - mean) / np.maximum(deviation, 1e-6)
    assert error.max() < 5.5  # of 2560 normal numbers
    assert error.mean() < 1.0


@pytest.mark.parametrize(
    "spec",
    ["qsgd", "qsgd:rounding=nearest", "qsgd:norm=minmax", "u8bit:block=512", "efsignsgd:block=512"],
)
def test_a_sum_that_overflows_is_told_to_every_worker(spec):
    workers = hopping(3, spec, memory="none")
    grads = gradients(3)
    for mine in grads:
        mine[0][0, 0] = 3e38
        if "efsignsgd" in spec:  # sends means
            mine[0][:] = 3e38
    for mine in arrays(workers(grads)):
        assert not any(np.isfinite(total).any() for total in mine)
    assert workers.state.step == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_told_to_every_worker(value):
    workers = hopping(4, "qsgd:rounding=nearest", memory="residual")
    grads = gradients(4)
    grads[2][3][1, 1] = value
    for mine in arrays(workers(grads)):
        assert not any(np.isfinite(total).any() for total in mine)
    assert workers.state.step == 0
    assert not any(rows.any() for name, rows in workers.state.arrays().items() if "resid" in name)


def test_any_length_arrives():
    for n in (1, 2, 31, 511, 512, 513, 1025, 2049):
        workers = hopping(4, "qsgd:bits=16,rounding=nearest")
        grads = gradients(4, ((n,),))
        found = workers(grads)[0][0].numpy()
        np.testing.assert_allclose(found, sum(m[0] for m in grads) / 4, atol=1e-3)
        # What has no chunk for each worker is gathered.
        kinds = ["all_to_all", "gather"] if n > 3 * 512 + 256 else ["gather"]
        assert [h.kind for h in workers.handed] == kinds, n
