"""A worker whose training with "auto" is saved while its choice is watched, and goes on from there.

resumes_choice.py FOLDER     two plain processes; prints both ends of the training: what was taken
in each step, a digest of the weights, and how often the network was measured

What a step takes is simulated, so the choice does not depend on the machine.
"""

import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import tensorflow as tf  # noqa: E402
from digests import digest  # noqa: E402
from schedule_cases import gradients_of  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.aggregation.choice import foresight  # noqa: E402
from grace_tf.aggregation.choice.pruning import Foreseen  # noqa: E402

SHAPE, SAVED, END = (48, 40), 60, 130
# Of none, bf16, qsgd:bits=8, eden, eden:bits=5, qsgd and powersgd.
SECONDS = (0.9, 0.37, 0.4, 0.35, 0.41, 0.45, 0.3)


class Training:
    """One Aggregator with its variable, on a clock that its own steps move on."""

    def __init__(self):
        self.variable = tf.Variable(tf.zeros(SHAPE), name="v")
        self.aggregate = grace_tf.Aggregator("auto:quality=balanced", min_elements=1)
        self.saved = tf.train.Checkpoint(aggregate=self.aggregate, variable=self.variable)
        self.arms, self._now = [], 0.0
        self.tuner = self.aggregate._stages.tuner
        self.tuner._clock, self._next = lambda: self._now, self.tuner._next
        self.tuner._next = self._timed
        self._step = tf.function(self._eager, autograph=False)

    def _timed(self, *words):
        arm, measured, saved = self._next(*words)
        self._now += SECONDS[int(arm)]
        self.arms.append(int(arm))
        return arm, measured, saved

    def _eager(self, gradient):
        self.variable.assign_sub(self.aggregate([gradient], [self.variable])[0])

    def take(self, first, end):
        for i in range(first, end):
            (gradient,) = gradients_of(i, grace_tf.rank(), SHAPE)
            self._step(gradient)

    def told(self):
        return {
            "arms": self.arms[SAVED - END :],
            "bits": digest([self.variable.read_value()]),
            "measured": self.tuner._foresight.measured,
            "held": list(self.tuner._traced),
            "reason": self.tuner.reason,
        }


grace_tf.init()
seen = {arm: Foreseen(round(1e6 * seconds), 0, 0) for arm, seconds in enumerate(SECONDS)}
foresight.foresee = lambda *_: seen
path = f"{sys.argv[1]}/{grace_tf.rank()}"
whole = Training()
whole.take(0, SAVED)
written = whole.saved.write(path)
whole.take(SAVED, END)
print(json.dumps(whole.told()), flush=True)

resumed = Training()
resumed.saved.restore(written)
resumed.take(SAVED, END)
print(json.dumps(resumed.told()), flush=True)
