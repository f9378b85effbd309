"""What threads and nesting must not spoil for each other."""

import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from replicas import mirrored

import grace_tf
from grace_tf import ops
from grace_tf.memories.residual import Residual
from grace_tf.transports.world import world

WAIT = 20.0


def together(*functions):
    """Runs the functions in a thread each; raises what one of them raised."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    if errors:
        raise errors[0]


@pytest.fixture
def eager_switches():
    """Makes Python switch threads very often, so that steps overlap unless they take turns."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def integers(seed, *shape):
    """Gradients whose sums are exact in float32."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def residuals(aggregator):
    """The mean over workers of what an Aggregator of one variable has not sent yet."""
    (rows,) = [a for name, a in aggregator.state.arrays().items() if name.endswith("/residual")]
    return rows.mean(0)


@pytest.mark.usefixtures("eager_switches")
@pytest.mark.parametrize("door", ["Aggregator", "all_reduce"])
def test_eager_steps_of_several_threads_lose_nothing(door):
    threads, steps, spec = 4, 40, "topk:ratio=0.01"
    variable = tf.Variable(tf.zeros([5000]), name="of_several_threads")
    aggregate = grace_tf.Aggregator(spec, min_elements=1)
    given, came = integers(1, threads, steps, 5000), np.zeros([threads, 5000], np.float32)

    def train(thread):
        for grad in given[thread]:
            if door == "Aggregator":
                (total,) = aggregate([tf.constant(grad)], [variable])
            else:
                (total,) = grace_tf.all_reduce(
                    [tf.constant(grad)], [variable], spec, min_elements=1
                )
            came[thread] += total.numpy()

    together(*(lambda i=i: train(i) for i in range(threads)))
    if door == "all_reduce":
        ((aggregate, _),) = variable._grace_aggregators.values()
    assert aggregate.state.step == threads * steps
    np.testing.assert_array_equal(came.sum(0) + residuals(aggregate), given.sum((0, 1)))


@pytest.mark.usefixtures("eager_switches")
def test_threads_that_run_a_strategy_lose_nothing_and_do_not_wait_for_ever():
    threads, steps, strategy = 2, 8, mirrored(2)
    with strategy.scope():
        variable = tf.Variable(tf.zeros([5000]), name="of_replicas_of_threads")
    aggregate = grace_tf.Aggregator("topk:ratio=0.01", min_elements=1)
    # One row a replica.
    given, came = integers(2, threads, steps, 2, 5000), np.zeros([threads, 5000], np.float32)

    def train(thread):
        for grads in given[thread]:

            def replica(grads=grads):
                i = int(tf.distribute.get_replica_context().replica_id_in_sync_group)
                return aggregate([tf.constant(grads[i])], [variable])[0]

            came[thread] += strategy.experimental_local_results(strategy.run(replica))[0].numpy()

    together(*(lambda i=i: train(i) for i in range(threads)))
    assert aggregate.state.step == threads * steps
    np.testing.assert_array_equal(came.sum(0) + residuals(aggregate), given.sum((0, 1, 2)))


def test_a_traced_step_that_another_thread_has_overtaken_raises_and_stores_nothing():
    begun, overtaken = threading.Event(), threading.Event()

    def waits_in_the_first_step(residual, step):
        if not begun.is_set():
            begun.set()
            overtaken.wait(WAIT)
        return residual

    class WaitsBeforeItIsStored(Residual):
        def settle(self, carry, sent, total, state, ctx):
            after_reading = [carry - sent, ctx.step]
            residual = tf.numpy_function(waits_in_the_first_step, after_reading, tf.float32)
            return total, {"residual": tf.reshape(residual, total.shape)}

    memory = grace_tf.register("waits_for_another_thread")(WaitsBeforeItIsStored)()
    variable = tf.Variable(tf.zeros([5000]), name="of_traced_threads")
    aggregate = grace_tf.Aggregator("topk:ratio=0.01", memory=memory, min_elements=1)
    step = tf.function(lambda grad: aggregate([grad], [variable])[0], autograph=False)
    first, second = (tf.constant(grad) for grad in integers(5, 2, 5000))
    graph, came = step.get_concrete_function(first), []

    def overtake():
        begun.wait(WAIT)
        came.append(graph(second).numpy())
        overtaken.set()

    with pytest.raises(tf.errors.InvalidArgumentError, match="Another thread of this process"):
        together(lambda: graph(first), overtake)
    assert aggregate.state.step == 1
    np.testing.assert_array_equal(came[0] + residuals(aggregate), second.numpy())


def test_between_processes_a_second_thread_is_refused(monkeypatch):
    variable = tf.Variable(tf.zeros([81]), name="of_a_group")
    aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
    seen = []

    def step():
        aggregate([tf.zeros([81])], [variable])

    class TwoWorkers:
        """A group in whose first comparison another thread begins a step."""

        rank, size = 0, 2

        def handshake(self, words, purpose):
            def second():
                try:
                    step()
                except RuntimeError as error:
                    seen.append(str(error))

            other = threading.Thread(target=second, daemon=True)
            other.start()
            other.join(WAIT)
            raise KeyboardInterrupt  # the first step is of no interest any more

    monkeypatch.setattr(world, "_current", TwoWorkers())
    with pytest.raises(KeyboardInterrupt):
        step()
    assert len(seen) == 1 and seen[0].startswith("Two threads of this process run a step of one")


class MeetingGroup:
    """A group of one worker whose comparisons wait for each other."""

    size = 1

    def __init__(self, parties):
        self._meeting = threading.Barrier(parties)

    def handshake(self, words, purpose):
        self._meeting.wait(WAIT)
        return np.array([words])


class ThreadsTest(tf.test.TestCase):
    def test_equal_plans_of_two_threads_have_their_own_keys(self):
        group = MeetingGroup(2)
        plans = []

        def plan():
            variable = tf.Variable(tf.zeros([77]), name="of_two_threads")
            aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
            aggregate.join([variable])
            plans.append(aggregate._plan([tf.zeros([77])], [variable], group))

        together(plan, plan)
        self.assertEqual(plans[0].digest, plans[1].digest)
        self.assertEmpty(set(plans[0].keys) & set(plans[1].keys))
        self.assertNotEqual(
            plans[0].key(0, 0, "sum", "float32"), plans[1].key(0, 0, "sum", "float32")
        )

    def test_two_threads_of_one_aggregator_get_the_same_plan(self):
        variable = tf.Variable(tf.zeros([79]), name="of_one_aggregator")
        aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
        aggregate.join([variable])
        started = threading.Barrier(2)
        plans, compared = [], []

        class Group:
            size = 1

            def handshake(self, words, purpose):
                compared.append(words)
                return np.array([words])

        def plan():
            started.wait(WAIT)
            plans.append(aggregate._plan([tf.zeros([79])], [variable], Group()))

        together(plan, plan)
        self.assertIs(*plans)
        self.assertLen(compared, 1)

    def test_a_forced_implementation_holds_for_its_own_thread(self):
        first_in, second_in, first_out = (threading.Event() for _ in range(3))
        seen = {}

        def chosen():
            return ops.chosen().__name__.rpartition(".")[2]

        def first():
            with ops.using("reference"):
                first_in.set()
                assert second_in.wait(WAIT)
                seen["first"] = chosen()
            first_out.set()

        def second():
            assert first_in.wait(WAIT)
            seen["before"] = chosen()
            with ops.using("native"):
                second_in.set()
                assert first_out.wait(WAIT)
                seen["second"] = chosen()
                with ops.using("reference"):
                    seen["nested"] = chosen()
                seen["after"] = chosen()

        together(first, second)
        wanted = dict(before="native", first="reference", second="native")
        self.assertEqual(seen, {**wanted, "nested": "reference", "after": "native"})
