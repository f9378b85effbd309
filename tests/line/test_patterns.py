"""Patterns of variables, as an Aggregator and a wrapped optimizer take them."""

import tensorflow as tf
from models import compiled, fit
from this_keras import keras

import grace_tf
from grace_tf.keras import aggregator_of


class PathsTest(tf.test.TestCase):
    """Which variables a pattern means, seen by which of them have a residual."""

    def remembered(self, **keywords):
        def named():
            return keras.Sequential(
                [
                    keras.Input((8,)),
                    keras.layers.Dense(8, name="body"),
                    keras.layers.Dense(4, name="head"),
                ]
            )

        made = compiled(
            lambda: grace_tf.wrap(keras.optimizers.SGD(0.1), min_elements=1, **keywords), make=named
        )
        fit(made, 1)
        aggregate = grace_tf.Aggregator(min_elements=1, **keywords)
        variables = made.trainable_variables
        aggregate([tf.ones(v.shape) for v in variables], variables)
        names = [
            {k.removesuffix("/memory/residual") for k in a.state.arrays() if k.endswith("residual")}
            for a in (aggregate, aggregator_of(made.optimizer))
        ]
        self.assertEqual(*names)
        paths = [getattr(v, "path", v.name).removesuffix(":0") for v in variables]
        return [i for i, path in enumerate(paths) if path in names[0]]

    def test_patterns(self):
        # 0 body/kernel, 1 body/bias, 2 head/kernel, 3 head/bias
        self.assertEqual(self.remembered(compressor="topk"), [0, 1, 2, 3])
        self.assertEqual(self.remembered(compressor="topk", exclude=".*bias"), [0, 2])
        self.assertEqual(
            self.remembered(compressor="topk", exclude=[".*head/.*", ".*body/bias"]), [0]
        )
        self.assertEqual(self.remembered(compressor={".*bias": "none", ".*body/.*": "topk"}), [0])
        self.assertEqual(
            self.remembered(compressor={"(sequential[^/]*/)?head/kernel": "topk"}), [2]
        )

    def test_a_built_optimizer_knows_its_paths(self):
        made = compiled(lambda: keras.optimizers.SGD(0.1))
        fit(made, 1)
        grace_tf.wrap(made.optimizer, "topk", exclude=".*kernel", min_elements=1)
        made.compile(made.optimizer, "mse")
        fit(made, 1)
        arrays = aggregator_of(made.optimizer).state.arrays()
        found = sorted(k for k in arrays if k.endswith("residual"))
        self.assertLen(found, 2)
        for name in found:
            self.assertEndsWith(name, "/bias/memory/residual")
