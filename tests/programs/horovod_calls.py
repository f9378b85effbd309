"""A program under Horovod that does not need grace_tf.init(); prints its results as JSON.

horovod_calls.py calls       rank, size, shard, broadcast, and what is refused
horovod_calls.py end         a collective after Horovod was shut down
horovod_calls.py late        worker 1 does not come to the second step; worker 0 then begins another
horovod_calls.py late eager  the same without a function
horovod_calls.py late meet   worker 1 does not come to a barrier
horovod_calls.py start SIGKILL|SIGSTOP init|fit
                             worker 1 is lost between hvd.init() and grace_tf.init() or `fit`
horovod_calls.py loss        worker 1 compiles with another loss
"""

import json
import os
import signal
import sys
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from this_keras import keras

import grace_tf
from grace_tf.transports.world import world as group

before = group.expected_size()
if not hvd.is_initialized():
    hvd.init()


def model(optimizer, loss="mse"):
    net = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    net.compile(optimizer, loss)
    return net


def told(call):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    raise AssertionError("nothing was refused")


def calls():
    x = np.ones([16, 8], np.float32)
    variable = tf.Variable([1.0 + hvd.rank(), 2.0])
    mine = list(grace_tf.shard(tf.data.Dataset.range(5)).as_numpy_iterator())
    grace_tf.broadcast([variable], root=1)
    grace_tf.barrier()
    answer = {
        "expected": before,
        "who": [grace_tf.rank(), grace_tf.local_rank(), grace_tf.size()],
        "shard": [int(element) for element in mine],
        "broadcast": variable.numpy().tolist(),
        "addresses": told(lambda: grace_tf.init(workers=["a:1", "b:2"], rank=0)),
        "later timeout": told(lambda: grace_tf.init(timeout=7)),
    }
    # A plain optimizer, and one of Horovod's within ours.
    answer["plain"] = told(lambda: model(keras.optimizers.SGD(0.1)).fit(x, x[:, :4], verbose=0))
    import horovod.tensorflow.keras as horovod_keras

    theirs = horovod_keras.DistributedOptimizer(keras.optimizers.SGD(0.1))
    answer["theirs"] = told(lambda: grace_tf.wrap(theirs, "qsgd"))
    # A constant must be exchanged in every step.  TensorFlow must not compute its sum only once.
    answer["constant"] = constant().numpy().tolist()
    theirs = horovod_keras.DistributedOptimizer(grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd"))
    answer["twice"] = told(lambda: model(theirs).fit(x, x[:, :4], verbose=0))
    print(json.dumps(answer), flush=True)


@tf.function
def constant():
    return group.current().sum([tf.ones([4])], 1 << 20)[0]


def end():
    constant()
    grace_tf.barrier()
    hvd.shutdown()
    try:
        constant()
    except tf.errors.OpError as error:
        print(json.dumps({"shut down": str(error)}), flush=True)


def late():
    group = grace_tf.init(timeout=4)
    assert grace_tf.init() is group
    aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
    variable = tf.Variable(tf.zeros([64]))
    step = lambda: aggregate([tf.ones([64])], [variable])[0]  # noqa: E731
    step = step if "eager" in sys.argv else tf.function(step)
    step()
    if hvd.rank() == 1:
        time.sleep(60)  # Worker 1 lives but takes no part, until worker 0 times out after 4 s.
    try:
        group.barrier() if "meet" in sys.argv else step()
    except RuntimeError:
        constant()  # a collective that is traced afterwards gives the same reason


def start():
    if hvd.rank() == 1:
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    if sys.argv[3] == "init":
        grace_tf.init(timeout=6)
    fit()


def fit(loss="mse"):
    x = np.ones([16, 8], np.float32)
    model(grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd"), loss).fit(x, x[:, :4], verbose=0)


def loss():
    fit(["mse", "mae"][hvd.rank()])
    print("trained", flush=True)


{"calls": calls, "late": late, "end": end, "start": start, "loss": loss}[sys.argv[1]]()
