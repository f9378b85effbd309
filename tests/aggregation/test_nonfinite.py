"""A step that is not finite gives NaN to every worker and is said once."""

import logging

import numpy as np
import tensorflow as tf
from replicas import mirrored

import grace_tf
from grace_tf.testing.workers import Workers


class RefusalTest(tf.test.TestCase):
    def bad(self):
        return np.where(np.arange(8) == 3, np.nan, 1.0).astype(np.float32)

    def test_each_worker_says_once_whose_gradient_it_was_and_in_which_step(self):
        workers = Workers(2, "topk:ratio=0.5")
        good = np.ones([8], np.float32)
        with self.assertLogs("grace_tf", logging.WARNING) as said:
            for mine in ([[good], [good]], [[good], [self.bad()]], [[self.bad()], [good]]):
                workers(mine)
        # The two workers of one process share its state, so one of them says it for both.
        self.assertLen(said.output, 1)
        self.assertRegex(said.output[0], r"Worker [01] of 2: in step 1 .* was not finite")

    def test_a_gradient_that_is_not_compressed_refuses_the_whole_step(self):
        for bad, told in enumerate(["its gradient was", "a gradient of another worker"]):
            workers = Workers(2, {"0": "topk:ratio=0.5", ".*": "none"})
            mine = [[tf.ones([8]), tf.ones([8])] for _ in range(2)]
            mine[bad][1] = tf.constant(self.bad())
            with self.assertLogs("grace_tf", logging.WARNING) as said:
                results = workers.step(mine)  # eager: worker 0 is the first to be refused
            self.assertTrue(all(np.isnan(total).all() for own in results for total in own))
            self.assertIn(f"Worker 0 of 2: in step 0 {told}", said.output[0])

    def test_alone_and_under_a_strategy(self):
        for strategy in (tf.distribute.get_strategy(), mirrored(2)):
            with strategy.scope():
                variable = tf.Variable(tf.zeros([8]))
            aggregate = grace_tf.Aggregator("topk:ratio=0.5", min_elements=1)

            @tf.function
            def step(grad, aggregate=aggregate, variable=variable, strategy=strategy):
                return strategy.run(lambda: aggregate([tf.identity(grad)], [variable])[0])

            with self.assertLogs("grace_tf", logging.WARNING) as said:
                for _ in range(3):
                    totals = strategy.experimental_local_results(step(self.bad()))
            self.assertTrue(all(np.isnan(total.numpy()).all() for total in totals))
            self.assertLen(said.output, 1)
            alone = strategy.num_replicas_in_sync == 1
            told = "In step 0 a gradient was" if alone else " of 2: in step 0 its gradient was"
            self.assertIn(f"{told} not finite. The compression leaves", said.output[0])
            self.assertEqual("worker" in said.output[0].lower(), not alone)
            self.assertIn("Later steps like it are not reported.", said.output[0])

    def test_compiled_steps_say_nothing(self):
        variable = tf.Variable(tf.zeros([8]))
        aggregate = grace_tf.Aggregator("fp16", min_elements=1)
        step = tf.function(lambda g: aggregate([g], [variable])[0], jit_compile=True)
        with self.assertNoLogs("grace_tf", logging.WARNING):
            self.assertTrue(np.isnan(step(self.bad()).numpy()).all())
