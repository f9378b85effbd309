"""Saved state goes to the variable of its name, in any order and from files of each format."""

import warnings

import numpy as np
import tensorflow as tf
from state_cases import TOPK, aggregator, gradients, named, residual, stepped

import grace_tf
from grace_tf.aggregation.state.file_format import as_key, from_keys
from grace_tf.aggregation.state.variable_registry import matched


def as_format_1(arrays):
    """The same state as earlier versions wrote it: by ordinal, without a table."""
    names = [name for name in arrays if name.endswith("/memory/residual")]
    old = {f"{i}/memory/residual": arrays[name] for i, name in enumerate(sorted(names))}
    return {**old, "step": arrays["step"], "grace": np.array([1, *arrays["grace"][1:]])}


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
