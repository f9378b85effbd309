"""State fits its stage, goes with its variable, and lies on the variable's device."""

import gc
import re
import sys
import warnings
import weakref
from unittest import mock

import numpy as np
import tensorflow as tf
from state_cases import TOPK, aggregator, gradients, named, residual, stepped
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

import grace_tf
from grace_tf.aggregation.consistency import weight_drift
from grace_tf.aggregation.consistency.plan_handshake import OptimizerInfo
from grace_tf.aggregation.state.variable_registry import VariableRegistry
from grace_tf.core import registry
from grace_tf.line.settings import settings


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


class Heir:
    """Hears which ordinals are gone."""

    def __init__(self):
        self.gone = []

    def hear(self, ordinal):
        self.gone.append(ordinal)


class ComparedGroup:
    """Stands for a group whose other workers say the same."""

    size, broadcasts, rank = 2, False, 0

    def __init__(self):
        self.first_keys = []

    def handshake(self, words, purpose):
        if "comparison" in purpose:
            self.first_keys.append(words[5])
        return np.array([words, words], np.int64)


def kept(aggregate):
    """How many things lie in the containers of grace_tf's modules and of an Aggregator's parts."""
    modules = [m for name, m in sys.modules.items() if name.split(".")[0] == "grace_tf"]
    parts = [p for p in vars(aggregate).values() if type(p).__module__.startswith("grace_tf")]
    sizes = {
        id(held): len(held)
        for holder in [*modules, aggregate, *parts]
        for held in vars(holder).values()
        if isinstance(held, (dict, list, set, weakref.WeakSet, weakref.WeakValueDictionary))
    }
    return sum(sizes.values())


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

    def test_what_is_kept_of_fifty_models_that_were_compared(self):
        """As between processes: plans with keys, agreement, and comparisons as training goes on."""
        aggregate, group = aggregator(), ComparedGroup()
        levels = []
        for i in range(50):
            model = [tf.Variable(tf.zeros([30, 20])), tf.Variable(tf.zeros([20]))]
            aggregate.join(model)
            plan = aggregate._plan([tf.ones(v.shape) for v in model], model, group)
            aggregate.agree(group, model, OptimizerInfo, late=False)
            with mock.patch.object(weight_drift.lifeline, "current", lambda: group):
                weight_drift.watch(plan, model, OptimizerInfo)
            if i == 0:
                self.assertLen(aggregate._initial_values._agreed, 2)
            del model, plan
            if i in (1, 24, 49):
                gc.collect()
                levels.append(kept(aggregate))
        self.assertEqual(levels, [levels[0]] * 3)
        weight_drift._last.clear()  # these are held, to be compared when the process ends
        gc.collect()
        self.assertEmpty(aggregate._initial_values._agreed)
        self.assertEmpty(weight_drift._watched)
        # Every plan was compared, and none had the keys of one that is gone.
        self.assertLen(set(group.first_keys), 50)

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
        heir = Heir()
        joined = VariableRegistry(heir.hear)
        for ordinal in range(3):
            variable = tf.Variable(0.0, name="w")
            joined.add([variable])
            self.assertEqual(joined.ordinals([variable]), (ordinal,))
            self.assertEqual(joined.name(ordinal), "w")
            del variable
            gc.collect()
        self.assertEqual(heir.gone, [0, 1, 2])
        self.assertEqual(joined.table, {})
        self.assertEqual(joined._taken, [range(3)])  # one run, however many

    def test_ordinals_of_a_file_are_given_once(self):
        heir = Heir()
        joined = VariableRegistry(heir.hear)
        joined.expect({name: (i, (4,)) for name, i in (("a", 5), ("b", 2), ("c", 5))})
        variables = {name: tf.Variable(tf.zeros([4]), name=name) for name in "abcd"}
        joined.add(variables.values())
        # What the file gives first; then on beyond the highest.
        self.assertEqual(joined.ordinals(variables.values()), (5, 2, 6, 7))
        again = tf.Variable(tf.zeros([4]), name="b")
        del variables["b"]
        gc.collect()
        joined.add([again])
        self.assertEqual(joined.ordinals([again]), (8,))


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
