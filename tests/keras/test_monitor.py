"""`Monitor`: what fit's logs, files and warnings show of the compression."""

import csv
import itertools
import logging
import math
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from models import KERAS_3, compiled, fit, loss_scaled, model, sha
from replicas import mirrored
from this_keras import keras

import grace_tf
from grace_tf.aggregation.measured import Metrics
from grace_tf.keras import Monitor, monitor

NAMES = {
    *("grace_bytes", "grace_ratio", "grace_vnmse", "grace_residual", "grace_skipped"),
    *("grace_exchange_ms", "grace_exposed_ms"),
}


def wrapped(method, **keywords):
    return lambda: grace_tf.wrap(
        keras.optimizers.SGD(0.05), method, **{"min_elements": 1, **keywords}
    )


def trained(method, strategy=None, monitors=(), epochs=1, make=model, **keywords):
    made = compiled(wrapped(method, **keywords), strategy, make)
    return made, fit(made, 8, epochs, callbacks=list(monitors))


class Seen(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(dict(logs))


class MonitorTest(tf.test.TestCase):
    def test_logs_have_it_and_weights_stay_the_same_bits(self):
        for strategy in (None, mirrored(2)):
            for method in ("qsgd", "topk:ratio=0.1", "none@0;qsgd@2", "none"):
                plain, _ = trained(method, strategy)
                seen = Seen()
                made, history = trained(method, strategy, [Monitor(every=3), seen])
                self.assertEqual(sha(plain), sha(made), method)
                self.assertContainsSubset(NAMES, set(history.history))
                self.assertContainsSubset(NAMES, set(seen.batches[0]))
                logs = {name: history.history[name][-1] for name in NAMES}
                found = grace_tf.keras.aggregator_of(made.optimizer).metrics()
                self.assertEqual(logs["grace_bytes"], found["sent"] or found["bytes"])
                told = grace_tf.explain(made.optimizer).as_dict()["step"]
                self.assertEqual((found["sent"], found["vnmse"]), (told["sent"], told["vnmse"]))
                self.assertEqual(logs["grace_vnmse"] > 0, method != "none", method)
                self.assertEqual(math.isnan(logs["grace_residual"]), "topk" not in method)

    def test_the_files_of_keras_and_of_tensorboard_have_it(self):
        folder = self.get_temp_dir()
        log = keras.callbacks.CSVLogger(f"{folder}/log.csv")
        made, history = trained("topk:ratio=0.1", None, [Monitor(3, folder), log], epochs=2)
        with open(f"{folder}/log.csv") as file:
            rows = list(csv.DictReader(file))
        self.assertLen(rows, 2)
        self.assertEqual(
            [float(row["grace_vnmse"]) for row in rows], history.history["grace_vnmse"]
        )
        found = {}
        for path in tf.io.gfile.glob(f"{folder}/events*"):
            for event in tf.compat.v1.train.summary_iterator(path):
                for value in event.summary.value:
                    found.setdefault(value.tag, {})[event.step] = tf.make_ndarray(value.tensor)
        steps = [0, 3, 6, 9, 12, 15]
        self.assertContainsSubset(sorted(found["grace/vnmse"]), steps)
        self.assertGreater(len(found["grace/vnmse"]), 2)
        aggregator = grace_tf.keras.aggregator_of(made.optimizer)
        last = found["grace/vnmse"][aggregator.metrics()["step"]]
        np.testing.assert_allclose(last, aggregator.metrics()["vnmse"], rtol=1e-6)
        histograms = [tag for tag in found if tag.startswith("grace/residual/")]
        self.assertLen(histograms, 4)
        self.assertEqual(next(iter(found[histograms[0]].values())).shape, (30, 3))

    def test_a_model_that_has_trained_before_is_measured_too(self):
        made, _ = trained("qsgd")
        history = fit(made, 8, callbacks=[Monitor(every=2)])
        self.assertGreater(history.history["grace_vnmse"][-1], 0)

    def test_the_strategys_own_reduction_is_measured(self):
        ops = grace_tf.CompressedAllReduce("qsgd", min_elements=1)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
        made = compiled(lambda: keras.optimizers.SGD(0.05), strategy)
        history = fit(made, 4, callbacks=[Monitor(every=2)])
        self.assertGreater(history.history["grace_vnmse"][-1], 0)

    def test_skipped_steps_are_shown(self):
        made = compiled(wrapped("qsgd"))
        x = np.ones([96, 8], np.float32)
        x[24:48] = np.nan
        history = made.fit(
            x, np.ones([96, 4]), batch_size=24, shuffle=False, verbose=0, callbacks=[Monitor(1)]
        )
        # The second step is not finite, and so are the weights and all steps behind it.
        self.assertEqual(history.history["grace_skipped"], [0.75])

    def test_steps_that_loss_scaling_skips_are_counted_once(self):
        for strategy in (None, mirrored(2)):
            x = np.ones([96, 8], np.float32)
            x[24:48] = np.nan  # the second step; loss scaling keeps the weights finite

            def scaled():
                return loss_scaled(wrapped("qsgd")(), **({"initial_scale": 2.0} if KERAS_3 else {}))

            made = compiled(scaled, strategy, **({"jit_compile": False} if KERAS_3 else {}))
            history = made.fit(
                *(x, np.ones([96, 4], np.float32)),
                **{"batch_size": 24, "shuffle": False, "verbose": 0, "callbacks": [Monitor(1)]},
            )
            self.assertEqual(history.history["grace_skipped"], [0.25])
            self.assertGreater(history.history["grace_vnmse"][0], 0)

    def test_several_steps_in_one_execution_are_measured(self):
        made = compiled(wrapped("qsgd"), steps_per_execution=4)
        seen = Seen()
        fit(made, 12, callbacks=[Monitor(every=5), seen])
        self.assertLen(seen.batches, 3)
        shown = [each["grace_vnmse"] for each in seen.batches]
        self.assertLen(set(shown), 3)  # steps 0, 5 and 10

    def test_a_model_without_compression_is_refused(self):
        made = compiled(lambda: keras.optimizers.SGD(0.05))
        with self.assertRaisesRegex(ValueError, "wrapped optimizers"):
            fit(made, 2, callbacks=[Monitor()])

    def test_a_residual_without_bound_is_told_once_with_what_to_do(self):
        samples = itertools.count()

        def growing(_):
            n = next(samples)
            return Metrics(bytes=8, sent=0, ratio=2, step=n, residual=100.0 * n)

        with mock.patch.object(monitor, "metrics_of", growing):
            with self.assertLogs("grace_tf", logging.WARNING) as logged:
                trained("topk:ratio=0.5", None, [Monitor(every=1)])
        told = [line for line in logged.output if "still grows" in line]
        self.assertLen(told, 1)
        self.assertIn("a larger ratio", told[0])


@pytest.mark.parametrize("keywords", [{"every": 0}, {"every": "x"}, {"exact": 3}])
def test_bad_keywords_are_refused(keywords):
    with pytest.raises((ValueError, TypeError)):
        made = compiled(wrapped("qsgd"))
        fit(made, 1, callbacks=[Monitor(**keywords)])
