"""The door for custom loops: eager and traced, alone and in replicas, with state that survives."""

import gc
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from replicas import mirrored
from this_keras import keras

import grace_tf
from grace_tf.aggregation.already_aggregated import aggregated
from grace_tf.transports.loopback import Loopback

LOSSLESS = "topk:ratio=1.0"


def some(count=2, seed=0, rows=7):
    """Variables and, for three steps, their gradients."""
    draw = np.random.default_rng(seed)
    variables = [
        tf.Variable(draw.normal(size=[rows, 5 + i]).astype(np.float32)) for i in range(count)
    ]
    steps = [
        [tf.constant(draw.normal(size=v.shape), tf.float32) for v in variables] for _ in range(3)
    ]
    return variables, steps


@pytest.mark.rotated
@pytest.mark.parametrize("method", grace_tf.available())
def test_every_method_compiles_by_xla(method):
    many, (grads, *_) = some(rows=70)  # so many that every method wants them
    few, (others, *_) = some(rows=1)  # 32 elements or fewer
    variables, grads = many + few, grads + others
    plain = grace_tf.Aggregator(method, min_elements=1)(grads, variables)
    aggregate = grace_tf.Aggregator(method, min_elements=1)
    function = tf.function(lambda *g: aggregate(g, variables), jit_compile=True)
    # XLA's singular vectors have fewer digits.
    atol = 5e-4 if method == "atomo" else 1e-5
    for ours, theirs in zip(function(*grads), plain):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=atol)
    assert aggregate.state.step == int(method != "none")


class AloneTest(tf.test.TestCase):
    def test_eager_is_traced_bit_for_bit(self):
        for method in ("qsgd", "topk:ratio=0.2", "powersgd", "signsgd"):
            variables, steps = some()
            eager = grace_tf.Aggregator(method, min_elements=1, seed=3)
            traced = grace_tf.Aggregator(method, min_elements=1, seed=3)
            function = tf.function(lambda *grads, to=traced, of=variables: to(grads, of))
            for grads in steps:
                for ours, theirs in zip(function(*grads), eager(grads, variables)):
                    self.assertAllEqual(ours, theirs)
            self.assertEqual(eager.state.step, 3)
            for name, rows in eager.state.arrays().items():
                self.assertAllEqual(rows, traced.state.arrays()[name], name)

    def test_a_variable_comes_once(self):
        variables, (grads, *_) = some(1)
        with self.assertRaisesRegex(ValueError, "comes twice"):
            grace_tf.Aggregator("topk", min_elements=1)(grads * 2, variables * 2)
        with self.assertRaisesRegex(ValueError, "1 gradients came with 0 variables"):
            grace_tf.all_reduce(grads, [], "topk")

    def test_a_narrow_gradient_saturates_and_goes_on(self):
        # 40000 + a residual of as much is beyond float16; the step must not be refused for ever.
        variable = tf.Variable(tf.zeros([64], tf.float16))
        grad = tf.constant([40000.0] * 64, tf.float16)
        aggregate = grace_tf.Aggregator("topk:ratio=0.5", min_elements=1)
        for step in range(1, 5):
            (total,) = aggregate([grad], [variable])
            self.assertEqual(total.dtype, tf.float16)
            self.assertAllInRange(tf.cast(total, tf.float32), 0.0, 65504.0)
            self.assertEqual(aggregate.state.step, step)
        (total,) = aggregate([grad * np.float16("inf")], [variable])
        self.assertTrue(np.isnan(total.numpy()).all())
        self.assertEqual(aggregate.state.step, 4)

    def test_complex_gradients_travel_dense(self):
        variable = tf.Variable(tf.zeros([4], tf.complex64))
        grads = [[tf.constant([1 + 2j] * 4, tf.complex64)], [tf.constant([3j] * 4, tf.complex64)]]
        wide = [tf.Variable(tf.zeros([40])), tf.ones([40])]
        aggregate = grace_tf.Aggregator("fp16", min_elements=1)
        mine = [[*mine, wide[1]] for mine in grads]
        first, _ = aggregate.aggregate_replicas(
            Loopback(2), mine, [variable, wide[0]], [None, None]
        )
        self.assertAllEqual(first[0], [1 + 5j] * 4)

    def test_none_gives_the_gradients_themselves(self):
        variables, (grads, *_) = some()
        for ours, theirs in zip(grace_tf.Aggregator("none")(grads, variables), grads):
            self.assertIs(ours, theirs)

    def test_variables_may_join_later(self):
        variables, steps = some(3)
        aggregate = grace_tf.Aggregator("topk:ratio=0.1", min_elements=1)
        function = tf.function(lambda grads, of: aggregate(grads, of), reduce_retracing=False)
        function(steps[0][:1], variables[:1])
        first = aggregate.state.arrays()["Variable/memory/residual"]
        self.assertTrue(np.any(first))
        total = function(steps[1], variables)
        again = aggregate.state.arrays()
        # The first variable's residual was sent or kept: nothing of it was lost.
        compensated = steps[1][0].numpy() + first[0]
        self.assertAllClose(
            total[0].numpy() + again["Variable/memory/residual"][0], compensated, rtol=1e-6
        )
        self.assertLen([k for k in again if k.endswith("residual")], 3)

    def test_a_retrace_shares_state(self):
        (variable,), _ = some(1)
        aggregate = grace_tf.Aggregator("topk:ratio=0.1", min_elements=1)

        @tf.function
        def step(x):
            return aggregate([tf.reduce_sum(x) * variable], [variable])

        for rows in (2, 3, 4):
            step(tf.ones([rows, 1]))
            step(tf.ones([rows, rows]))
        self.assertEqual(aggregate.state.step, 6)
        self.assertLen(aggregate.state.variables, 2)
        self.assertGreater(step.experimental_get_tracing_count(), 1)

    def test_none_and_sparse_gradients(self):
        table, other = tf.Variable(tf.ones([4, 3])), tf.Variable(tf.ones([2]))
        sparse = tf.IndexedSlices(tf.ones([3, 3]), tf.constant([1, 1, 3]), tf.constant([4, 3]))
        total, nothing = grace_tf.Aggregator(LOSSLESS, min_elements=1)(
            [sparse, None], [table, other]
        )
        self.assertIsNone(nothing)
        total = tf.convert_to_tensor(total)
        self.assertAllEqual(total, [[0] * 3, [2] * 3, [0] * 3, [1] * 3])

    def test_half_and_double_gradients_keep_their_dtype(self):
        for dtype in ("float16", "bfloat16", "float64"):
            variable = tf.Variable(tf.ones([8], dtype))
            (total,) = grace_tf.Aggregator(LOSSLESS, min_elements=1)(
                [2 * variable.read_value()], [variable]
            )
            self.assertEqual(total.dtype.name, dtype)
            self.assertAllEqual(tf.cast(total, tf.float32), [2.0] * 8)

    def test_non_finite_gradients_leave_state_alone(self):
        variables, steps = some(2)
        aggregate = grace_tf.Aggregator("topk:ratio=0.1", min_elements=1)
        aggregate(steps[0], variables)
        before = aggregate.state.arrays()
        out = aggregate([steps[1][0], steps[1][1] * np.inf], variables)
        self.assertTrue(all(np.isnan(g).all() for g in out))
        for name, rows in aggregate.state.arrays().items():
            self.assertAllEqual(rows, before[name])

    def test_checkpoint(self):
        variables, steps = some()
        path = self.get_temp_dir() + "/c"
        first = grace_tf.Aggregator("topk:ratio=0.1", min_elements=1)
        first(steps[0], variables)
        saved = tf.train.Checkpoint(aggregate=first).save(path)
        wanted = first(steps[1], variables)
        for used in (False, True):
            again = grace_tf.Aggregator("topk:ratio=0.1", min_elements=1)
            if used:
                again(steps[2], variables)
            status = tf.train.Checkpoint(aggregate=again).restore(saved)
            for ours, theirs in zip(again(steps[1], variables), wanted):
                self.assertAllEqual(ours, theirs)
            status.assert_consumed()

    def test_all_reduce_finds_its_aggregator_again(self):
        variables, steps = some()
        aggregate = grace_tf.Aggregator("topk:ratio=0.1", min_elements=1)

        @tf.function
        def step(*grads):
            return grace_tf.all_reduce(grads, variables, "topk", ratio=0.1, min_elements=1)

        for grads in steps:
            for ours, theirs in zip(step(*grads), aggregate(grads, variables)):
                self.assertAllEqual(ours, theirs)
        eager = grace_tf.all_reduce(steps[0], variables, "topk", ratio=0.1, min_elements=1)
        self.assertAllEqual(eager[0], aggregate(steps[0], variables)[0])
        self.assertEqual(grace_tf.all_reduce([], []), [])

    def test_the_mark_goes_with_its_aggregator(self):
        variables, (grads, *_) = some()
        aggregate, other = grace_tf.Aggregator("none"), grace_tf.Aggregator("none")
        self.assertFalse(any(map(aggregated, variables)))
        aggregate(grads, variables)
        other(grads[:1], variables[:1])
        self.assertEqual(list(map(aggregated, variables)), [True, True])
        del aggregate
        gc.collect()
        self.assertEqual(list(map(aggregated, variables)), [True, False])
        del other
        gc.collect()
        self.assertFalse(any(map(aggregated, variables)))
        # So an optimizer may take over.
        optimizer = grace_tf.wrap(keras.optimizers.SGD(0.1), "topk")
        optimizer.apply_gradients(zip(grads, variables))

    def test_an_error_alone_keeps_its_own_message(self):
        class Broken(Loopback):
            def take_down(self, kind, dtype, elements):
                raise tf.errors.ResourceExhaustedError(None, None, "out of memory")

        variables, (grads, *_) = some()
        with mock.patch("grace_tf.aggregation.step.Loopback", Broken):
            with self.assertRaisesRegex(tf.errors.ResourceExhaustedError, "out of memory"):
                grace_tf.Aggregator("qsgd", min_elements=1)(grads, variables)

    def test_refusals(self):
        variables, (grads, *_) = some()
        with self.assertRaisesRegex(ValueError, "2 gradients came with 1 variables"):
            grace_tf.Aggregator("qsgd")(grads, variables[:1])
        with self.assertRaisesRegex(ValueError, "reduce"):
            grace_tf.Aggregator("qsgd", reduce="max")
        with mirrored(2).scope(), self.assertRaisesRegex(RuntimeError, "inside strategy.run"):
            grace_tf.Aggregator("qsgd")(grads, variables)


def test_bug_26_a_step_prints_nothing(capfd):
    # GRACE's patch of Horovod printed every gradient on worker 0.
    variables = [tf.Variable(tf.zeros([40]))]
    grads = [tf.fill([40], 1234.5)]
    for spec in ("topk:ratio=0.1", "qsgd", "powersgd", "none"):
        aggregate = grace_tf.Aggregator(spec, min_elements=1)
        aggregate(grads, variables)
        tf.function(aggregate)(grads, variables)
    printed = capfd.readouterr()
    assert printed.out == "" and "1234.5" not in printed.err


@pytest.mark.parametrize("traced", [False, True])
def test_bug_27_the_gradients_of_a_tape_are_taken_as_they_are(traced):
    # GRACE's patch handed them to a function that took them apart as pairs.
    variables = [tf.Variable([1.0, -2.0, 3.0]), tf.Variable([[4.0, 5.0]])]
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(variables)
    aggregate = grace_tf.Aggregator(LOSSLESS, min_elements=1)

    def step():
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(variable**2) for variable in variables)
        grads = aggregate(tape.gradient(loss, variables), variables)
        optimizer.apply_gradients(list(zip(grads, variables)))

    (tf.function(step) if traced else step)()
    for variable in variables:
        np.testing.assert_array_equal(variable, tf.zeros_like(variable))
    assert aggregate.state.step == 1


class ReplicasTest(tf.test.TestCase):
    def aggregated(self, replicas=2, compressor=LOSSLESS, **keywords):
        strategy = mirrored(replicas)
        with strategy.scope():
            variable = tf.Variable(tf.zeros([6]))
        aggregate = grace_tf.Aggregator(compressor, min_elements=1, **keywords)

        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            (total,) = aggregate([tf.range(6.0) * (1.0 + tf.cast(i, tf.float32))], [variable])
            return total

        rows = tf.function(lambda: strategy.run(replica))()
        eager = strategy.run(replica)
        self.assertEqual(aggregate.state.step, 0 if compressor == "none" else 2)
        rows, eager = (strategy.experimental_local_results(r) for r in (rows, eager))
        for row in (*rows, *eager):
            self.assertAllEqual(row, rows[0])
        return rows[0].numpy()

    def test_sum_and_mean_by_hand(self):
        for compressor in (LOSSLESS, "none"):
            total = np.arange(6) * (1 + 2 + 3)
            self.assertAllClose(self.aggregated(3, compressor), total)
            self.assertAllClose(self.aggregated(3, compressor, reduce="sum"), total)
            self.assertAllClose(self.aggregated(3, compressor, reduce="mean"), total / 3)

    def test_a_vote_is_never_divided(self):
        for reduce in ("sum", "mean"):
            self.assertAllEqual(self.aggregated(3, "signsgd", reduce=reduce), np.ones(6))

    def test_variables_handed_in_by_run_are_the_same_variables(self):
        strategy = mirrored(2)
        with strategy.scope():
            variables = [tf.Variable(tf.ones([6])), tf.Variable(tf.ones([6]))]
        aggregate = grace_tf.Aggregator("topk:ratio=0.2", min_elements=1)
        for variable in variables:
            strategy.run(lambda v: aggregate([v * 2.0], [v]), args=(variable,))
        names = [name for name in aggregate.state.arrays() if name.endswith("residual")]
        self.assertEqual(names, ["Variable/memory/residual", "Variable~1/memory/residual"])
