"""Two hops: who owns what, the bits that arrive, what is kept, and the bytes that each sends."""

import itertools

import conftest
import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf import two_hops
from grace_tf.cli.describe import sent_by_a_worker
from grace_tf.core.context import Context
from grace_tf.core.registry import get, get_memory
from grace_tf.memories.residual import Residual
from grace_tf.testing.workers import Workers
from grace_tf.transports.tf_distribute import members

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


def kinds(size, spec, shape=(300_000,), **keywords):
    workers = Workers(size, spec, **keywords)
    workers(gradients(size, (shape,)))
    return [handed.kind for handed in workers.handed]


def test_which_way_a_payload_goes():
    hops = ["all_to_all", "gather"]
    assert kinds(3, "qsgd") == ["gather"]
    assert kinds(4, "qsgd") == hops
    assert kinds(4, "qsgd", (100_000,)) == ["gather"]  # below 64 KiB
    assert kinds(4, "qsgd", exchange="gather") == ["gather"]
    assert kinds(2, "qsgd", (5000,), exchange="two_hop") == hops
    assert kinds(4, "topk") == ["gather"]
    assert kinds(4, "signsgd", (3_000_000,)) == ["gather"]
    assert kinds(5, "signsgd", (3_000_000,)) == hops
    assert kinds(4, "u8bit") == ["gather"]  # one scale a variable
    assert kinds(4, "fp16", exchange="sum") == ["sum"]
    assert kinds(4, "qsgd:bits=2") == hops
    assert kinds(4, "qsgd:bits=2,rounding=nearest") == ["gather"]  # with a residual
    assert kinds(4, "qsgd:bits=3,rounding=nearest") == hops
    assert kinds(4, "efsignsgd:block=512", (3_000_000,)) == ["gather"]
    assert kinds(4, "natural", memory="ef21") == [
        "gather"
    ]  # whose state is the sum of what is sent
    assert kinds(4, "natural", memory="lowpass") == hops
    assert kinds(1, "natural", exchange="two_hop") == ["gather"]


@pytest.mark.parametrize(
    "spec", ["qsgd:bits=3,rounding=nearest", "qsgd:rounding=nearest", "natural", "u8bit:block=512"]
)
def test_what_waits_at_the_owners_stays_small(spec):
    """With a residual, the methods that take two hops by default learn as well as by a gather."""
    size, n = 4, 300_000
    wanted = np.random.default_rng(5).standard_normal(n).astype(np.float32)
    losses = {}
    for exchange in "gather", "auto":
        workers = Workers(size, spec, memory="residual", exchange=exchange)
        weights = np.zeros(n, np.float32)
        for step in range(30):
            noise = np.random.default_rng(step).standard_normal((size, n)).astype(np.float32)
            grads = [[weights - wanted + 0.3 * each] for each in noise]
            weights = weights - np.float32(0.3) * workers(grads)[0][0].numpy()
        losses[exchange] = np.sum((weights - wanted) ** 2) / np.sum(wanted**2)
        told = [h.kind for h in workers.handed]
        assert told == (["gather"] if exchange == "gather" else ["all_to_all", "gather"])
    assert losses["gather"] < 0.03 and losses["auto"] < 1.5 * losses["gather"], losses


@pytest.mark.parametrize("dtype", ["float32", "bf16", "int8"])
def test_a_residual_of_any_dtype_takes_back(dtype):
    """Of equal gradients the average of all aggregates becomes the mean."""
    size, steps = 3, 60
    workers = hopping(size, "qsgd:rounding=nearest", memory=f"residual:dtype={dtype}")
    grads = gradients(size)
    sums = [np.zeros(shape) for shape in SHAPES]
    for _ in range(steps):
        for total, each in zip(sums, workers(grads)[0]):
            total += each.numpy()
    for i, total in enumerate(sums):
        error = np.abs(total / steps - sum(mine[i] for mine in grads) / size)
        assert error.max() < 0.06 and error.mean() < 0.015, (error.max(), error.mean())


def test_a_memory_that_settles_in_its_own_way_does_not_take_back_in_anothers():
    class Half(Residual):
        def settle(self, carry, sent, total, state, ctx):
            return total, {"residual": 0.5 * (carry - sent)}

    class Same(Residual):
        pass

    assert not Half().takes_back and Same().takes_back
    assert not two_hops.possible(get("natural"), Half())


def test_a_method_of_ones_own_takes_part_where_it_says_so():
    class Signs(grace_tf.Compressor):
        block, aggregates = 1, "consensus"

    assert not two_hops.possible(Signs(), get_memory("none"))


def test_the_second_hop_draws_apart_from_every_stage():
    first = Context((tf.TensorSpec([4]),), (0,), 0, 0, 2, 0)
    stages = [first]
    for _ in range(3):
        stages += [each.stage(i) for each in stages for i in range(4) if each.draw <= 20]
    draws = {each.draw for each in stages}
    hops = {each.hop().draw for each in stages}
    assert len(hops) == len(draws) == 85 and not draws & hops
    assert first.hop().stage(2) == first.stage(2).hop()
    assert first.stored().draw not in draws | hops
    with pytest.raises(ValueError, match="at most three deep"):
        first.hop().stage(0).stage(0).stage(0).stage(0)


def test_the_order_of_a_strategys_replicas():
    assert members({"worker": ["a"] * 9}, 2) is None
    assert members({"worker": ["a"] * 12}, 1) == [0, 1, 10, 11, *range(2, 10)]
    assert members({"chief": ["a"], "worker": ["a"] * 10}, 1) is None
    assert members({"chief": ["a"], "worker": ["a"] * 11}, 2)[4:8] == [4, 5, 22, 23]


def test_four_replicas_end_alike():
    strategy = conftest.mirrored(4)
    grads = gradients(4, ((300_000,), (700,)))
    with strategy.scope():
        variables = [tf.Variable(tf.zeros(shape)) for shape in ((300_000,), (700,))]
        aggregator = grace_tf.Aggregator("qsgd", variables, reduce="mean")

    @tf.function
    def step():
        def replica():
            rank = tf.distribute.get_replica_context().replica_id_in_sync_group
            mine = [tf.gather(tf.stack([g[i] for g in grads]), rank) for i in range(2)]
            return aggregator(mine, variables)

        return strategy.run(replica)

    results = [[t.numpy() for t in strategy.experimental_local_results(r)] for r in step()]
    assert [h.kind for h in aggregator.handed].count("all_to_all") == 1
    wanted = Workers(4, "qsgd", min_elements=1024)(grads)[0]
    for found, one in zip(results, wanted):
        for each in found:
            np.testing.assert_array_equal(each, one)


def test_a_mapping_takes_each_way_where_it_can():
    workers = Workers(
        2, {"0": "qsgd", "1": "topk", ".*": "fp16"}, exchange="two_hop", paths=["0", "1", "2"]
    )
    workers(gradients(2, ((5000,), (5000,), (5000,))))
    # topk gathers in the first round and qsgd in the second, so there are two gathers.
    assert sorted(h.kind for h in workers.handed) == ["all_to_all", "gather", "gather", "sum"]


@pytest.mark.parametrize("spec", ["qsgd", "natural", "u8bit:block=512", "signsgd"])
def test_bytes_do_not_grow_with_the_number_of_workers(spec):
    shapes = [(3, 3, 512, 512), (1000, 512), (64,), (3, 3, 3, 64)]
    nbytes = sum(get(spec).nbytes(tf.TensorSpec(s, tf.float32)) for s in shapes[:2] + shapes[3:])
    dense = 4 * 64
    for size in (5, 6, 16, 64) if spec == "signsgd" else (4, 5, 8, 16, 64):
        sent, kinds = sent_by_a_worker(get(spec), shapes, size)
        assert kinds == "all to all and sum and gather"
        rows = 2 if spec == "signsgd" and size % 2 == 0 else 1
        share = (size - 1) / size
        fewest = share * (1 + rows) * nbytes + 2 * share * dense
        assert fewest <= sent <= 1.02 * fewest + 1000 * size
    _, alone = sent_by_a_worker(get(spec), shapes, 3)
    assert alone == "gather and sum"


def test_what_is_told_is_what_workers_hand_over():
    shapes = [(700, 300), (5000,)]
    for size in (2, 4, 5):
        workers = Workers(size, "qsgd", min_elements=1024)
        workers(gradients(size, shapes))
        handed = sum(h.sent(size) for h in workers.handed)
        assert sent_by_a_worker(get("qsgd"), shapes, size)[0] == round(handed)


def test_the_refusals_name_the_way_out():
    for spec, memory in (
        ("topk", "auto"),
        ("u8bit", "none"),
        ("natural", "ef21"),
        ("fp16", "auto"),
    ):
        with pytest.raises(ValueError, match='serves compressors of one round.*exchange="auto"'):
            grace_tf.Aggregator(spec, memory=memory, exchange="two_hop")
    for spec in "qsgd", "gtopk", "powersgd":
        with pytest.raises(ValueError, match=f"such as fp16, and {spec}.* is none"):
            grace_tf.Aggregator(spec, exchange="sum")
    grace_tf.Aggregator({"a": "topk", ".*": "qsgd"}, exchange="two_hop")
    assert not two_hops.possible(get("natural"), get_memory("diana"))
