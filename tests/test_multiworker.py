"""MultiWorkerMirroredStrategy: two processes end with the bits of two replicas of one process."""

import io
import json
import pathlib
import re
import sys

import keras
import tensorflow as tf
from conftest import mirrored
from models import compiled, data, loop, model, sha

import grace_tf
from grace_tf import launcher

PROGRAM = pathlib.Path(__file__).parent / "programs" / "multiworker.py"


def wrapped(method):
    """As in the program."""
    sgd = keras.optimizers.SGD(0.1, momentum=0.9)
    return grace_tf.wrap(sgd, method, min_elements=1, seed=4)


class MultiWorkerTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        out = io.StringIO()
        command = [sys.executable, "-u", str(PROGRAM)]
        code = launcher.run(command, 2, timeout=280, stdout=out, stderr=out)
        assert code == 0, out.getvalue()[-4000:]
        said = re.findall(r"^\[(\d)\] (\{.*\})$", out.getvalue(), re.MULTILINE)
        cls.workers = [[json.loads(text) for who, text in said if who == rank] for rank in "01"]

    def test_workers_end_with_the_same_bits_as_replicas(self):
        first, second = ([r for r in worker if "custom" in r] for worker in self.workers)
        self.assertLen(first, 5)
        strategy = mirrored(2)
        for one, two in zip(first, second):
            method = one["custom"]
            self.assertEqual(one["sha"], two["sha"], method)
            self.assertEqual(
                [one["workers"], two["workers"]], [[0], [1]] if method != "none" else [[], []]
            )
            with strategy.scope():
                made = model()
                optimizer = wrapped(method)
            loop(made, optimizer, strategy, 10)
            self.assertEqual(one["sha"], sha(made), method)
        self.assertLen({r["sha"] for r in first}, 5)

    def test_fit(self):
        """Under Keras 3 only with the repair (keras-team/keras#20585)."""
        first, second = ([r for r in worker if "fit" in r] for worker in self.workers)
        self.assertEqual(first, second)
        self.assertLen(first, 2)
        self.assertEqual({*first[0]["history"]}, {"loss", "mae", "val_loss", "val_mae"})
        x, y = data(10)
        for result in first:
            made = compiled(lambda of=result["fit"]: wrapped(of), mirrored(2), metrics=["mae"])
            rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(24).repeat()
            history = made.fit(
                rows, steps_per_epoch=10, validation_data=rows, validation_steps=2, verbose=0
            )
            self.assertEqual(result["sha"], sha(made), result["fit"])
            for name, values in history.history.items():
                self.assertAllClose(values, result["history"][name], msg=name)

    def test_a_nan_on_one_worker_leaves_state_alone_on_both(self):
        for worker in self.workers:
            self.assertEqual(worker[-1], {"nan": {"untouched": True, "step": 2, "nan": True}})
