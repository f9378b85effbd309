"""What a measured step finds equals what NumPy makes of the same gradients."""

import numpy as np
import pytest
import tensorflow as tf
from launch import launch
from replicas import mirrored

import grace_tf
from grace_tf.aggregation.measure import pieces
from grace_tf.aggregation.measure.alarms import Alarms, Limits
from grace_tf.aggregation.measure.moments import Moments, Times
from grace_tf.aggregation.measured import limits_of

SHAPES = ((40, 30), (9,), (300,))
METHODS = ("qsgd", "topk:ratio=0.1", "powersgd:rank=1", "bf16")


def variables_of():
    return [tf.Variable(tf.zeros(shape)) for shape in SHAPES]


def gradients(step, worker=0):
    draw = np.random.default_rng([step, worker])
    return [draw.normal(size=shape).astype(np.float32) for shape in SHAPES]


def flat(arrays):
    return np.concatenate([np.ravel(each) for each in arrays]).astype(np.float64)


def relative(got, mean):
    return np.sum((got - mean) ** 2) / np.sum(mean**2)


def traced(aggregate, variables):
    return tf.function(lambda *grads: aggregate(grads, variables), autograph=False)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["eager", "traced", "xla"])
def test_alone_the_error_is_numpys_and_no_bit_changes(how, method):
    variables = variables_of()
    plain, aggregate = (grace_tf.Aggregator(method, min_elements=1) for _ in range(2))
    assert aggregate.measure(every=3) and not aggregate.measure(every=3)
    steps = [traced(each, variables) for each in (plain, aggregate)]
    if how == "xla":
        make = {"autograph": False, "jit_compile": True}
        steps = [tf.function(lambda *g, to=e: to(g, variables), **make) for e in (plain, aggregate)]
    for step in range(5):
        grads = gradients(step)
        if how == "eager":
            wanted, got = plain(grads, variables), aggregate(grads, variables)
        else:
            wanted, got = (each(*map(tf.constant, grads)) for each in steps)
        for one, other in zip(wanted, got):
            np.testing.assert_array_equal(one, other)
        if step == 3:
            error = relative(flat(got), flat(grads))
            left = [v.numpy() for v in aggregate.state.variables if "residual" in v.name]
    found = aggregate.metrics()
    assert found["step"] == 3 and found["skipped"] == 0
    np.testing.assert_allclose(found["vnmse"], error, rtol=1e-4)
    assert (found["residual"] is None) == (not left)
    assert found["bytes"] == aggregate.bytes_per_step == plain.bytes_per_step
    assert (found["exposed"] is not None) == (how == "traced")


@pytest.mark.parametrize("hierarchical", [False, True])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_between_replicas_the_error_is_that_of_the_mean(reduce, hierarchical):
    strategy = mirrored(2)
    with strategy.scope():
        variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    keywords = {"reduce": reduce, "hierarchical": hierarchical}
    aggregate = grace_tf.Aggregator("topk:ratio=0.1", min_elements=1, **keywords)
    aggregate.measure(every=1)
    workers = [gradients(7, 0), gradients(7, 1)]
    scale = 2 if reduce == "sum" else 1  # Keras divides the loss by the number of replicas

    @tf.function(autograph=False)
    def step():
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            both = [np.stack(each) / scale for each in zip(*workers)]
            return aggregate([tf.gather(tf.constant(each), i) for each in both], variables)

        return [strategy.experimental_local_results(each)[0] for each in strategy.run(replica)]

    got, mean = flat(step()), np.mean([flat(each) for each in workers], axis=0)
    np.testing.assert_allclose(aggregate.metrics()["vnmse"], relative(got, mean), rtol=1e-4)
    left = aggregate.state.arrays()
    rows = [each[0] for name, each in left.items() if name.endswith("memory/residual")]
    own = mean if hierarchical else flat(workers[0])  # a host compresses the mean of its replicas
    wanted = np.linalg.norm(flat(rows)) / np.linalg.norm(own)
    np.testing.assert_allclose(aggregate.metrics()["residual"], wanted, rtol=1e-4)


def test_beside_rows_only_dense_gradients_and_their_residuals_count():
    dense, table = tf.Variable(tf.zeros([40, 30])), tf.Variable(tf.zeros([50, 64]))
    aggregate = grace_tf.Aggregator("topk:ratio=0.1", min_elements=1)
    aggregate.measure(every=1)
    grad = tf.constant(gradients(0)[0])
    rows = tf.IndexedSlices(tf.random.stateless_normal([9, 64], [1, 2]), tf.range(9), [50, 64])
    got, _ = aggregate([grad, rows], [dense, table])
    found, left = aggregate.metrics(), aggregate.state.arrays()
    assert sum(name.endswith("memory/residual") for name in left) == 2
    np.testing.assert_allclose(found["vnmse"], relative(flat([got]), flat([grad])), rtol=1e-4)
    # A top-k alone keeps in the residual what it did not send.
    np.testing.assert_allclose(found["residual"], found["vnmse"] ** 0.5, rtol=1e-4)


def test_a_sample_of_another_stage_is_not_shown():
    variables = variables_of()
    aggregate = grace_tf.Aggregator("topk:ratio=0.1@0;qsgd@3", min_elements=1)
    aggregate.measure(every=2)
    shown = []
    for step in range(5):
        aggregate(gradients(step), variables)
        shown.append(aggregate.metrics())
    assert [each["step"] for each in shown] == [0, 0, 2, None, 4]
    assert [each["vnmse"] is None for each in shown] == [False, False, False, True, False]
    assert [each["residual"] is None for each in shown] == [False, False, False, True, True]


def test_explain_shows_the_last_measured_step():
    variables = variables_of()
    aggregate = grace_tf.Aggregator("topk:ratio=0.1", min_elements=1)
    assert "not measured" in str(grace_tf.explain(aggregate))
    aggregate.measure(every=2)
    step = traced(aggregate, variables)
    for number in range(4):
        step(*map(tf.constant, gradients(number)))
    found, told = aggregate.metrics(), grace_tf.explain(aggregate).as_dict()["step"]
    assert told["measured"] == found["step"] == 2
    names = ("vnmse", "residual", "encoding", "exchange", "decoding", "exposed")
    assert {name: told[name] for name in names} == {name: found[name] for name in names}
    shown = str(grace_tf.explain(aggregate))
    assert f"{found['vnmse']:.3g}" in shown and f"{1e3 * found['exposed']:.3g} ms" in shown


@pytest.fixture(scope="module", params=["group", "strategy"])
def run(request):
    engine = request.param
    return launch("monitored.py", engine).succeeded().answers()


def test_between_processes_the_error_is_numpys_or_near_it(run):
    for told in run:
        *loops, fitted = told
        assert len(loops) == 8
        for one in loops:
            rtol = 1e-4 if one["exact"] else 0.06  # five standard deviations of a sketch
            assert one["step"] == 4, one
            np.testing.assert_allclose(one["vnmse"], one["numpy"], rtol=rtol, err_msg=str(one))
            if one["norms"] is not None:
                np.testing.assert_allclose(one["residual"], one["norms"], rtol=1e-4)
            assert one["exchange"] > 0 and one["exposed"] > 0
            assert one["sent"] == one["told"]["sent"] and one["bytes"] == one["told"]["bytes"]
        assert fitted["shas"][0] == fitted["shas"][1]
        assert len(fitted["logs"]["grace_vnmse"]) == 2


def test_all_workers_find_the_same_error(run):
    first, second = run
    assert [one.get("vnmse") for one in first] == [one.get("vnmse") for one in second]


def test_a_monitor_on_one_worker_alone_ends_all_with_a_sentence():
    made = launch("monitored.py", "alone")
    assert made.code != 0
    for said in made.said():
        assert "alike on all workers" in " ".join(said.split())


def test_a_step_that_is_not_measured_runs_no_operation_more_for_a_variable():
    def operations(count, every):
        variables = [tf.Variable(tf.zeros([50])) for _ in range(count)]
        aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
        if every:
            aggregate.measure(every)
        specs = [tf.TensorSpec([50])] * count
        graph = traced(aggregate, variables).get_concrete_function(*specs).graph
        return len(graph.get_operations())  # without those inside conditions

    assert operations(20, 7) - operations(10, 7) == operations(20, 0) - operations(10, 0)


def test_steps_that_are_not_finite_are_counted_and_give_no_sample():
    variables = variables_of()
    aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
    aggregate.measure(every=1)
    step = traced(aggregate, variables)
    step(*map(tf.constant, gradients(0)))
    before = aggregate.metrics()
    step(*[tf.constant(each) + np.nan for each in gradients(1)])
    after = aggregate.metrics()
    assert (before["skipped"], after["skipped"]) == (0.0, 0.5)
    assert after["vnmse"] == before["vnmse"]


def test_without_measuring_the_metrics_are_those_of_the_plan():
    variables = variables_of()
    aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
    aggregate(gradients(0), variables)
    found = aggregate.metrics()
    assert found["bytes"] == aggregate.bytes_per_step and found["ratio"] > 4
    assert {found[name] for name in ("step", "vnmse", "residual", "skipped", "exposed")} == {None}


@pytest.mark.parametrize("every, error", [(0, ValueError), (1.5, TypeError)])
def test_what_is_no_number_of_steps_is_refused(every, error):
    with pytest.raises(error, match="every"):
        grace_tf.Aggregator("qsgd").measure(every)


def test_a_sketch_has_the_norm_of_what_it_is_of_and_is_linear():
    x, y = (tf.random.stateless_normal([90, 1111], [seed, 0]) for seed in (1, 2))
    yes = tf.constant(True)
    found = [pieces.take(yes, [each], 16385, 3, 0, 8)[0] for each in (x, y, x + y)]
    np.testing.assert_allclose(found[0] + found[1], found[2], atol=1e-4)
    norms = [float(tf.reduce_sum(tf.square(each))) for each in (x, found[0])]
    np.testing.assert_allclose(*norms, rtol=0.05)
    # Equal elements in each column of a matrix: random signs keep them from adding up.
    same = tf.tile(tf.random.stateless_normal([1, 4096], [5, 0]), [64, 1])
    norms = [
        float(tf.reduce_sum(tf.square(x)))
        for x in (same, pieces.take(yes, [same], 16385, 0, 0, 1)[0])
    ]
    np.testing.assert_allclose(*norms, rtol=0.1)


def test_times_are_lengths_of_unions_of_spans():
    # Two buckets: gradients at 0 and 4, collectives 1-5 and 5-6, aggregates at 6 and 8.
    clock = np.array([0.0, 4.0, 1.0, 5.0, 5.0, 6.0, 6.0, 8.0])
    assert Moments(2, (0, 1)).times(clock) == Times(2.0, 5.0, 3.0, 4.0)


class Found:
    def __init__(self, step, vnmse, residual):
        self.step, self.vnmse, self.residual = step, vnmse, residual


def test_a_residual_that_grows_without_bound_is_told_once():
    alarms = Alarms()
    norms = (5, 8, 11, 14, 17, 20, 25)
    told = [alarms.of(0, Found(i, None, norm), Limits(None, None)) for i, norm in enumerate(norms)]
    assert [len(each) for each in told] == [0, 0, 0, 1, 0, 0, 0]
    assert "14 times the gradient" in told[3][0] and "larger ratio" in told[3][0]
    # Neither one that is large and does not grow, nor one that its method allows.
    settled = Alarms()
    for i, norm in enumerate((20, 20, 19, 20, 21, 20)):
        assert not settled.of(0, Found(i, None, norm), Limits(None, None))
    allowed = Alarms()
    for i, norm in enumerate((20, 30, 40, 50, 60)):
        assert not allowed.of(0, Found(i, None, norm), Limits(None, 199.0))


def test_an_error_out_of_its_range_is_told_once():
    alarms = Alarms()
    assert not alarms.of(0, Found(0, 0.9, None), Limits(1.0, None))
    assert len(alarms.of(0, Found(1, 1.2, None), Limits(1.0, None))) == 1
    assert not alarms.of(0, Found(2, 1.3, None), Limits(1.0, None))
    assert not Alarms().of(0, Found(0, 90.0, 3.0), Limits(None, None))


def test_the_limits_are_those_of_the_methods():
    def limits(method):
        aggregate = grace_tf.Aggregator(method)
        aggregate.measure()
        aggregate([tf.ones([5000])], [tf.Variable(tf.zeros([5000]))])
        return limits_of(aggregate)

    assert limits("topk:ratio=0.01").vnmse is None
    np.testing.assert_allclose(limits("topk:ratio=0.01").residual, 199, rtol=0.01)
    assert limits("qsgd:bits=8").vnmse == 1.0
    assert limits("qsgd:bits=2,block=none").vnmse > 1.0
