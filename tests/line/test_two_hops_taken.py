"""Two hops: where they are taken, what they cost, and what belongs to them."""

import numpy as np
import pytest
import replicas
import tensorflow as tf
from test_two_hops import SHAPES, gradients, hopping

import grace_tf
from grace_tf.cli.describe import sent_by_a_worker
from grace_tf.core.context import Context
from grace_tf.core.registry import get, get_memory
from grace_tf.line import two_hops
from grace_tf.memories.residual import Residual
from grace_tf.testing.workers import Workers
from grace_tf.transports.tf_distribute import members


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
    strategy = replicas.mirrored(4)
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
        assert kinds == "two hops (all to all and sum and gather)"
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
