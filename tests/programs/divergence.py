"""Two workers that train alike until something changes on worker 1 alone.

divergence.py group|strategy rate|bits    `fit`: a callback sets another rate in epoch 2, or changes
                                          a weight in epoch 2
divergence.py group|strategy last|end     `fit`: a callback changes a weight in the last
                                          on_epoch_end, or in on_train_end
divergence.py group|strategy batches      `train_on_batch`: another rate after 3 steps
divergence.py loop|eager bits|late|none   a custom loop of 12 steps: a weight changes after 5 steps,
                                          after the last one, or never
"""

import sys

import tensorflow as tf

EPOCHS = 4
ENGINE, FAULT = [*sys.argv[1:], "bits"][:2]
if ENGINE == "strategy":  # before anything else runs
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(timeout_seconds=30)
    )

import numpy as np  # noqa: E402
from this_keras import keras  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.line.inputs import local, plain  # noqa: E402

if ENGINE == "strategy":
    rank = strategy.cluster_resolver.task_id
else:
    rank = grace_tf.init(timeout=30).rank
    strategy = tf.distribute.get_strategy()


def flip(variable):
    """Changes a bit of a weight here; not the lowest, which a later step may round off."""
    held = local(plain(variable))
    value = held.numpy()
    value.reshape(-1)[:1].view(np.int32)[:] ^= 1 << 20
    held.assign(value)


class Fault(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch + 1}", flush=True)
        if FAULT == "last" and epoch == EPOCHS - 1:
            self.flip()

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1 and batch == 1 and FAULT == "bits":
            self.flip()

    def on_train_end(self, logs=None):
        if FAULT == "end":
            self.flip()

    def flip(self):
        if rank == 1:
            flip(self.model.trainable_variables[0])

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        if epoch == 1 and FAULT == "rate" and rank == 1:
            set_rate(self.model)


def set_rate(model):
    local(plain(model.optimizer.learning_rate)).assign(0.01)


def compiled():
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd", min_elements=1), "mse")
    return model


def batches():
    x, model = np.ones([8, 8], np.float32), compiled()
    for i in range(12):
        model.train_on_batch(x, x[:, :4])
        print(f"step {i + 1}", flush=True)
        if rank == 1 and i == 2:
            set_rate(model)


def fit():
    x = np.random.default_rng(0).normal(size=[32, 8]).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :4])).batch(8)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    model = compiled()
    model.fit(data.with_options(options), epochs=EPOCHS, verbose=0, callbacks=[Fault()])


def loop():
    aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
    variable = tf.Variable(tf.zeros([64]))

    def step():
        variable.assign_sub(aggregate([tf.ones([64])], [variable])[0])

    if ENGINE == "loop":
        step = tf.function(step)
    for i in range(12):
        step()
        print(f"step {i + 1}", flush=True)
        if rank == 1 and i == {"bits": 4, "late": 11}.get(FAULT):
            flip(variable)


if ENGINE in ("loop", "eager"):
    loop()
elif FAULT == "batches":
    batches()
else:
    fit()
print("trained", flush=True)
