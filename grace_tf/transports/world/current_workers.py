"""Finds the other workers; raises where gradients would be reduced not at all, partly, or twice.

Workers that train without reducing, and without an error, are the worst bug possible.  So this
raises wherever the environment names more workers than can be reached.
"""

from __future__ import annotations

import weakref

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from grace_tf.transports.group import Group
from grace_tf.transports.lifeline.lifeline import spans_processes
from grace_tf.transports.multi_worker import MultiWorkerGroup
from grace_tf.transports.world import rank_from_environment, world

other_door: weakref.WeakSet = weakref.WeakSet()  # the CompressedAllReduce objects of this process


def between_processes() -> Group | None:
    """The group of `init` or Horovod; None for one process.  Raises where others are missing."""
    current = world.current()
    if current is not None:
        return current
    expected = world.expected_size()
    if expected > 1:
        raise RuntimeError(
            f"This process is one of {expected} workers{rank_from_environment.by()}, but nothing "
            "connects them, so gradients would not be reduced: call grace_tf.init() before the "
            "model is built (under Horovod horovod.tensorflow's init()), or train under a "
            "tf.distribute strategy; where it trains alone, call grace_tf.init(size=1)."
        )
    return None


def several() -> Group | None:
    """The plain processes that train together; None for a single one."""
    connected = world.current()
    return None if connected is None or connected.size == 1 else connected


def together(strategy: tf.distribute.Strategy | None, timeout: float | None = None) -> Group | None:
    """The processes that train together: plain ones or the strategy's; None for a single one.

    `timeout` is how long a strategy's processes wait for each other, in seconds, where its
    communication options have no timeout.
    """
    connected = several()
    if connected is not None or strategy is None or not spans_processes(strategy):
        return connected
    known = hasattr(strategy.extended, "_id_in_cluster")  # not TPUs and parameter servers
    return MultiWorkerGroup(strategy, timeout) if known else None


def refuse_parameter_servers(strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError under a ParameterServerStrategy."""
    if "ParameterServer" in type(strategy).__name__:
        raise ValueError(
            "ParameterServerStrategy updates asynchronously: there is no all-reduce to compress; "
            "use MirroredStrategy, MultiWorkerMirroredStrategy or one process per worker "
            "(grace_tf.init)."
        )


def in_graph_of_tensorflow_1() -> bool:
    """Whether this is called while a graph of TensorFlow 1 is built."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def refuse_graphs_of_tensorflow_1() -> None:
    """Raises RuntimeError in a graph of TensorFlow 1: workers cannot exchange gradients there."""
    if in_graph_of_tensorflow_1():
        raise RuntimeError(
            "Workers exchange gradients in eager mode or in a tf.function, and this is a graph of "
            "TensorFlow 1: train outside tf.Graph().as_default(), and do not call "
            "tf.compat.v1.disable_eager_execution."
        )


def compresses(strategy: tf.distribute.Strategy) -> bool:
    """Whether the strategy's own cross-device ops are a `CompressedAllReduce`."""
    return getattr(strategy.extended, "_cross_device_ops", None) in other_door


def refuse_two_doors(strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError under a strategy that compresses by itself."""
    if compresses(strategy):
        raise ValueError(
            "This strategy's CompressedAllReduce compresses gradients already; use it or "
            "grace_tf.wrap, not both."
        )


def refuse_half_a_reduction(strategy: tf.distribute.Strategy) -> None:
    """Raises RuntimeError where a strategy covers only this one of several processes."""
    joined = world.current()
    processes = world.expected_size() if joined is None else joined.size
    if not spans_processes(strategy) and processes > 1:
        raise RuntimeError(
            f"This {type(strategy).__name__} reduces within its process, one of several"
            f"{rank_from_environment.by()}: use MultiWorkerMirroredStrategy, or one process per "
            "device with grace_tf.init(); where this process trains alone, call "
            "grace_tf.init(size=1)."
        )


def refuse_xla(strategy: tf.distribute.Strategy) -> None:
    """Raises RuntimeError while XLA compiles the step of a strategy's replicas."""
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise RuntimeError(
            f"XLA compiles for one device, but the replicas of this {type(strategy).__name__} and "
            "their compression state are on several: compile the model with jit_compile=False."
        )
