"""`explain`: what happens to each gradient and why, before the first step and after it."""

import contextlib
import io

import pytest
import tensorflow as tf
from replicas import mirrored
from this_keras import keras

import grace_tf

ROUTES = {".*a/kernel": "topk:ratio=0.1", ".*b/.*": "powersgd", ".*c/.*": "none"}


def model():
    return keras.Sequential(
        [
            keras.Input((64,)),
            *(keras.layers.Dense(n, name=name) for n, name in ((64, "a"), (48, "b"), (40, "c"))),
            keras.layers.Dense(32, name="d"),
        ]
    )


def trained(compressor, **keywords):
    """A compiled model whose optimizer is wrapped and built."""
    made = model()
    optimizer = grace_tf.wrap(keras.optimizers.SGD(0.01), compressor, **keywords)
    made.compile(optimizer, "mse", **{"jit_compile": False})
    optimizer.build(made.trainable_variables)
    return made


def fit(made):
    made.fit(tf.ones([8, 64]), tf.zeros([8, 32]), batch_size=8, verbose=0)


def by_name(explanation):
    rows = explanation.as_dict()["variables"]
    return {"/".join(row["variable"].split("/")[-2:]): row for row in rows}


@pytest.mark.rotated
@pytest.mark.parametrize("method", grace_tf.available())
def test_the_planned_bytes_are_those_of_a_step(method):
    variables = [tf.Variable(tf.zeros(shape)) for shape in ([70, 30], [9], [4000])]
    aggregate = grace_tf.Aggregator(method, variables, min_elements=64)
    planned = grace_tf.explain(aggregate).as_dict()
    assert "plan" in planned["sentence"]
    assert not aggregate.state.variables  # explain makes no state
    aggregate([tf.ones(v.shape) for v in variables], variables)
    taken = grace_tf.explain(aggregate).as_dict()
    assert taken["sentence"] == ""
    assert taken["step"] == planned["step"]
    assert taken["step"]["bytes"] == aggregate.bytes_per_step
    assert taken["variables"] == planned["variables"]
    parts = sum(row["bytes"] for row in taken["variables"])
    assert 0 <= aggregate.bytes_per_step - parts <= 4  # the finite flag


class ExplainTest(tf.test.TestCase):
    def test_it_says_by_variable_what_travels_how_and_why(self):
        made = trained(ROUTES, exclude=".*a/bias")
        rows = by_name(grace_tf.explain(made.optimizer))
        self.assertEqual(rows["a/kernel"]["method"], "topk:ratio=0.1")
        self.assertEqual(rows["a/kernel"]["memory"], "residual")
        self.assertEqual(rows["a/kernel"]["exchange"], "gather")
        self.assertIn(".*a/kernel", rows["a/kernel"]["why"])
        self.assertEqual(rows["b/kernel"]["exchange"], "sum")
        self.assertGreater(rows["b/kernel"]["ratio"], 2)
        self.assertEqual(rows["c/kernel"]["exchange"], "not compressed")
        self.assertEqual(rows["c/kernel"]["bytes"], 4 * 48 * 40)
        self.assertEqual(rows["c/kernel"]["ratio"], 1)
        self.assertIn("min_elements=1024", rows["b/bias"]["why"])
        self.assertIn("no pattern", rows["d/kernel"]["why"])
        made = trained("qsgd", exclude=".*a/kernel", min_elements=1)
        rows = by_name(grace_tf.explain(made.optimizer))
        self.assertIn("exclude='.*a/kernel'", rows["a/kernel"]["why"])
        self.assertEqual(rows["a/bias"]["why"], "every variable")

    def test_before_any_variable_it_says_what_must_happen_first(self):
        explanation = grace_tf.explain(grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd"))
        self.assertEqual(explanation.as_dict()["variables"], [])
        self.assertIn("build the model", str(explanation))

    def test_it_prints_as_a_table(self):
        explanation = grace_tf.explain(trained(ROUTES).optimizer)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            print(explanation)
            explanation.print()
        for text in ("variable", "why", "topk:ratio=0.1", "64×64", "not compressed"):
            self.assertEqual(shown.getvalue().count(text) > 1, True, text)

    def test_under_a_strategy_the_number_of_workers_counts(self):
        with mirrored(4).scope():
            made = trained({".*kernel": "qsgd:bits=4", ".*": "none"}, exchange="two_hop")
        planned = grace_tf.explain(made.optimizer).as_dict()
        self.assertEqual(planned["workers"], 4)
        fit(made)
        taken = grace_tf.explain(made.optimizer).as_dict()
        self.assertEqual(taken["variables"], planned["variables"])
        self.assertEqual(taken["step"], planned["step"])
        rows = {row["variable"].split("/")[-2]: row for row in taken["variables"]}
        self.assertEqual(
            by_name(grace_tf.explain(made.optimizer))["a/kernel"]["exchange"], "two hops"
        )
        self.assertLen(rows, 4)
        self.assertLess(taken["step"]["sent"], taken["step"]["bytes"] * 3)

    def test_of_a_schedule_it_tells_the_stage_that_ran_last(self):
        made = trained("none@0;qsgd@1")
        self.assertIn("Stage 1 of 2", str(grace_tf.explain(made.optimizer)))
        fit(made)
        fit(made)
        explanation = grace_tf.explain(made.optimizer)
        self.assertIn("Stage 2 of 2", str(explanation))
        self.assertEqual(by_name(explanation)["a/kernel"]["method"], "qsgd")

    def test_of_auto_it_tells_the_reason(self):
        made = trained("auto")
        fit(made)
        explanation = grace_tf.explain(made.optimizer)
        self.assertIn("auto: none", explanation.as_dict()["choice"])
        self.assertIn("auto: none", str(explanation))

    def test_rows_have_no_fixed_bytes(self):
        table, dense = tf.Variable(tf.zeros([500, 16])), tf.Variable(tf.zeros([2000]))
        rows = tf.IndexedSlices(tf.ones([3, 16]), tf.constant([1, 5, 9]), tf.constant([500, 16]))
        for method, exchange in (("qsgd", "compressed rows"), ("powersgd", "rows")):
            aggregate = grace_tf.Aggregator(method)
            aggregate([rows, tf.ones([2000])], [table, dense])
            row, other = grace_tf.explain(aggregate).as_dict()["variables"]
            self.assertIsNone(row["bytes"])
            self.assertEqual(row["exchange"], exchange)
            self.assertGreater(other["bytes"], 0)
            self.assertIn("as rows", str(grace_tf.explain(aggregate)))

    def test_the_other_doors_and_what_is_refused(self):
        ops = grace_tf.CompressedAllReduce("qsgd")
        self.assertIn("No variable", grace_tf.explain(ops).sentence)
        with self.assertRaisesRegex(ValueError, "not wrapped"):
            grace_tf.explain(keras.optimizers.SGD(0.1))
        with self.assertRaisesRegex(TypeError, "optimizer"):
            grace_tf.explain("qsgd")
