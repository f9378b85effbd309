"""State is found by what made it, wherever it comes from, and goes with its variable."""

import gc
import re
import warnings
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

import grace_tf
from grace_tf.core import registry
from grace_tf.joined import Joined, matched
from grace_tf.saved import as_key, from_keys
from grace_tf.settings import settings

TOPK = "topk:ratio=0.2"


def named(*names, shape=(10,)):
    return {name: tf.Variable(tf.zeros(shape), name=name) for name in names}


def gradients(variables, seed=0):
    """The same for a variable of the same name, in whatever order they come."""
    return [
        tf.constant(np.random.default_rng([seed, ord(v.name[0])]).normal(size=v.shape), tf.float32)
        for v in variables
    ]


def aggregator(compressor=TOPK, **keywords):
    return grace_tf.Aggregator(compressor, min_elements=1, **keywords)


def stepped(aggregate, variables, steps=2, seed=0):
    for step in range(steps):
        out = aggregate(gradients(variables, seed + step), variables)
    return {v.name: total.numpy() for v, total in zip(variables, out)}


def residual(aggregate, name):
    return aggregate.state.arrays()[f"{name}/memory/residual"][0]


def as_format_1(arrays):
    """The same state as earlier versions wrote it: by ordinal, without a table."""
    names = [name for name in arrays if name.endswith("/memory/residual")]
    old = {f"{i}/memory/residual": arrays[name] for i, name in enumerate(sorted(names))}
    return {**old, "step": arrays["step"], "grace": np.array([1, *arrays["grace"][1:]])}


class KeptWhole(grace_tf.Compressor):
    """Sends everything and keeps as much."""

    def init_state(self, spec, ctx):
        return {"seen": tf.zeros(spec.shape)}

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.float32)}

    def compress(self, x, ctx):
        return {"values": tf.reshape(x, [-1])}

    def decompress(self, payload, ctx):
        return tf.reshape(payload["values"], ctx.spec.shape)


class OrderTest(tf.test.TestCase):
    """[b, a] instead of [a, b], of equal shapes."""

    def by(self, way, first, other):
        """Passes the state of `first` on to `other`."""
        if way == "arrays":
            other.state.restore(first.state.arrays())
        elif way == "keys":
            stored = {as_key(name): rows for name, rows in first.state.arrays().items()}
            self.assertFalse([key for key in stored if "/" in key])
            other.state.restore(from_keys(stored))
        else:
            path = tf.train.Checkpoint(a=first).save(self.get_temp_dir() + "/c")
            return tf.train.Checkpoint(a=other).restore(path)

    def test_each_gets_its_own_in_another_order(self):
        # qsgd and randomk draw by the ordinal: that comes along to variables of no plan yet.
        for compressor, used in ((TOPK, True), ("powersgd:rank=1", True), ("qsgd", False)):
            for way in ("arrays", "keys", "checkpoint"):
                with self.subTest(f"{compressor}, {way}"):
                    then, now = (named("a", "b", shape=(5, 4)) for _ in range(2))
                    first, other = aggregator(compressor), aggregator(compressor)
                    stepped(first, [then["a"], then["b"]])
                    other.join([now["b"], now["a"]])
                    if used:
                        stepped(other, [now["b"], now["a"]], 1, seed=7)
                    status = self.by(way, first, other)
                    wanted = stepped(first, [then["a"], then["b"]], 1, seed=3)
                    found = stepped(other, [now["b"], now["a"]], 1, seed=3)
                    self.assertEqual(found.keys(), wanted.keys())
                    for name, total in wanted.items():
                        self.assertAllEqual(found[name], total, name)
                    if status is not None:
                        status.assert_existing_objects_matched().assert_consumed()

    def test_a_variable_that_joins_after_the_file_was_read_finds_its_state(self):
        then, now = named("a", "b"), named("a", "b")
        first, other = aggregator(), aggregator()
        stepped(first, list(then.values()))
        other.state.restore(first.state.arrays())
        other([gradients([now["b"]])[0] * np.nan], [now["b"]])  # makes state, keeps it as it is
        self.assertAllEqual(residual(other, "b"), residual(first, "b"))
        # What has not come yet is still there, under its name.
        self.assertAllEqual(residual(other, "a"), residual(first, "a"))
        other([gradients([now["a"]])[0] * np.nan], [now["a"]])
        self.assertAllEqual(residual(other, "a"), residual(first, "a"))

    def test_equal_names_are_told_apart_by_the_order_of_joining(self):
        aggregate = aggregator()
        same = [tf.Variable(tf.zeros([10]), name="w") for _ in range(3)]
        aggregate([tf.range(10.0) * (i + 1) for i in range(3)], same)
        for i, name in enumerate(("w", "w~1", "w~2")):
            self.assertAllEqual(residual(aggregate, name)[1], i + 1.0)

    def test_names_that_keras_counted_further_are_matched_by_their_order(self):
        shapes = {"dense/kernel": (3, 4), "dense/bias": (4,)}
        later = {"dense_1/kernel": (3, 4), "dense_1/bias": (4,)}
        self.assertEqual(
            matched(later, shapes), {"dense_1/kernel": "dense/kernel", "dense_1/bias": "dense/bias"}
        )
        # dense_1 is in both, but not the same layer.
        then = {"dense": (4,), "dense_1": (4,)}
        now = {"dense_1": (4,), "dense_2": (4,)}
        self.assertEqual(matched(now, then), {"dense_1": "dense", "dense_2": "dense_1"})
        self.assertEqual(
            matched({"b": (4,), "a": (4,)}, {"a": (4,), "b": (4,)}), dict(a="a", b="b")
        )
        # A part of the model, and one with a new head: by name.
        self.assertEqual(matched({"dense_1": (4,)}, then), {"dense_1": "dense_1"})
        self.assertEqual(matched({"dense": (4,), "head": (2,)}, then), {"dense": "dense"})

    def test_a_variable_that_the_file_does_not_know_is_told(self):
        then, now = named("a", "b"), named("a", "c", "d")
        first, other = aggregator(), aggregator()
        stepped(first, list(then.values()))
        other.state.restore(first.state.arrays())
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            other([gradients([v])[0] * np.nan for v in now.values()], list(now.values()))
        self.assertAllEqual(residual(other, "a"), residual(first, "a"))
        self.assertAllEqual(residual(other, "c"), np.zeros(10))
        told = [str(w.message) for w in said if "restored state" in str(w.message)]
        self.assertLen(told, 1)
        self.assertRegex(told[0], "knows no variable [cd]: ")

    def test_a_part_of_a_path_may_be_called_compressor(self):
        then = named("compressor/memory")
        first = aggregator()
        first.aggregate_replicas(
            grace_tf.transports.loopback.Loopback(2),
            [[tf.range(10.0)], [-tf.range(10.0)]],
            list(then.values()),
            [None, None],
        )
        self.assertLen(first.state.alike_variables, 1)  # the step
        other = aggregator()
        other.state.restore(first.state.arrays())
        now = named("compressor/memory")
        other([tf.zeros(10) * np.nan], list(now.values()))
        self.assertAllEqual(residual(other, "compressor/memory"), np.zeros(10))  # their mean


class Format1Test(tf.test.TestCase):
    """Files of versions that knew variables by their ordinals."""

    def test_arrays(self):
        then = named("a", "b")
        first = aggregator()
        stepped(first, list(then.values()))
        old = as_format_1(first.state.arrays())
        keys = {name.replace("/", "."): rows for name, rows in old.items()}
        self.assertEqual(from_keys(keys).keys(), old.keys())
        for used in (False, True):
            now, other = named("x", "y"), aggregator()
            if used:
                stepped(other, list(now.values()), 1)
            other.state.restore(old)
            if not used:
                again = other.state.arrays()  # saved before the first step, it stays what it is
                self.assertEqual(again.keys(), old.keys())
                self.assertEqual(again["grace"][0], 1)
                other([tf.zeros(10) * np.nan], [now["x"]])
                other.join([now["y"]])
                other([tf.zeros(10) * np.nan], [now["y"]])
            self.assertAllEqual(residual(other, "x"), residual(first, "a"))
            self.assertAllEqual(residual(other, "y"), residual(first, "b"))
            self.assertEqual(other.state.step, 2)

    def test_checkpoints(self):
        then = named("a", "b")
        first = aggregator()
        stepped(first, list(then.values()))

        # As earlier versions had it: leaves called 0.memory.residual, and no table.
        leaves = {f"{i}.memory.residual": f"{name}/memory/residual" for i, name in enumerate("ab")}
        old = tf.train.Checkpoint()
        for child, stem in {**leaves, "step": "step"}.items():
            old._track_trackable(first.state._leaves[stem], child)
        path = tf.train.Checkpoint(a=tf.train.Checkpoint(state=old)).save(self.get_temp_dir())
        for used in (False, True):
            now, other = named("x", "y"), aggregator()
            if used:
                stepped(other, list(now.values()), 1)
            tf.train.Checkpoint(a=other).restore(path)
            other([tf.zeros(10) * np.nan] * 2, list(now.values()))
            self.assertAllEqual(residual(other, "x"), residual(first, "a"))
            self.assertAllEqual(residual(other, "y"), residual(first, "b"))
            self.assertEqual(other.state.step, 2)

    def test_an_unknown_format_is_refused(self):
        with self.assertRaisesRegex(ValueError, "has the format 3; this version reads 1 and 2"):
            aggregator().state.restore({"grace": np.array([3, 1, 0])})


class StageTest(tf.test.TestCase):
    """Other settings for the same variables."""

    def test_what_fits_is_kept_and_the_rest_starts_anew(self):
        variables = [tf.Variable(tf.zeros([8, 6]), name="w")]
        grads = [tf.constant(np.random.default_rng(0).normal(size=[8, 6]), tf.float32)]
        aggregate = aggregator("powersgd:rank=1")
        aggregate(grads, variables)
        kept = residual(aggregate, "w")
        (leaf,) = [n for n in aggregate.state.arrays() if "/compressor/" in n]
        q = aggregate.state.arrays()[leaf]
        self.assertTrue(np.any(kept))

        aggregate.settings = settings("powersgd:rank=2", min_elements=1)
        (total,) = aggregate(grads, variables)
        self.assertEqual(aggregate.state.arrays()[leaf].shape[-1], 2)
        # The residual went into the step: nothing was lost.
        self.assertAllClose(total + residual(aggregate, "w"), grads[0] + kept, rtol=1e-5, atol=1e-6)

        kept = residual(aggregate, "w")
        aggregate.settings = settings("topk:ratio=0.1", min_elements=1)
        (total,) = aggregate(grads, variables)
        self.assertEqual(np.count_nonzero(total), int(0.1 * 48))
        self.assertAllClose(total + residual(aggregate, "w"), grads[0] + kept, rtol=1e-5, atol=1e-6)
        self.assertEqual(aggregate.state.step, 3)

        aggregate.settings = settings("powersgd:rank=1", min_elements=1)
        aggregate(grads, variables)
        self.assertEqual(aggregate.state.arrays()[leaf].shape, q.shape)

    def test_files_of_other_hyperparameters_give_what_fits(self):
        variables = list(named("w", shape=(8, 6)).values())
        first, other = aggregator("powersgd:rank=1"), aggregator("powersgd:rank=2")
        stepped(first, variables)
        stepped(other, variables, 1)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            other.state.restore(first.state.arrays())
        self.assertAllEqual(residual(other, "w"), residual(first, "w"))
        self.assertLen([w for w in said if "other hyperparameters" in str(w.message)], 1)
        # A stage that fits comes later, and finds it.
        other.settings = first.settings
        other([tf.zeros([8, 6]) * np.nan], variables)
        (leaf,) = [n for n in first.state.arrays() if "/compressor/" in n]
        self.assertAllEqual(other.state.arrays()[leaf], first.state.arrays()[leaf])

    def test_a_leaf_of_another_method_is_not_taken(self):
        variables = list(named("w").values())
        first, other = aggregator(), aggregator()
        stepped(first, variables)
        arrays = first.state.arrays()
        text = arrays["grace/table"].tobytes().decode()
        swapped = re.sub(
            '"residual"}', '"momentum"}', text.replace('": "residual"', '": "momentum"')
        )
        self.assertNotEqual(swapped, text)
        arrays["grace/table"] = np.frombuffer(swapped.encode(), np.uint8)
        other.state.restore(arrays)
        other([tf.zeros(10) * np.nan], variables)
        self.assertAllEqual(residual(other, "w"), np.zeros(10))

    def test_merged_variables_have_a_state_for_each_set_of_them(self):
        with mock.patch.dict(registry._COMPRESSORS):
            kept = settings(
                grace_tf.register("kept_whole")(KeptWhole)(), granularity="model", min_elements=1
            )
        aggregate, other = grace_tf.Aggregator(kept), grace_tf.Aggregator(kept)
        a, b = named("a", "b").values()
        for variables in ([a, b], [b], [a, b]):
            aggregate(gradients(variables), variables)
        leaves = [name for name in aggregate.state.arrays() if "/compressor/" in name]
        self.assertEqual(
            [aggregate.state.arrays()[name].shape for name in leaves], [(1, 20), (1, 10)]
        )
        for leaf in aggregate.state._leaves.values():
            leaf.variables[0].assign(tf.ones_like(leaf.variables[0]))
        other.state.restore(aggregate.state.arrays())
        for variables in ([a, b], [b]):
            other([g * np.nan for g in gradients(variables)], variables)
        for name in leaves:
            self.assertAllEqual(other.state.arrays()[name], aggregate.state.arrays()[name], name)
        del a, variables
        gc.collect()
        self.assertEqual([n for n in other.state.arrays() if "/compressor/" in n], leaves[1:])


class LifeTest(tf.test.TestCase):
    """A variable that is gone takes its state, plan and mark with it."""

    def alive(self):
        gc.collect()
        found = [v for v in gc.get_objects() if issubclass(type(v), ResourceVariable)]
        return sum(v.shape.num_elements() for v in found)

    def levels(self, use):
        """Elements of living variables after so many of 50 models were made, used and dropped."""
        levels = []
        for i in range(50):
            model = [tf.Variable(tf.zeros([30, 20])), tf.Variable(tf.zeros([20]))]
            use([tf.ones(v.shape) for v in model], model)
            del model
            if i in (0, 1, 24, 49):
                levels.append(self.alive())
        return levels

    def test_an_aggregator_that_fifty_models_share(self):
        aggregate = aggregator()
        levels = self.levels(aggregate)
        self.assertEqual(levels[-1], levels[0])
        self.assertLen(aggregate.state.variables, 1)  # the step
        self.assertEmpty(aggregate._plans._plans)
        self.assertEqual(aggregate.state.step, 50)

    def test_an_aggregator_in_functions(self):
        aggregate = aggregator("powersgd:rank=1")

        def use(grads, model):
            function = tf.function(lambda *grads: aggregate(grads, model))
            function(*grads)

        levels = self.levels(use)
        self.assertEqual(levels[-1], levels[0])

    def test_all_reduce(self):
        def use(grads, model):
            grace_tf.all_reduce(grads, model, TOPK, min_elements=1)

        levels = self.levels(use)
        self.assertEqual(levels[-1], levels[0])

    def test_all_reduce_with_one_variable_that_stays(self):
        stays = tf.Variable(tf.zeros([40]))

        def use(grads, model):
            grads, model = [tf.ones(40), *grads], [stays, *model]
            grace_tf.all_reduce(grads, model, TOPK, min_elements=1)

        levels = self.levels(use)
        self.assertEqual(levels[-1], levels[1])
        self.assertLen(stays._grace_aggregators, 1)

    def test_an_aggregator_is_freed_without_the_collector(self):
        before = self.alive()
        gc.disable()
        try:
            variables = [tf.Variable(tf.zeros([10]))]
            aggregate = aggregator()
            aggregate([tf.ones(10)], variables)
            del aggregate, variables
            left = [v for v in gc.get_objects() if issubclass(type(v), ResourceVariable)]
            self.assertEqual(sum(v.shape.num_elements() for v in left), before)
        finally:
            gc.enable()

    def test_a_name_is_free_again_and_an_ordinal_is_not(self):
        gone = []

        class Heir:
            def hear(self, ordinal):
                gone.append(ordinal)

        heir = Heir()
        joined = Joined(heir.hear)
        for ordinal in range(3):
            variable = tf.Variable(0.0, name="w")
            joined.add([variable])
            self.assertEqual(joined.ordinals([variable]), (ordinal,))
            self.assertEqual(joined.name(ordinal), "w")
            del variable
            gc.collect()
        self.assertEqual(gone, [0, 1, 2])
        self.assertEqual(joined.table, {})


class DeviceTest(tf.test.TestCase):
    def test_state_lies_where_its_variable_does(self):
        variables = []
        for i in (1, 0):
            with tf.device(f"/CPU:{i}"):
                variables.append(tf.Variable(tf.zeros([8, 4]), name=f"on_{i}"))
        aggregate = aggregator("powersgd:rank=1")
        aggregate([tf.ones([8, 4])] * 2, variables)
        found = {
            stem: leaf.variables[0].device[-5:] for stem, leaf in aggregate.state._leaves.items()
        }
        found.pop("step")
        self.assertLen(found, 4)
        for stem, device in found.items():
            self.assertEqual(device, "CPU:" + stem[3], stem)
