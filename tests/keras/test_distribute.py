"""The door of tf.distribute: gradients are compressed, everything else is as it was."""

import tensorflow as tf
from models import compiled, fit, model, replicas_of, sha, shas
from replicas import mirrored
from this_keras import keras

import grace_tf

SGD = keras.optimizers.SGD


def strategy_with(compressor, **keywords):
    ops = grace_tf.CompressedAllReduce(compressor, min_elements=1, **keywords)
    return ops, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)


def normalised():
    """A model whose forward and backward passes have sums over replicas of their own."""
    first = keras.initializers.GlorotUniform(seed=1)
    second = keras.initializers.GlorotUniform(seed=2)
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, kernel_initializer=first),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(4, kernel_initializer=second),
        ]
    )


def sgd():
    return SGD(0.1, momentum=0.9)


class FitTest(tf.test.TestCase):
    def test_it_is_wrap_bit_for_bit_and_touches_gradients_only(self):
        for compressor in ("qsgd", "topk:ratio=0.1"):
            _, strategy = strategy_with(compressor, seed=2)
            ours = compiled(sgd, strategy, normalised, metrics=["mae"])
            wrapped = compiled(
                lambda of=compressor: grace_tf.wrap(sgd(), of, min_elements=1, seed=2),
                mirrored(2),
                normalised,
                metrics=["mae"],
            )
            history = [fit(made, 6).history for made in (ours, wrapped)]
            self.assertEqual(shas(ours, strategy), shas(wrapped, mirrored(2)))
            self.assertLen(set(shas(ours, strategy)), 1)
            self.assertEqual(*history)  # losses and metrics

    def test_a_schedule_follows_the_committed_steps(self):
        spec = "none@0;topk:ratio=0.5@2;powersgd:rank=1@4"
        ops, strategy = strategy_with(spec, seed=2)
        ours = compiled(sgd, strategy)
        wrapped = compiled(lambda: grace_tf.wrap(sgd(), spec, min_elements=1, seed=2), mirrored(2))
        fit(ours, 6)
        fit(wrapped, 6)
        self.assertEqual(shas(ours, strategy), shas(wrapped, mirrored(2)))
        self.assertEqual(ops.aggregator.state.step, 6)

    def test_auto_takes_none_since_nothing_crosses_a_network(self):
        ops, strategy = strategy_with("auto")
        ours, plain = compiled(sgd, strategy), compiled(sgd, mirrored(2))
        fit(ours, 3)
        fit(plain, 3)
        self.assertEqual(shas(ours, strategy), shas(plain, mirrored(2)))
        choice = grace_tf.explain(ops.aggregator).as_dict()["choice"]
        self.assertEqual(choice, "auto: none, since nothing crosses a network in this process.")

    def test_none_is_the_plain_strategy_bit_for_bit(self):
        ops, strategy = strategy_with("none")
        ours, plain = compiled(sgd, strategy, normalised), compiled(sgd, mirrored(2), normalised)
        fit(ours, 6)
        fit(plain, 6)
        self.assertEqual(shas(ours, strategy), shas(plain, mirrored(2)))
        self.assertEqual(ops.aggregator.state.step, 0)

    def test_sums_that_are_no_gradients_have_no_lane(self):
        ops, strategy = strategy_with("topk:ratio=0.1")
        made = compiled(sgd, strategy, normalised)
        fit(made, 2)
        self.assertEqual(ops.aggregator.state.step, 2)
        residuals = [
            rows for name, rows in ops.aggregator.state.arrays().items() if "/memory/" in name
        ]
        self.assertCountEqual(
            [rows.shape[1:] for rows in residuals],
            [tuple(v.shape) for v in made.trainable_variables],
        )

    def test_eager(self):
        ends = []
        for eager in (True, False):
            _, strategy = strategy_with("topk:ratio=0.1")
            made = compiled(sgd, strategy, run_eagerly=eager)
            fit(made, 3)
            ends.append(made.get_weights())
        for ours, theirs in zip(*ends):
            self.assertAllClose(ours, theirs, rtol=1e-5, atol=1e-6)


class StepTest(tf.test.TestCase):
    def test_embeddings_reduce(self):
        for method, steps in (("fp16", 1), ("topk:ratio=1.0", 0)):  # topk's rows go the host's way
            self._embeddings_reduce(method, steps)

    def _embeddings_reduce(self, method, steps):
        ops, strategy = strategy_with(method)
        with strategy.scope():
            table, optimizer = tf.Variable(tf.zeros([5, 2])), SGD(1.0)

        @tf.function
        def step():
            def replica():
                i = tf.distribute.get_replica_context().replica_id_in_sync_group
                rows = tf.gather(tf.constant([[0, 1, 1], [1, 4, 0]]), i)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.gather(table, rows))
                optimizer.apply_gradients([(tape.gradient(loss, table), table)])

            strategy.run(replica)

        step()
        for row in replicas_of(table):
            self.assertAllEqual(row[:, 0], [-2.0, -3.0, 0.0, 0.0, -1.0])
        self.assertEqual(ops.aggregator.state.step, steps)

    def test_reductions_of_ones_own_are_exact(self):
        ops, strategy = strategy_with("signsgd")

        def replica():
            context = tf.distribute.get_replica_context()
            value = tf.range(3.0) * (1.0 + tf.cast(context.replica_id_in_sync_group, tf.float32))
            return value, context.all_reduce(tf.distribute.ReduceOp.SUM, value)

        values, total = tf.function(lambda: strategy.run(replica))()
        with strategy.scope():
            counter = tf.Variable(tf.zeros([3]), trainable=False)
        (counted,) = strategy.extended.batch_reduce_to("SUM", [(values, counter)])
        self.assertAllEqual(strategy.experimental_local_results(counted)[1], [0.0, 3.0, 6.0])
        self.assertAllEqual(strategy.experimental_local_results(total)[1], [0.0, 3.0, 6.0])
        self.assertAllEqual(strategy.reduce("MEAN", values, axis=None), [0.0, 1.5, 3.0])
        self.assertAllEqual(strategy.gather(values, axis=0), [0.0, 1.0, 2.0, 0.0, 2.0, 4.0])
        self.assertEqual(ops.aggregator.state.step, 0)

    def test_checkpoint(self):
        path = self.get_temp_dir() + "/c"
        ops, strategy = strategy_with("topk:ratio=0.1")
        made = compiled(sgd, strategy)
        fit(made, 3)
        saved = tf.train.Checkpoint(model=made, optimizer=made.optimizer, ops=ops).save(path)
        ops, strategy = strategy_with("topk:ratio=0.1")
        other = compiled(sgd, strategy, make=lambda: model(seed=8))
        tf.train.Checkpoint(model=other, optimizer=other.optimizer, ops=ops).restore(saved)
        fit(made, 3, seed=1)
        fit(other, 3, seed=1)
        self.assertEqual(sha(other), sha(made))
        self.assertEqual(ops.aggregator.state.step, 6)

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "Unknown compressor"):
            grace_tf.CompressedAllReduce("qsdg")
        with self.assertRaisesRegex(TypeError, "inner is a tf.distribute.CrossDeviceOps"):
            grace_tf.CompressedAllReduce("qsgd", "nccl")
