"""A cluster of one parameter server and one worker in this process: what the doors say to it."""

import json
import os
import socket

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
from this_keras import keras

import grace_tf


def port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def raised(attempt):
    try:
        attempt()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


cluster = tf.train.ClusterSpec({job: [f"localhost:{port()}"] for job in ("worker", "ps")})
servers = [
    tf.distribute.Server(cluster, job_name=job, task_index=0, protocol="grpc")
    for job in ("worker", "ps")
]
strategy = tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
)
wrapped = grace_tf.wrap(keras.optimizers.SGD(0.1), "qsgd", min_elements=1)
aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
with strategy.scope():
    in_scope = raised(lambda: grace_tf.wrap(keras.optimizers.SGD(0.1)))
    variable = tf.Variable(tf.ones([4]))


def scheduled(function):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    coordinator.schedule(tf.function(lambda: strategy.run(function)))
    coordinator.join()


grads = lambda: [tf.ones([4])]  # noqa: E731
said = [
    in_scope,
    raised(lambda: scheduled(lambda: wrapped.apply_gradients(zip(grads(), [variable])))),
    raised(lambda: scheduled(lambda: aggregate(grads(), [variable]))),
]
print(json.dumps(said), flush=True)
os._exit(0)  # the servers never end by themselves
