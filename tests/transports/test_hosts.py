"""hierarchical=True: inside a host gradients are added up, and only the sums are compressed."""

import numpy as np
import pytest
import tensorflow as tf
from horovod_runs import needs_horovod
from launch import launch
from replicas import mirrored
from this_keras import keras

import grace_tf
from grace_tf.line.lanes import lane_of
from grace_tf.line.settings import settings
from grace_tf.line.sparse_policy import PLAIN_ROWS
from grace_tf.transports.hosts import Hosts
from grace_tf.transports.loopback import Loopback


def told_by(*arguments, workers=4, horovod=False):
    """What each worker printed as JSON, and everything that was printed."""
    run = launch("hosts.py", *arguments, workers=workers, horovod=horovod).succeeded()
    return run.answers(), run.text


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["group", pytest.param("horovod", marks=needs_horovod)])
def test_a_host_counts_as_one_worker(engine):
    """Two hosts end as two workers do that have the mean gradients of the hosts, bit for bit."""
    said, printed = told_by(engine, horovod=engine == "horovod")
    for rank, lines in enumerate(said):
        calls, *steps, narrow, rows, stopped, refused = lines
        assert (calls.pop("size"), calls.pop("workers"), calls.pop("gradients")) == (
            2,
            [rank // 2],
            4,
        )
        assert all(calls.values()), calls
        assert len(steps) == 8
        for told in steps:
            assert told["equal"], told
            assert told["workers"] == [rank // 2]
        assert narrow["narrow"], narrow
        assert rows["rows"] == [[0, 1, 2, 3], [0.25] * 4], rows
        assert stopped["untouched"], stopped
        assert "worker 0 and worker 1 share a host and hold different" in refused["refused"]
    assert "Host 1 of 2: in step 1 its gradient was not finite" in printed


def test_hosts_without_shared_memory_use_sockets():
    said, printed = told_by("sockets")
    for (calls,) in said:
        assert all(value for name, value in calls.items() if name != "workers"), calls
    assert printed.count("adds up the gradients of a host through sockets") == 1
    assert "worker 3 runs TensorFlow" in printed


def test_a_killed_process_of_a_host_is_named_by_all():
    run = launch("hosts.py", "killed", workers=4)
    assert run.code != 0
    for rank, lines in enumerate(run.said()[:3]):
        assert f"Worker {rank} of 4 cannot go on, worker 3" in lines, lines


def test_hosts_with_other_numbers_of_workers_are_refused():
    said, _ = told_by("uneven")
    for (told,) in said:
        assert "equally many workers on each host" in told["refused"]
        assert "3 on 127.0.0.1, 1 on 127.0.0.2" in told["refused"]


@needs_horovod
def test_horovod_has_to_take_process_sets():
    said, _ = told_by("horovod", "fixed", horovod=True)
    for (told,) in said:
        assert 'call hvd.init(process_sets="dynamic")' in told["refused"]


def test_the_devices_of_a_process_of_a_strategy_are_a_host():
    """Two processes of two devices each; a worker alone whose gradients are means does the same."""
    said, _ = told_by("strategy", workers=2)
    assert said[0] == said[1]
    assert len(said[0]) == 7
    for told in said[0]:
        assert told["replicas"] == [True, True], told


@pytest.mark.parametrize("method", ["qsgd", "topk:ratio=0.25", "powersgd:rank=1"])
def test_the_replicas_of_one_process_are_one_worker(method):
    strategy = mirrored(2)
    draw = np.random.default_rng(5)
    grads = draw.normal(size=[3, 2, 40, 8]).astype(np.float32)
    with strategy.scope():
        variable = tf.Variable(tf.zeros([40, 8]))
    there = grace_tf.Aggregator(method, min_elements=1, hierarchical=True, reduce="mean")
    alone = grace_tf.Aggregator(method, min_elements=1)
    own = tf.Variable(tf.zeros([40, 8]))

    @tf.function
    def step(values):
        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            return there([values[number]], [variable])[0]

        return strategy.experimental_local_results(strategy.run(replica))

    for each in grads:
        one, two = step(tf.constant(each))
        (wanted,) = alone([tf.constant((each[0] + each[1]) * np.float32(0.5))], [own])
        np.testing.assert_array_equal(one, wanted)
        np.testing.assert_array_equal(two, wanted)
    assert there.state.workers == (0,)
    assert there.state.size == 1


def aggregates(strategy, aggregate, variable, grads):
    """What each replica gets of its gradient, one of `grads`."""

    def replica():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return aggregate([tf.stack(grads)[number]], [variable])[0]

    return strategy.experimental_local_results(tf.function(lambda: strategy.run(replica))())


def test_each_strategy_takes_the_mean_of_its_own_replicas():
    aggregate = grace_tf.Aggregator("bf16", min_elements=1, hierarchical=True, reduce="mean")
    for count in (2, 3):
        strategy = mirrored(count)
        with strategy.scope():
            variable = tf.Variable(tf.zeros([4]))
        for each in aggregates(strategy, aggregate, variable, [tf.ones([4])] * count):
            np.testing.assert_array_equal(each, np.ones([4]))
    (alone,) = aggregate([tf.ones([4])], [tf.Variable(tf.zeros([4]))])
    np.testing.assert_array_equal(alone, np.ones([4]))


@pytest.mark.parametrize("method", ["qsgd:rounding=nearest", "none"])
def test_narrow_gradients_are_added_up_as_float32(method):
    """40000 + 40000 is too large for float16.  Uncompressed gradients are summed in their dtype."""
    strategy = mirrored(2)
    with strategy.scope():
        variables = [tf.Variable(tf.zeros([8], tf.float16)), tf.Variable(tf.zeros([2000]))]
    keywords = {"min_elements": 1, "hierarchical": True, "reduce": "mean"}
    aggregate = grace_tf.Aggregator({".*": method}, **keywords)

    def replica():
        grads = [tf.fill([8], tf.constant(40000.0, tf.float16)), tf.ones([2000])]
        return aggregate(grads, variables)[0]

    results = strategy.experimental_local_results(tf.function(lambda: strategy.run(replica))())
    for each in results:
        assert each.dtype == tf.float16
        assert np.all(np.isfinite(each)) == (method != "none")


class Known(Loopback):
    """A group that knows hosts, and whose parts are asked for only."""

    lifeline = None

    def __init__(self, *hosts):
        super().__init__(1)
        self.hosts, self.rank = hosts, 0

    def part(self, ranks):
        return Loopback(1)


def test_hosts_in_another_order_at_another_place_are_refused():
    assert Hosts.of(Known("a", "b", "a", "b")).size == 1
    with pytest.raises(RuntimeError, match="number them host by host"):
        Hosts.of(Known("a", "b", "b", "a"))


def test_rows_are_told_where_all_others_are():
    everyone = Loopback(1)
    hosts = Hosts(everyone, Loopback(1), Loopback(1))

    def rows(slices, key):
        everyone.take_down("gather", "int32", 7)
        return slices

    everyone.rows = rows
    with hosts.recorded() as handed:
        hosts.rows([[]], lambda name: 1)
    assert [each.elements for each in handed] == [7]


def test_rows_are_not_compressed():
    wanted = settings("bf16", memory="none", min_elements=1, hierarchical=True)
    spec = tf.TensorSpec([100, 8])
    assert lane_of(wanted, 0, "table", spec, 0, sparse=True)[1] == PLAIN_ROWS


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ValueError, match="hierarchical is one of False, True, bf16"):
        grace_tf.Aggregator("qsgd", hierarchical="fp16")
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable(tf.zeros([4]))
    aggregate = grace_tf.Aggregator("qsgd", min_elements=1, hierarchical="bf16")
    with pytest.raises(ValueError, match="use hierarchical=True"):
        aggregates(strategy, aggregate, variable, [tf.ones([4])] * 2)
    with pytest.raises(ValueError, match="nothing between hosts to compress"):
        grace_tf.CompressedAllReduce("qsgd", hierarchical=True)


def test_it_is_kept_in_an_optimizer_s_configuration():
    optimizer = grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd", hierarchical="bf16")
    copy = type(optimizer).from_config(optimizer.get_config())
    assert grace_tf.keras.aggregator_of(copy).settings.hierarchical == "bf16"
