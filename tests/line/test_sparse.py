"""Sparse gradients (IndexedSlices) that are not compressed stay rows, through every door."""

import embeddings  # noqa: E402
import numpy as np
import pytest
import tensorflow as tf
from launch import launch, launch_once
from models import KERAS_3, compiled, embedding, embedding_loop, sha, shas, tokens
from replicas import mirrored
from this_keras import keras

import grace_tf
from grace_tf.keras import aggregator_of
from grace_tf.line.plan import make_plan
from grace_tf.line.settings import settings
from grace_tf.transports.loopback import Loopback
from grace_tf.transports.rows import SIZES

# What carries every element, beside a table that nothing compresses.
MIXED = {"compressor": "topk:ratio=1.0", "memory": "none", "exclude": ".*table.*"}
MIXED["min_elements"] = 1

OPTIMIZERS = {"adam": lambda: keras.optimizers.Adam(0.01)}
if not KERAS_3:
    OPTIMIZERS["legacy"] = lambda: keras.optimizers.legacy.Adam(0.01)

every_adam = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def fitted(optimizer, strategy=None, **keywords):
    made = compiled(optimizer, strategy, embedding, **keywords)
    x, y = tokens(workers=1)
    for one, wanted in zip(x[:, 0], y[:, 0]):
        made.train_on_batch(one, wanted)
    return made


@every_adam
def test_alone_the_weights_are_those_of_the_plain_optimizer(make):
    for eager in (False, True):
        plain = fitted(make, run_eagerly=eager)
        for keywords in ({"compressor": "none"}, MIXED):
            wrapped = fitted(lambda of=keywords: grace_tf.wrap(make(), **of), run_eagerly=eager)
            assert sha(wrapped) == sha(plain), (eager, keywords)
        assert aggregator_of(wrapped.optimizer).state.step == 12


def test_rows_without_a_shape_of_their_own_have_their_variables():
    rows = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    whole = np.zeros([5, 2], np.float32)
    whole[[1, 3]] = rows
    of_keras = keras.Variable(tf.zeros([5, 2])) if KERAS_3 else tf.Variable(tf.zeros([5, 2]))
    for variable in (tf.Variable(tf.zeros([5, 2])), of_keras):
        for least in (1, 1000):  # compressed, and not
            aggregate = grace_tf.Aggregator("topk:ratio=1.0", min_elements=least)
            (total,) = aggregate([tf.IndexedSlices(rows, tf.constant([1, 3]))], [variable])
            np.testing.assert_array_equal(tf.convert_to_tensor(total), whole)


@every_adam
def test_under_a_strategy_the_weights_are_those_of_the_plain_optimizer(make):
    def ends(strategy, wrapped):
        with strategy.scope():
            made, optimizer = embedding(), wrapped()
        embedding_loop(made, optimizer, strategy)
        return shas(made, strategy)

    plain = ends(mirrored(2), make)
    assert len(set(plain)) == 1
    assert ends(mirrored(2), lambda: grace_tf.wrap(make(), "none")) == plain
    assert ends(mirrored(2), lambda: grace_tf.wrap(make(), **MIXED)) == plain
    mapping = {**MIXED, "compressor": {".*kernel": "topk:ratio=1.0"}, "exclude": ()}
    for keywords in ({"compressor": "none"}, MIXED, mapping):
        inner = Inner()
        ops = grace_tf.CompressedAllReduce(inner=inner, **keywords)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
        assert ends(strategy, make) == plain, keywords
        assert inner.reduced_rows
        assert ops.aggregator.state.step == (0 if keywords["compressor"] == "none" else 12)


class Inner(tf.distribute.ReductionToOneDevice):
    """Tells whether rows came."""

    reduced_rows = False

    def batch_reduce_implementation(self, reduce_op, value_destination_pairs, options):
        for value, _ in value_destination_pairs:
            self.reduced_rows |= isinstance(value.values[0], tf.IndexedSlices)
        return super().batch_reduce_implementation(reduce_op, value_destination_pairs, options)


def table_and_kernel():
    return [tf.Variable(tf.ones([5, 3]), name="table"), tf.Variable(tf.ones([8]), name="kernel")]


def rows_and_range(factor=1.0):
    rows = tf.IndexedSlices(factor * tf.ones([2, 3]), tf.constant([4, 4]), tf.constant([5, 3]))
    return [rows, tf.range(8.0)]


class AggregatorTest(tf.test.TestCase):
    def test_alone_dense_lanes_come_back_as_they_are(self):
        grads = rows_and_range()
        totals = grace_tf.Aggregator("none")(grads, table_and_kernel())
        self.assertIs(totals[0], grads[0])
        self.assertIs(totals[1], grads[1])
        rows, _ = grace_tf.Aggregator(**MIXED)(grads, table_and_kernel())
        self.assertAllEqual(rows.values, grads[0].values)
        self.assertAllEqual(rows.indices, [4, 4])
        self.assertAllEqual(rows.dense_shape, [5, 3])

    def test_a_consensus_is_that_of_all_rows(self):
        aggregate = grace_tf.Aggregator("signsgd", min_elements=1)
        total, _ = aggregate(rows_and_range(-1.0), table_and_kernel())
        self.assertAllEqual(total, [[1] * 3] * 4 + [[-1] * 3])

    def test_the_mean_of_two_workers_is_all_their_rows_halved(self):
        keywords = {**MIXED, "compressor": "topk:ratio=1.0"}
        aggregate = grace_tf.Aggregator(**keywords)
        workers = [rows_and_range(1.0), rows_and_range(3.0)]
        replicas = aggregate.aggregate_replicas(
            Loopback(2), workers, table_and_kernel(), [None, None]
        )
        for rows, dense in replicas:
            self.assertAllEqual(rows.values, [[1.0] * 3] * 2 + [[3.0] * 3] * 2)  # summed here
            self.assertAllEqual(rows.indices, [4] * 4)
            self.assertAllClose(dense, 2 * tf.range(8.0))

    def test_a_nan_in_a_row_leaves_state_alone(self):
        variables = table_and_kernel()
        aggregate = grace_tf.Aggregator(**{**MIXED, "memory": "residual", "compressor": "topk"})
        aggregate(rows_and_range(), variables)
        before = aggregate.state.arrays()
        self.assertLen([name for name in before if name.endswith("/memory/residual")], 1)
        for total in aggregate(rows_and_range(np.nan), variables):
            values = total.values if isinstance(total, tf.IndexedSlices) else total
            self.assertTrue(np.isnan(values).all())
        after = aggregate.state.arrays()
        for name, value in before.items():
            self.assertAllEqual(after[name], value)

    def test_workers_must_agree_on_which_gradients_are_rows(self):
        specs = [tf.TensorSpec([5, 3]), tf.TensorSpec([8])]
        plans = [
            make_plan(settings("none"), ["a", "b"], specs, [0, 1], rows)
            for rows in ((), (0,), (1,), (0, 1))
        ]
        self.assertLen({plan.digest for plan in plans}, 4)
        again = make_plan(settings("none"), ["a", "b"], specs, [0, 1], (0,))
        self.assertEqual(again.digest, plans[1].digest)


@pytest.mark.slow
class ProcessesTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        told = launch_once("embeddings.py").succeeded().answers()
        cls.answers = {rank: answers[-1] for rank, answers in enumerate(told)}

    def test_adam_is_fed_the_rows_of_all_workers_in_their_order(self):
        for name, make in OPTIMIZERS.items():
            made, optimizer = embedding(), make()
            step = self.step_by_hand(made, optimizer)
            for batches in zip(zip(*embeddings.data(0)), zip(*embeddings.data(1))):
                step(batches)
            for answer in self.answers.values():
                for key in ("none", "loop") if name == "adam" else (name,):
                    self.assertEqual(answer[key]["sha"], sha(made), key)

    def step_by_hand(self, made, optimizer):
        @tf.function
        def step(batches):
            (table0, *dense0), (table1, *dense1) = (self.gradients(made, *b) for b in batches)
            values = tf.concat([table0.values, table1.values], 0) / 2
            indices = tf.concat([table0.indices, table1.indices], 0)
            indices, where = tf.unique(indices)  # every row once, so that bits are alike
            values = tf.math.unsorted_segment_sum(values, where, tf.size(indices))
            rows = tf.IndexedSlices(values, indices, table0.dense_shape)
            means = [(a + b) / 2 for a, b in zip(dense0, dense1)]
            optimizer.apply_gradients(zip([rows, *means], made.trainable_variables))

        return step

    def gradients(self, made, x, y):
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, made(x, training=True))
        return tape.gradient(loss, made.trainable_variables)

    def test_beside_compressed_lanes_workers_end_with_the_same_bits(self):
        first, second = (answer["mixed"] for answer in self.answers.values())
        self.assertEqual(first["sha"], second["sha"])
        self.assertNotEqual(first["sha"], self.answers[0]["none"]["sha"])
        self.assertEqual([first["step"], second["step"]], [12, 12])
        self.assertNotEqual(first["residuals"], second["residuals"])  # their data differ
        self.assertNotEqual(first["residuals"], 0)

    def test_what_a_step_hands_over_is_told_with_its_padding(self):
        for answer in self.answers.values():
            handed = answer["mixed"]["handed"]
            # One count, and at most 30 rows of an index and 8 values in the smallest gather.
            self.assertEqual(handed[-2:], [["gather", "int32", 4], ["gather", "int32", 4096]])
            counts, told = zip(*answer["rows"]["words"])
            self.assertEqual({*counts}, {len(embeddings.LANES)})
            # The longest messages: none, 45 words, some 3000, more than the largest gather.
            wanted = [1024, 1024, 4096, 2 * SIZES[-1]]
            self.assertAllEqual(told, [n for n in wanted for _ in ("eager", "traced")])

    def test_rows_without_functions(self):
        for answer in self.answers.values():
            self.assertEqual(answer["eager"], [[[1], [3.0]], [[0, 1], [1.0, 1.5]]])

    def test_a_nan_in_a_row_of_one_worker_leaves_state_alone_on_both(self):
        wanted = {"residuals": 1, "untouched": True, "nan": [True, True], "step": 2}
        for answer in self.answers.values():
            self.assertEqual(answer["nan"], wanted)

    def test_rows_of_every_dtype_and_number_come_in_worker_order(self):
        for answer in self.answers.values():
            self.assertEqual(answer["rows"]["same"], [True] * 8)


class StaticRowsTest(tf.test.TestCase):
    def test_static_batches_with_repeated_rows_end_with_the_same_bits(self):
        """Without the sum of repeated rows SGD and Adagrad scatter them in no fixed order."""
        told = launch("static_rows.py").succeeded().out
        self.assertLen(told[0], 2)
        self.assertEqual(*told)
