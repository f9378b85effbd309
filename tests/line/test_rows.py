"""Sparse gradients that are compressed: rows all the way, and as if they had been dense."""

import re
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from launch import launch
from replicas import mirrored

import grace_tf
from grace_tf.cli.bench.step import count_nodes
from grace_tf.core import registry
from grace_tf.core.context import Context
from grace_tf.line.plan import make_plan
from grace_tf.line.row_chunks import Chunks
from grace_tf.line.settings import settings
from grace_tf.transports.loopback import Loopback

EXACT = {"compressor": "none", "memory": "residual", "min_elements": 1}
COUNTS = (90, 0, 1)  # rows of each worker: chunks of 32 and 1; none; one


def rows_of(count, shape, dtype="float32", index="int32", seed=0):
    """Rows of small whole numbers, many of them twice."""
    draw = np.random.default_rng([seed, count, *shape])
    values = tf.constant(draw.integers(-9, 9, (count, *shape[1:])), tf.float32)
    indices = tf.constant(draw.integers(0, shape[0], count), index)
    return tf.IndexedSlices(tf.cast(values, dtype), indices, tf.constant(shape))


def together(aggregate, workers, tables):
    """What every worker gets of one traced step of all of them."""

    @tf.function(autograph=False)
    def step():
        devices = [None] * len(workers)
        return aggregate.aggregate_replicas(Loopback(len(workers)), workers, tables, devices)

    return step()


def in_float64(grad):
    values = tf.cast(grad.values, tf.float64)
    return tf.convert_to_tensor(tf.IndexedSlices(values, grad.indices, grad.dense_shape)).numpy()


TABLES = [
    ((70, 3), "float32", "int32"),
    ((40, 2, 2), "bfloat16", "int64"),
    ((50, 5), "float16", "int64"),
    ((60,), "float64", "int32"),
]


def test_of_every_dtype_and_number_rows_sum_up_as_dense_gradients_do():
    tables = [tf.Variable(tf.zeros(shape, dtype)) for shape, dtype, _ in TABLES]
    workers = [
        [rows_of(count + i, *table, seed=w) for i, table in enumerate(TABLES)]
        for w, count in enumerate(COUNTS)
    ]
    aggregate = grace_tf.Aggregator(**EXACT)
    replicas = together(aggregate, workers, tables)
    for (_, dtype, index), lane, totals in zip(TABLES, zip(*workers), zip(*replicas)):
        wanted = sum(in_float64(grad) for grad in lane)
        for total in totals:
            assert isinstance(total, tf.IndexedSlices)
            assert (total.values.dtype.name, total.indices.dtype.name) == (dtype, index)
            touched = np.concatenate([g.indices.numpy() for g in lane])
            assert sorted(total.indices.numpy()) == sorted({*touched})
            np.testing.assert_array_equal(in_float64(total), wanted)
    assert aggregate.state.step == 1


def test_the_residual_of_rows_keeps_what_is_not_sent():
    table = tf.Variable(tf.zeros([80, 6]), name="table")
    aggregate = grace_tf.Aggregator("efsignsgd", memory="residual", min_elements=1)
    given, got, before = np.zeros([2, 80, 6]), np.zeros([80, 6]), np.zeros([2, 80, 6])
    for step in range(4):
        workers = [[rows_of(40, (80, 6), seed=2 * step + w)] for w in range(2)]
        totals = together(aggregate, workers, [table])
        got += tf.convert_to_tensor(totals[0][0]).numpy()
        now = aggregate.state.arrays()["table/memory/residual"]
        for w, (grad,) in enumerate(workers):
            given[w] += tf.convert_to_tensor(grad).numpy() * 2  # summed: the host has halved it
            untouched = np.setdiff1d(np.arange(80), grad.indices.numpy())
            np.testing.assert_array_equal(now[w][untouched], before[w][untouched])
            assert (now[w] != before[w]).any()
        before = now
    np.testing.assert_allclose(given.sum(0), 2 * got + before.sum(0), atol=1e-3)

    bad = tf.IndexedSlices(tf.fill([1, 6], np.nan), tf.constant([3]), tf.constant([80, 6]))
    for (total,) in together(aggregate, [[bad], [rows_of(40, (80, 6))]], [table]):
        assert np.isnan(total.values).all()
    np.testing.assert_array_equal(aggregate.state.arrays()["table/memory/residual"], before)
    assert aggregate.state.step == 4


@pytest.mark.rotated
@pytest.mark.parametrize("number", [-1, 80])
@pytest.mark.parametrize("way", ["eager", "traced", "XLA"])
@pytest.mark.parametrize(
    "spec, memory",
    [("efsignsgd", "auto"), ("qsgd", "none"), ("topk", "auto"), ("signsgd", "auto")],
)
def test_a_row_number_outside_the_table_is_refused_however_rows_travel(spec, memory, way, number):
    table = tf.Variable(tf.zeros([80, 6]), name="table")
    kernel = tf.Variable(tf.ones([9]))  # where nothing is compressed, TensorFlow does as it does
    aggregate = grace_tf.Aggregator(spec, memory=memory, min_elements=1)
    inside, outside = (
        tf.IndexedSlices(tf.ones([2, 6]), tf.constant([3, row]), tf.constant([80, 6]))
        for row in (79, number)
    )

    def step(grad):
        return aggregate([grad, tf.ones([9])], [table, kernel])

    if way != "eager":
        step = tf.function(step, autograph=False, jit_compile=way == "XLA")
    step(inside)
    before = aggregate.state.arrays()
    if way == "XLA":
        assert all(np.isnan(total).all() for total in map(tf.convert_to_tensor, step(outside)))
    else:
        sentence = "The sparse gradient of table:?0? has a row number outside 0 to 79"
        with pytest.raises(tf.errors.InvalidArgumentError, match=sentence):
            step(outside)
    after = aggregate.state.arrays()
    for name in before:
        np.testing.assert_array_equal(after[name], before[name])


def test_chunks_draw_by_themselves_and_are_right_on_average():
    shape, count, steps = (200, 8), 70, 100  # chunks of 32, 32 and six of 1
    compressor = settings("qsgd:bits=4").route("table")[0]
    codec = Chunks(compressor, shape, tf.int32)
    values = tf.tile(tf.random.stateless_normal([1, 8], [1, 2]), [count, 1])
    indices = tf.range(count) * 2

    @tf.function(autograph=False)
    def once(step):
        ctx = Context((tf.TensorSpec(shape, tf.float32),), (0,), step, 5, 1, 0)
        words, sent = codec.encode(indices, values, ctx)
        found, decoded = codec.decode(words, tf.constant([0]), tf.constant([count]), ctx.public())
        return words, sent, found, decoded

    draws = []
    for step in range(steps):
        words, sent, found, decoded = once(tf.constant(step, tf.int64))
        draws.append(decoded.numpy())
    assert words.shape[0] == int(codec.length(tf.constant(count)))
    np.testing.assert_array_equal(found, indices)
    np.testing.assert_array_equal(sent, decoded)
    draws = np.stack(draws)
    rounded = draws[:, [0, 32, 64, 65]]  # the first rows of chunks, whose values are the same
    for i in range(4):
        for j in range(i):
            assert (rounded[:, i] != rounded[:, j]).mean() > 0.1
    by_column = draws.reshape(-1, 8).astype(np.float64)
    error = np.abs(by_column.mean(0) - values[0])
    assert (error <= 5 * by_column.std(0, ddof=1) / np.sqrt(len(by_column)) + 1e-6).all()


def test_tables_with_rows_of_one_shape_share_chunks_and_keep_their_rows_and_residuals_apart():
    shapes = [(70, 4), (40, 5), (30, 4)]
    tables = [tf.Variable(tf.zeros(shape), name=f"table{i}") for i, shape in enumerate(shapes)]
    for keywords in (EXACT, {"compressor": "topk:ratio=0.5", "min_elements": 1}):
        aggregate = grace_tf.Aggregator(**keywords)
        given, got = [np.zeros([2, *s]) for s in shapes], [np.zeros(s) for s in shapes]
        for step in range(2):
            # Each worker touches another number of rows of each table, and none of some.
            workers = [
                [
                    rows_of(COUNTS[(w + i + step) % 3], s, index=index, seed=w + step)
                    for i, (s, index) in enumerate(zip(shapes, ["int32", "int32", "int64"]))
                ]
                for w in range(2)
            ]
            replicas = together(aggregate, workers, tables)
            for i in range(len(shapes)):
                np.testing.assert_array_equal(*(in_float64(each[i]) for each in replicas))
                got[i] += in_float64(replicas[0][i])
                for w in range(2):
                    given[i][w] += 2 * in_float64(workers[w][i])  # summed: the host has halved it
        for i, kept in enumerate(
            aggregate.state.arrays()[f"table{i}/memory/residual"] for i in range(len(shapes))
        ):
            np.testing.assert_allclose(given[i].sum(0), 2 * got[i] + kept.sum(0), atol=1e-3)
            if keywords is EXACT:
                np.testing.assert_array_equal(kept, 0)


def test_tables_share_chunks_if_their_rows_are_alike_and_the_method_has_blocks():
    specs = [
        tf.TensorSpec([rows, width], tf.float32) for rows, width in ((80, 6), (70, 6), (80, 5))
    ]
    for compressor, groups in (("qsgd", [2, 1]), ("u8bit", [1, 1, 1])):
        made = settings(compressor, min_elements=1)
        plan = make_plan(made, "abc", specs, range(3), rows=range(3))
        assert [len(group.lanes) for group in plan.by_rows] == groups


def test_each_further_table_adds_few_nodes():
    def nodes(count):
        tables = [tf.Variable(tf.zeros([80, 6])) for _ in range(count)]
        aggregate = grace_tf.Aggregator("qsgd:rounding=nearest", memory="residual", min_elements=1)
        grads = [rows_of(40, (80, 6), seed=i) for i in range(count)]
        step = tf.function(lambda: aggregate(grads, tables), autograph=False)
        return count_nodes(step.get_concrete_function().graph)

    # A coder alone has some hundred.
    assert nodes(6) - nodes(5) < 150


def test_parts_of_64_bits_travel_as_rows_too():
    class Doubles(grace_tf.Compressor):
        elementwise = commutes_with_sum = lossless = nonexpansive = True

        def wire(self, spec):
            return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.float64)}

        def compress(self, x, ctx):
            return {"values": tf.cast(tf.reshape(x, [-1]), tf.float64)}

        def decompress(self, payload, ctx):
            return tf.cast(tf.reshape(payload["values"], ctx.spec.shape), tf.float32)

    with mock.patch.dict(registry._COMPRESSORS):
        doubles = grace_tf.register("doubles_for_the_test")(Doubles)()
        table = tf.Variable(tf.zeros([70, 3]))
        workers = [[rows_of(count, (70, 3), seed=w)] for w, count in enumerate(COUNTS)]
        aggregate = grace_tf.Aggregator(doubles, min_elements=1)
        (total,), *_ = together(aggregate, workers, [table])
    wanted = sum(in_float64(grad) for (grad,) in workers)
    np.testing.assert_array_equal(in_float64(total), wanted)


# What compresses rows by themselves, and what selects rows.  All other methods send rows as they
# are, or make them dense; a chunk of chunktopk, 256 elements, is as large as this table.
BY_ROWS = {*"bf16 ecqsgd eden efsignsgd fp16 fp8 natural onebit qsgd terngrad u8bit".split()}
SELECT = {"qsparse", "stc", "topk"}
MADE_DENSE = {"dgc", "signsgd", "signum", "variance"}


@pytest.mark.parametrize("name", grace_tf.available())
def test_an_embedding_trains_under_every_method(name):
    grads = [rows_of(50, (64, 4), seed=seed) for seed in range(3)]
    grads = [tf.IndexedSlices(g.values * 0.37, g.indices, g.dense_shape) for g in grads]
    given = [tf.convert_to_tensor(grad) for grad in grads]

    def aggregates(grads):
        aggregate = grace_tf.Aggregator(name, min_elements=1)
        table = tf.Variable(tf.zeros([64, 4]), name="table")
        return [aggregate([grad], [table])[0] for grad in grads]

    totals = aggregates(grads)
    found = np.stack([tf.convert_to_tensor(total) for total in totals])
    assert np.isfinite(found).all() and found.any()
    assert {isinstance(total, tf.IndexedSlices) for total in totals} == {name not in MADE_DENSE}
    if name in MADE_DENSE:
        np.testing.assert_array_equal(found, aggregates(given))
    else:
        for total, grad in zip(totals, grads):
            touched, got = {*grad.indices.numpy()}, {*total.indices.numpy()}
            assert got < touched if name in SELECT else got == touched
        assert np.allclose(found, given, rtol=1e-6) == (name not in BY_ROWS | SELECT)


@pytest.mark.parametrize("exclude", [(), "table"], ids=["compressed", "claimed"])
def test_under_dgc_rows_have_the_momentum_that_dense_gradients_have(exclude):
    ends = []
    for given in (lambda grad: grad, tf.convert_to_tensor):
        table = tf.Variable(tf.zeros([40, 3]), name="table")
        own = {"memory": "dgc", "exclude": exclude, "min_elements": 1}
        aggregate, totals = grace_tf.Aggregator("topk:ratio=0.25", **own), []
        for step in range(3):
            workers = [[given(rows_of(9, (40, 3), seed=2 * step + w))] for w in range(2)]
            replicas = aggregate.aggregate_replicas(Loopback(2), workers, [table], [None] * 2)
            totals.append(replicas[0][0].numpy())
        ends.append([*totals, *aggregate.state.arrays().values()])
    for ours, dense in zip(*ends, strict=True):
        np.testing.assert_array_equal(ours, dense)
    if exclude:  # rows that the second step does not touch move on by their momentum
        first, second = ends[0][:2]
        assert np.isclose(second, 0.9 * first)[first != 0].any()


RULES = [
    ("qsgd", "auto", "rows", ""),
    ("efsignsgd", "auto", "rows", ""),
    ("none", "none", "plain", ""),
    ("qsgd", "none", "rows", ""),
    ("topk", "auto", "rows", ""),
    ("topk|values=qsgd", "auto", "rows", ""),
    ("topk", "ef21", "plain", "the memory ef21 does not go row by row"),
    ("topk", "none", "plain", "the memory none would lose the rows that are not sent"),
    ("topk:row_ratio=1.0", "auto", "plain", "topk:row_ratio=1.0 sends all rows"),
    ("topk:ratio=1.0", "auto", "plain", "topk:ratio=1.0 sends all rows"),
    ("topk:row_ratio=1.0|values=qsgd", "auto", "rows", ""),
    ("topk|values=sketch", "auto", "plain", "does not compress rows by themselves"),
    ("chunktopk", "auto", "rows", ""),
    ("randomk", "auto", "plain", "randomk does not compress rows by themselves"),
    ("powersgd", "auto", "plain", "powersgd.* does not compress rows"),
    ("terngrad:shared=true", "auto", "plain", "terngrad.* does not compress rows"),
    ("u8bit", "residual:dtype=int8", "plain", "the memory residual does not go row by row"),
    ("signsgd", "auto", "dense", "the consensus of signsgd needs all rows"),
    ("dgc", "auto", "dense", "the memory dgc needs all rows in every step"),
    ("qsgd", "momentum", "dense", "the memory momentum needs all rows in every step"),
]


@pytest.mark.parametrize("spec, memory, way, told", RULES, ids=[r[0] + "+" + r[1] for r in RULES])
def test_how_rows_travel_follows_a_rule_that_is_told(spec, memory, way, told, caplog):
    path = f"table_of_{re.sub(r'[^a-z]', '_', spec + memory)}"  # each sentence comes once
    own, specs = settings(spec, memory=memory), [tf.TensorSpec([500, 16])]
    caplog.set_level("WARNING", "grace_tf")
    made = make_plan(own, [path], specs, [0], [0])
    assert [lane.position for lane in made.sparse] == [0] * (way == "plain")
    assert [group.lanes[0].position for group in made.by_rows] == [0] * (way == "rows")
    assert len(made.groups) == (way == "dense")
    lines = [record.getMessage() for record in caplog.records if path in record.getMessage()]
    assert len(lines) == bool(told)
    how = "is made dense" if way == "dense" else "travels as rows that are not compressed"
    for line in lines:
        assert re.fullmatch(rf"The sparse gradient of {path} {how}: .*{told}.*\.", line), line
    if way == "rows":
        assert make_plan(own, [path], specs, [0]).digest != made.digest
        assert make_plan(own, [path], specs, [0], [0], static="XLA").groups


@pytest.mark.parametrize("memory", ["none", "residual"])
@pytest.mark.parametrize("dtype, value", [(tf.bfloat16, 2.0e38), (tf.float16, 40000.0)])
def test_a_sum_that_overflows_in_a_narrow_table_leaves_state_alone(dtype, value, memory):
    table = tf.Variable(tf.zeros([40, 3], dtype), name="table")
    aggregate = grace_tf.Aggregator("fp16", memory=memory, min_elements=1)
    for scale, committed in ((1.0, 1), (value, 1), (1.0, 2)):
        grads = [
            [tf.IndexedSlices(tf.cast(tf.fill([2, 3], scale), dtype), tf.constant([3, 5]), [40, 3])]
            for _ in range(2)
        ]
        ((total,), _) = aggregate.aggregate_replicas(Loopback(2), grads, [table], [None] * 2)
        assert np.isfinite(np.float32(total.values)).all() == (scale == 1.0)
        assert aggregate.state.step == committed
        assert all(
            np.isfinite(a).all() for a in aggregate.state.arrays().values() if a.dtype.kind == "f"
        )


def test_under_a_strategy_replicas_end_alike_where_the_dense_exchange_ends():
    strategy = mirrored(2)

    def ends(**keywords):
        with strategy.scope():
            table = tf.Variable(tf.ones([50, 4]))
            aggregate = grace_tf.Aggregator(**keywords)

        @tf.function(autograph=False)
        def step(seed):
            def replica():
                context = tf.distribute.get_replica_context()
                own = context.replica_id_in_sync_group
                tokens = tf.random.stateless_uniform([9], [seed, own], 0, 50, tf.int32)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.gather(table, tokens) ** 2)
                (total,) = aggregate([tape.gradient(loss, table)], [table])
                return tf.convert_to_tensor(total)

            return strategy.experimental_local_results(strategy.run(replica))

        return [np.stack(step(tf.constant(seed))) for seed in range(3)]

    for plain, ours in zip(ends(compressor="none"), ends(**EXACT)):
        np.testing.assert_array_equal(ours, plain)
        assert plain.any()


@pytest.mark.slow
def test_two_processes():
    ((first,), (second,)) = launch("tables.py", timeout=600).succeeded().answers()
    for answer in (first, second):
        large = answer.pop("large")
        assert large["moved"] and large["handed"] == ["gather", "gather"]
        for rows, nbytes in large["told"]:
            # A row is an index and 64 halves; padding takes half of the words at most.
            assert 132 * rows <= nbytes <= 1.6 * 132 * rows
    mine, theirs = first.pop("largest"), second.pop("largest")
    for method, one in mine.items():
        other = theirs[method]
        assert one["table"] == other["table"] and one["waiting"] != other["waiting"], method
        row = 4 + (64 if "qsgd" in method else 256)
        for pair in zip(one["told"], other["told"]):
            sent = max(max(1, touched // 4) if touched else 0 for touched, _ in pair)
            for _, nbytes in pair:
                # Scales, padding to the next size (at least 4 KiB) and the counts come in addition.
                assert row * sent <= nbytes <= 1.6 * row * sent + 4300, (method, pair)
    assert len(first) >= 3
    for name, (dense, ours) in first.items():
        assert second[name] == [dense, ours]  # workers have the same bits
        for theirs, mine in zip(dense, ours):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, err_msg=name)
