"""A worker that trains with a schedule; prints a line of JSON.

scheduled.py group      one plain process per worker: what an Aggregator gives, eagerly and traced
scheduled.py strategy   MultiWorkerMirroredStrategy: the weights after a custom loop
"""

import json
import logging
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import tensorflow as tf  # noqa: E402

strategy = None
if sys.argv[1] == "strategy":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs

import models  # noqa: E402
from digests import digest  # noqa: E402
from schedule_cases import MIXED, SPEC, STEPS, gradients_of  # noqa: E402
from this_keras import keras  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.keras import aggregator_of  # noqa: E402


class Said(logging.Handler):
    """Keeps what was logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def aggregated(traced):
    """Digests of the aggregates of every step, and the bytes of each."""
    variables = [tf.Variable(tf.zeros([12, 10]), name=f"v{traced}")]
    aggregate = grace_tf.Aggregator(SPEC, min_elements=1, seed=4)
    step = tf.function(lambda *grads: aggregate(grads, variables), autograph=False)
    step = step if traced else lambda *grads: aggregate(grads, variables)
    bits, nbytes = [], []
    for i in range(STEPS):
        (total,) = step(*gradients_of(i, grace_tf.rank()))
        bits.append(digest([total]))
        nbytes.append(aggregate.bytes_per_step)
    return {"bits": bits, "bytes": nbytes, "step": aggregate.state.step}


def looped(make, loop, spec):
    """The weights and the last stage's bytes after a loop of ten steps."""
    with strategy.scope():
        made = make()
        sgd = keras.optimizers.SGD(0.1, momentum=0.9)
        chosen = grace_tf.wrap(sgd, spec, min_elements=1, seed=4)
    loop(made, chosen, strategy, 10)
    aggregator = aggregator_of(chosen)
    return {"sha": models.sha(made), "bytes": aggregator.bytes_per_step}


def main():
    said = Said()
    logging.getLogger("grace_tf").addHandler(said)
    logging.getLogger("grace_tf").setLevel(logging.INFO)
    if strategy is None:
        grace_tf.init()
        told = {"eager": aggregated(False), "traced": aggregated(True)}
    else:
        told = {
            "model": looped(models.model, models.loop, SPEC),
            "rows": looped(models.embedding, models.embedding_loop, MIXED),
        }
    print(json.dumps({**told, "said": said.lines}))


main()
