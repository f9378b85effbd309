"""What is kept over the stages of a schedule, and how it passes through files."""

import warnings

import numpy as np
import tensorflow as tf
from schedule_cases import SPEC, STEPS, gradients_of

import grace_tf
from grace_tf.line.settings import settings
from grace_tf.testing.workers import Workers

WAYS = ("arrays", "arrays, after", "checkpoint", "checkpoint, after")


class Trained:
    """An Aggregator of one variable, which takes steps eagerly or traced."""

    def __init__(self, traced, spec=SPEC, **keywords):
        self.variables = [tf.Variable(tf.zeros([12, 10]), name="v")]
        self.aggregate = grace_tf.Aggregator(spec, min_elements=1, seed=4, **keywords)
        own = lambda *grads: self.aggregate(grads, self.variables)  # noqa: E731
        self.step = tf.function(own, autograph=False) if traced else own

    def take(self, start, end):
        return [self.step(*gradients_of(i))[0].numpy() for i in range(start, end)]

    @property
    def arrays(self):
        return self.aggregate.state.arrays()


class FilesTest(tf.test.TestCase):
    def passed(self, old, new, through):
        """Lets `new` take in the state of `old`, before its first step or after one."""
        if through.endswith("after"):
            new.take(0, 1)
        if through.startswith("arrays"):
            new.aggregate.state.restore(old.arrays)
            return
        path = tf.train.Checkpoint(a=old.aggregate).save(self.get_temp_dir() + "/c")
        tf.train.Checkpoint(a=new.aggregate).restore(path)

    def test_training_goes_on_from_any_step(self):
        """Before a boundary, at one, after one; of a stage that the old one had not reached."""
        for traced in (False, True):
            wanted = Trained(traced).take(0, STEPS)
            for cut in (1, 2, 5, 6):
                for through in WAYS:
                    old, new = Trained(traced), Trained(not traced)
                    old.take(0, cut)
                    with warnings.catch_warnings():
                        warnings.simplefilter("error")
                        self.passed(old, new, through)
                        found = new.take(cut, STEPS)
                    self.assertAllEqual(found, wanted[cut:], f"{traced} {cut} {through}")

    def test_of_all_variables_as_one(self):
        wanted = Trained(True, granularity="model").take(0, STEPS)
        old, new = Trained(True, granularity="model"), Trained(False, granularity="model")
        old.take(0, 5)
        self.passed(old, new, "arrays")
        self.assertAllEqual(new.take(5, STEPS), wanted[5:])

    def test_back_to_an_earlier_stage(self):
        trained = Trained(True)
        wanted = trained.take(0, 5)
        arrays = trained.arrays
        later = trained.take(5, STEPS)
        trained.aggregate.state.restore(arrays)
        self.assertAllEqual(trained.take(5, STEPS), later)
        self.assertEqual(trained.aggregate.state.step, STEPS)
        self.assertLen(wanted, 5)

    def test_stages_of_other_shapes_have_leaves_of_their_own(self):
        trained = Trained(False)
        trained.take(0, 4)
        first = trained.arrays["v/compressor/q@powersgd-float32-10x1"]
        self.assertEqual(first.shape, (1, 10, 1))
        trained.take(4, 6)
        self.assertAllEqual(trained.arrays["v/compressor/q@powersgd-float32-10x1"], first)
        self.assertEqual(trained.arrays["v/compressor/q@powersgd-float32-10x2"].shape, (1, 10, 2))
        self.assertLen([name for name in trained.arrays if "/memory/" in name], 1)

    def test_with_and_without_a_schedule(self):
        """The state of a method serves the stage that fits, and the other way round."""
        plain = Trained(False, "powersgd:rank=2")
        plain.take(0, 4)
        wanted = plain.arrays
        scheduled = Trained(False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scheduled.aggregate.state.restore(wanted)
            scheduled.step(tf.fill([12, 10], np.nan))
            again = Trained(False, "powersgd:rank=2")
            again.aggregate.state.restore(scheduled.arrays)
            again.step(tf.fill([12, 10], np.nan))
        found = scheduled.arrays
        self.assertAllEqual(found["v/compressor/q@powersgd-float32-10x2"], wanted["v/compressor/q"])
        for name in ("v/compressor/q", "v/memory/residual", "step"):
            self.assertAllEqual(again.arrays[name], wanted[name], name)

    def test_another_number_of_workers(self):
        spec = "topk:ratio=0.5@0/0.1@2"
        old, new = Workers(3, spec), Workers(2, spec)
        for i in range(3):
            old([gradients_of(i, w) for w in range(3)])
        new.state.restore(old.state.arrays())
        (total,), _ = new([[tf.zeros([12, 10])] for _ in range(2)])
        kept = old.state.arrays()["0/memory/residual"].mean(0)
        left = new.state.arrays()["0/memory/residual"].mean(0)
        self.assertAllClose(total + left, kept, atol=1e-6)
        self.assertEqual(np.count_nonzero(total), 12)

    def test_what_rows_have_kept_leaves_in_stages_that_do_not_compress_them(self):
        for spec, unspent in (
            ("efsignsgd@0;randomk@3", 0),
            ("efsignsgd@0;none@3;randomk@5", 0),
            ("randomk@0;efsignsgd@1;powersgd@3", 0),
            ("randomk@0;none@3", None),
            ("none@0;randomk:ratio=0.5@1;none@3", None),
            ("topk@0;none@3", 0),
            ("none@0;efsignsgd@1;topk@2;randomk@4", 0),
            ("u8bit@0;none@3", None),
        ):
            dtype = "int8" if "u8bit" in spec else "float32"
            keywords = {"memory": f"residual:dtype={dtype}"}
            trained = Trained(False, spec, **keywords)
            given = got = 0.0
            for step in range(6):
                (grad,) = gradients_of(step)
                touched = tf.range(12) if step == 5 else tf.constant([1, 4, 4, 7])
                rows = tf.IndexedSlices(tf.gather(grad, touched), touched, [12, 10])
                total = trained.step(rows)[0]
                self.assertIsInstance(total, tf.IndexedSlices)
                given = given + tf.convert_to_tensor(rows)
                got = got + tf.convert_to_tensor(total)
            self.assertAllClose(got, given, atol=1e-5, msg=spec)
            kept = [value for name, value in trained.arrays.items() if "/memory/" in name]
            self.assertLen(kept, 0 if unspent is None else 1, spec)
            for value in kept:
                self.assertAllEqual(value, np.zeros([1, 12, 10]), spec)

    def test_what_a_stage_has_kept_leaves_where_the_next_one_wants_it_not(self):
        trained = Trained(False, "topk:ratio=0.1@0;sketch:quantiles=256@2")
        got = sum(trained.take(0, 3))
        self.assertAllClose(got, sum(gradients_of(i)[0] for i in range(3)), atol=1e-5)

    def test_memories_that_differ_are_kept_apart(self):
        spec = "topk:ratio=0.5@0;topk:ratio=0.1@2"
        self.assertEqual(settings(spec).apart, {"compressor"})
        self.assertEqual(settings("topk@0;qsgd@2").apart, {"compressor"})
        self.assertEmpty(settings("topk").apart)
