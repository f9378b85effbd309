"""A training between workers, of which one has a fault after its third step.

faults.py group|strategy|loop FAULT [WORKER]

`fit` in a process group or under a MultiWorkerMirroredStrategy, or a custom loop in a process
group; the faults are those below, of worker 1 unless it is said otherwise.
"""

import os
import signal
import sys

import tensorflow as tf

ENGINE, FAULT = sys.argv[1:3]
FAULTY = int(sys.argv[3]) if len(sys.argv) > 3 else 1
TIMEOUT = 8
if ENGINE == "strategy":  # before anything else runs
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=TIMEOUT
        )
    )

import numpy as np  # noqa: E402
from this_keras import keras  # noqa: E402

import grace_tf  # noqa: E402

BATCHES = 6
if ENGINE in ("group", "loop"):
    rank = grace_tf.init(timeout=TIMEOUT).rank
    strategy = tf.distribute.get_strategy()
else:
    rank = strategy.cluster_resolver.task_id


def boom():
    raise ValueError("boom")


FAULTS = {
    "SIGKILL": lambda model: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSTOP": lambda model: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": lambda model: boom(),
    "exit": lambda model: sys.exit(0),
    "_exit": lambda model: os._exit(0),
    "stop_training": lambda model: setattr(model, "stop_training", True),
}


class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if rank == FAULTY and batch == 2 and FAULT in FAULTS:
            FAULTS[FAULT](self.model)

    def on_epoch_end(self, epoch, logs=None):
        if rank == FAULTY and FAULT == "stop after an epoch":
            self.model.stop_training = True


def optimizer():
    plain = keras.optimizers.SGD(0.1)
    if FAULT == "unwrapped" and rank == FAULTY:
        return plain
    method = "fp16" if FAULT == "other method" and rank == FAULTY else "qsgd"
    return grace_tf.wrap(plain, method, min_elements=1)


def batches():
    count = 3 if FAULT in ("fewer batches", "fewer unknown") and rank == FAULTY else BATCHES
    draw = np.random.default_rng(0)
    x = draw.normal(size=[BATCHES * 8, 8]).astype(np.float32)[: count * 8]
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :4])).batch(8, drop_remainder=True)
    if FAULT == "fewer unknown":
        data = data.filter(lambda x, y: True)  # its number of batches is not known any more
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return data.with_options(options)


def fit():
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(optimizer(), "mse")
    epochs = 2 if FAULT == "stop after an epoch" else 1
    for _ in range(2):  # where nothing is wrong, workers may end the first at different times
        model.fit(batches(), epochs=epochs, verbose=0, callbacks=[Fault()])


def loop():
    aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
    variable = tf.Variable(tf.zeros([64]))

    @tf.function
    def step():
        variable.assign_sub(aggregate([tf.ones([64])], [variable])[0])

    for i in range(BATCHES):
        step()
        if rank == FAULTY and i == 2:
            FAULTS[FAULT](None)


loop() if ENGINE == "loop" else fit()
print("trained", flush=True)
