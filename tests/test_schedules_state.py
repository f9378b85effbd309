"""What is kept over the stages of a schedule, and how it passes through files."""

import warnings

import numpy as np
import tensorflow as tf
from schedule_cases import SPEC, STEPS, gradients_of

import grace_tf
from grace_tf.settings import settings
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

    def test_memories_that_differ_are_kept_apart(self):
        spec = "topk:ratio=0.5@0;topk:ratio=0.1@2"
        self.assertEqual(settings(spec).apart, {"compressor"})
        self.assertEqual(settings("topk@0;qsgd@2").apart, {"compressor"})
        self.assertEmpty(settings("topk").apart)
